"""Waiting until admitted: first come, first served for each key, woken at a computed time."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Generator, Sequence
from functools import partial
from typing import Any, cast

from ratekeeper.clock import Clock, stopwatch
from ratekeeper.decision import Decision
from ratekeeper.errors import InvalidRule, RateLimited, StoreUnavailable
from ratekeeper.fallback import NOTHING_ASKED
from ratekeeper.flows import Flow, if_abandoned, run_async
from ratekeeper.forecasts import Outlook
from ratekeeper.leases import Leases
from ratekeeper.queues import AsyncWaiter, Place, Queues, Waiter
from ratekeeper.rates import show
from ratekeeper.reservations import undo
from ratekeeper.ruleset import LimiterRules, give_backs
from ratekeeper.stores.protocol import Demand, Layer, Outcome, Snapshot

_FOR_EVER = 10**10  # seconds: three centuries
_ASK_AGAIN_NS = 1_000_000_000

Admitted = tuple[Decision, Outcome]


class Waiting:
    """How the callers of one limiter wait: each runs the flow `wait` with its own waiter."""

    def __init__(
        self, ruleset: LimiterRules, layer: Layer, queues: Queues, clock: Clock | None, leases: Leases | None = None
    ) -> None:
        """`layer` is the layer below the leases: a waiter first gives back the units that `leases` hold of its keys."""
        self.queues = queues
        # Waits are timed by a clock that never steps, unless the given clock wakes its waiters when it moves.
        self.timer = clock if clock is not None and hasattr(clock, "subscribe") else stopwatch
        self._ruleset = ruleset
        self._layer = layer
        self._leases = leases

    @property
    def is_free(self) -> bool:
        """Whether no caller waits, and an admitted request may proceed at once."""
        return not (self.queues.by_name or self._ruleset.shapes)

    def wait(self, demands: Sequence[Demand], timeout: float | None, waiter: Waiter | AsyncWaiter) -> Flow[Admitted]:
        """Return once admitted and, if a bucket shapes, departed; raise RateLimited once it would be too late."""
        if self._leases is not None:
            for demand in demands:
                yield from self._leases.end(demand.key)
        binding = _that_bind(demands)  # the others keep nobody waiting
        if not binding:
            outcome = (yield self._hit(demands)) if demands else NOTHING_ASKED
            decision = self._ruleset.decision(demands, outcome)
            if not decision.allowed:  # blocked
                raise RateLimited(decision)
            return decision, outcome
        for demand in binding:
            if demand.cost > demand.binding.rule.limit:
                raise RateLimited((yield from self._standing(demands)))
        deadline_ns = None if timeout is None else self.timer() + round(timeout * 1e9)
        turn = Place(self.queues, "turn", waiter, binding, deadline_ns)
        try:
            if not turn.came_first:
                yield from self._wait_for_turn(turn)
            decision, outcome, answered_ns = yield from self._until_admitted(turn, demands)
            turn.served = True
            if self._ruleset.shapes:  # even with no delay: callers that depart earlier may be slow to wake up
                departure_ns = answered_ns + round(decision.delay * 1e6) * 1000
                yield from self._until_departed(turn, departure_ns, demands, outcome)
        finally:
            turn.leave()
        return decision, outcome

    def _give_back(self, demands: Sequence[Demand], outcome: Outcome) -> Flow[None]:
        return undo(self._layer, self.queues, give_backs(demands, outcome))

    def _timer_at(self, now_us: int) -> int:
        """Return the timer's reading at this time on the store's clock, which was just now."""
        return self.timer() if self.timer is stopwatch else now_us * 1000

    def _until_departed(
        self, turn: Place, departure_ns: int, demands: Sequence[Demand], outcome: Outcome
    ) -> Flow[None]:
        departing = Place(self.queues, "departure", turn.waiter, turn.demands)
        turn.leave()  # only now, so that departures keep the order of turns
        try:
            while True:
                is_first = departing.is_first()
                if is_first and self.timer() >= departure_ns:
                    return
                departure_ns -= yield departing.waiter.sleep_until(departure_ns if is_first else None)
        except GeneratorExit:  # garbage-collected, perhaps while this thread is inside the store: do not enter it
            raise
        except BaseException:
            yield from self._give_back(demands, outcome)
            raise
        finally:
            departing.leave()

    def _sleep(self, turn: Place, until_ns: int | None) -> Flow[bool]:
        """Sleep until this time or until woken; return whether the clock was set back meanwhile."""
        set_back_ns = yield turn.waiter.sleep_until(until_ns)
        if set_back_ns:
            turn.set_back(set_back_ns, self.timer())
        return bool(set_back_ns)

    def _wait_for_turn(self, turn: Place) -> Flow[None]:
        outlook = turn.outlook(self.timer())
        while not turn.is_first():
            if turn.deadline_ns is None or outlook is None:
                yield from self._sleep(turn, None)
            elif self.timer() >= turn.deadline_ns:
                raise RateLimited((yield from self._standing(turn.demands))._replace(allowed=False))
            elif turn.leaves_ns is None and outlook.begin(turn):
                yield from self._foresee(turn, outlook)
            elif turn.leaves_ns is not None and turn.leaves_ns > turn.deadline_ns:
                leaves_ns = turn.leaves_ns  # which may be forgotten while the store answers
                standing = yield from self._standing(turn.demands)
                retry_after = max(0.0, (leaves_ns - self.timer()) / 1e9)
                raise RateLimited(standing._replace(allowed=False, retry_after=retry_after))
            else:
                yield from self._sleep(turn, turn.deadline_ns)

    def _foresee(self, turn: Place, outlook: Outlook) -> Flow[None]:
        """Work on the forecast of the queue, for all callers in it."""
        try:
            first = turn.queue.first()
            if outlook.needs_snapshot and first is not None and first.asking:
                yield from self._sleep(turn, turn.deadline_ns)  # it is not known whether the snapshot counts that hit
                if turn.is_first():
                    return
            if outlook.needs_snapshot:
                try:
                    snapshot: Snapshot = yield self._layer.snapshot(turn.demands)
                except StoreUnavailable as error:
                    if not error.answered:
                        raise
                    again_ns = self.timer() + _ASK_AGAIN_NS  # the store decides, but had no time for a snapshot
                    yield from self._sleep(turn, min(again_ns, turn.deadline_ns or again_ns))
                    return
                outlook.start(snapshot, self._timer_at(snapshot.now_us))
            while outlook.work(self.timer()) and not turn.is_first():
                yield turn.waiter.sleep(0.0)  # other tasks of the event loop get a turn
        finally:
            outlook.end(turn)

    def _until_admitted(self, turn: Place, demands: Sequence[Demand]) -> Flow[tuple[Decision, Outcome, int]]:
        """Try, and retry when the answer says; return the decision, the outcome and its time on the timer."""
        while True:
            if self.queues.claims and turn.must_yield():
                yield from self._yield_to_others(turn)
            turn.waiter.nudged = False
            if self._ruleset.shapes and turn.deadline_ns is not None:
                yield from self._refuse_late_departure(turn, turn.deadline_ns)
            turn.asking = True
            outcome = yield self._hit(demands)
            turn.asking = False
            if self.queues.degraded and not outcome.degraded:
                self.queues.store_is_back_for(turn)
            answered_ns = self._timer_at(outcome.now_us)
            decision = self._ruleset.decision(demands, outcome)
            if decision.allowed:
                late_by = 0.0 if turn.deadline_ns is None else _late_by(decision, answered_ns, turn.deadline_ns)
                if late_by > 0:  # another caller took the capacity that the peek saw
                    yield from self._give_back(demands, outcome)
                    raise RateLimited(decision._replace(allowed=False, retry_after=late_by))
                return decision, outcome, answered_ns
            turn.was_denied(self.timer(), outcome.degraded)
            never = decision.retry_after == math.inf
            retry_ns = math.inf if never else answered_ns + round(decision.retry_after * 1e6) * 1000
            if never or retry_ns > (math.inf if turn.deadline_ns is None else turn.deadline_ns):
                raise RateLimited(decision)
            answered = zip(demands, outcome.answers, strict=True)
            turn.claim(max(answered, key=lambda each: (each[0].binds, each[1][2] or 0))[0])
            if outcome.degraded:  # notice when the store is back
                retry_ns = min(retry_ns, self.timer() + self.queues.pause_ns)
            is_set_back = False
            while self.timer() < retry_ns and not (turn.waiter.nudged or is_set_back):
                is_set_back = yield from self._sleep(turn, int(retry_ns))

    def _refuse_late_departure(self, turn: Place, deadline_ns: int) -> Flow[None]:
        """Raise if the request would depart too late, so that nothing is taken only to be given back."""
        outcome = yield self._layer.execute(_as_peeks(turn.demands))
        decision = self._ruleset.decision(turn.demands, outcome)
        late_by = _late_by(decision, self._timer_at(outcome.now_us), deadline_ns)
        if late_by > 0:
            raise RateLimited(decision._replace(allowed=False, retry_after=late_by))

    def _yield_to_others(self, turn: Place) -> Flow[None]:
        """Wait until no earlier caller in another queue waits for one of these keys."""
        if turn.deadline_ns is not None:
            standing = yield from self._standing(turn.demands)
            if self.timer() + standing.retry_after * 1e9 > turn.deadline_ns:
                raise RateLimited(standing)
        while turn.must_yield():
            if turn.deadline_ns is not None and self.timer() >= turn.deadline_ns:
                raise RateLimited((yield from self._standing(turn.demands))._replace(allowed=False))
            yield from self._sleep(turn, turn.deadline_ns)

    def _hit(self, demands: Sequence[Demand]) -> Any:
        outcome = self._layer.execute(demands)
        return outcome if type(outcome) is Outcome else if_abandoned(outcome, partial(self._undo, demands))

    def _undo(self, demands: Sequence[Demand], outcome: Outcome) -> Awaitable[None]:
        """Give back what the hit of a cancelled task took."""
        return run_async(self._give_back(demands, outcome))

    def _standing(self, demands: Sequence[Demand]) -> Generator[Any, Any, Decision]:
        outcome = yield self._layer.execute(_as_peeks(demands))
        return self._ruleset.decision(demands, cast("Outcome", outcome))


def _that_bind(demands: Sequence[Demand]) -> Sequence[Demand]:
    for demand in demands:
        if not demand.binds:
            return [each for each in demands if each.binds]
    return demands


def _as_peeks(demands: Sequence[Demand]) -> list[Demand]:
    return [demand._replace(operation="peek") for demand in demands]


def _late_by(decision: Decision, answered_ns: int, deadline: int) -> float:
    """Return by how many seconds an admitted request would depart after the deadline."""
    if not decision.allowed or not decision.delay:
        return 0.0
    return (answered_ns + round(decision.delay * 1e6) * 1000 - deadline) / 1e9


def check_timeout(timeout: Any) -> float | None:
    """Return the timeout if it is valid."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout must be a number of seconds or None, not {show(timeout)}")
    if not timeout >= 0:
        raise InvalidRule(f"timeout must be at least 0 seconds, not {show(timeout)}")
    return None if timeout > _FOR_EVER else timeout
