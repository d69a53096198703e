"""Denials that still hold, so that a flood of denied traffic does not reach Redis.

Until a denial's `retry_after`, only a refund, a reset or another rule can admit an equal request. A denial holds from
the moment when the request was sent, since Redis cannot have read its clock earlier; the times in it count from the
reply. It is dropped as soon as this process changes one of its keys, through whichever store. A refund or reset by
another process goes unnoticed for a second at most.
"""

from __future__ import annotations

import itertools
import math
import threading
import weakref
from collections.abc import Container, Hashable, Sequence
from typing import Any, NamedTuple

from ratekeeper.clock import Clock, stopwatch
from ratekeeper.decision import NO_LAYERS, Decision, RuleAnswer
from ratekeeper.rates import MAX_USAGE
from ratekeeper.stores.protocol import Binding, Demand, Outcome, QuickHit, outcome_at
from ratekeeper.stores.redis.redis_errors import Result

_MAX = 10_000
_new = tuple.__new__  # a named tuple's own constructor takes twice as long


_of_all_stores: set[weakref.ref[Denials]] = set()


class _Denial(NamedTuple):
    replied_ns: int
    ends_ns: int
    outcome: Outcome
    demands: Sequence[Demand]  # keeps the bindings alive whose ids identify the request


class Denials:
    """The latest denials of one store in this process."""

    def __init__(self, most: int = _MAX) -> None:
        self.timer: Clock = stopwatch
        self._most = most
        self._lock = threading.RLock()  # a signal handler may note a result while its own thread does
        self.held: dict[Hashable, _Denial] = {}  # stores ask `recall` only if there are any
        self._by_key: dict[Hashable, set[Hashable]] = {}
        self._changed_ns: dict[Hashable, int] = {}  # when this process last gave units back
        self._since_ns = 0  # when the latest denial was noted
        self._latest_ns = 0  # when the last of them ends
        self._recalled = itertools.count()  # advances in one step, so threads need no lock
        self._trusted_ns = 0  # replies to earlier requests may predate a change that is no longer listed
        _of_all_stores.add(weakref.ref(self, _of_all_stores.discard))

    def after_fork(self) -> None:
        """Make a new lock: a thread that held the old one does not exist in the child."""
        self._lock = threading.RLock()

    @property
    def recalled(self) -> int:
        """How many hits were answered with a denial that still held."""
        return int(repr(self._recalled)[6:-1])  # "count(5)"

    def recall(self, demands: Sequence[Demand]) -> Outcome | None:
        """Return the answer to a hit that is still denied."""
        denial = self.held.get(_request(demands))
        if denial is None:
            return None
        replied_ns, ends_ns, outcome, _ = denial
        now = self.timer()
        if not replied_ns <= now < ends_ns:
            return None
        passed_us = now // 1000 - replied_ns // 1000
        next(self._recalled)
        return outcome_at(outcome.now_us + passed_us, [_later(answer, passed_us) for answer in outcome.answers])

    def quick_hit(self, binding: Binding) -> QuickHit:
        """Return a fast path to hit one rule with a str key and an int cost: `recall` with its calls inlined."""
        rule_id, name, limit = id(binding), binding.name, binding.rule.limit
        held, recalled = self.held, self._recalled

        def hit(key: Any, cost: Any) -> Decision | None:
            if not held or key.__class__ is not str or cost.__class__ is not int:
                return None
            denial = held.get((rule_id, key, cost, "hit"))
            if denial is None:
                return None
            replied_ns, ends_ns, outcome, _ = denial
            now = self.timer()
            if not replied_ns <= now < ends_ns:
                return None
            next(recalled)
            allowed, remaining, retry_after, reset_after, delay = _later(
                outcome.answers[0], now // 1000 - replied_ns // 1000
            )
            return _new(
                Decision,
                (
                    allowed,
                    limit,
                    remaining,
                    math.inf if retry_after is None else retry_after / 1e6,
                    reset_after / 1e6,
                    delay / 1e6,
                    name,
                    NO_LAYERS,
                    False,
                    (),
                ),
            )

        return hit

    def note_results(self, requests: Sequence[Sequence[Demand]], results: Sequence[Result], sent_ns: int) -> None:
        """Note the results of requests that were sent."""
        holds = bool(self.held) and not self._all_are_over()
        for demands, result in zip(requests, results, strict=True):
            if type(result) is not Outcome:
                self._doubt(demands)
            elif holds or result[3] or demands[0][3] != "hit" or (len(demands) > 1 and _gives_back(demands)):
                self.note(demands, result, sent_ns if self.timer is stopwatch else result.now_us * 1000)
                holds = True  # otherwise it is an admitted hit, and there is no denial for it to end

    def _all_are_over(self) -> bool:
        """Return whether no denial holds any more; then admitted hits need not be noted."""
        if self._since_ns <= self.timer() < self._latest_ns:
            return False
        with self._lock:  # hits are no longer noted, so a clock that steps back must not revive these
            self.held.clear()
            self._by_key.clear()
            self._latest_ns = 0
        return True

    def _doubt(self, demands: Sequence[Demand]) -> None:
        """Drop denials that a change would end, since it may have been executed although no answer came."""
        if _gives_back(demands):
            self._forget_everywhere(demands)

    def note(self, demands: Sequence[Demand], outcome: Outcome, sent_ns: int) -> None:
        """Hold a denial; drop those of keys that have changed."""
        if all(demand.operation == "peek" for demand in demands):
            return
        if outcome.steady_us == 0:
            self._forget_everywhere(demands)
            return
        with self._lock:
            if not self._may_be_stale(demands, sent_ns):
                self._hold(demands, outcome, sent_ns)

    def _hold(self, demands: Sequence[Demand], outcome: Outcome, sent_ns: int) -> None:
        if any(demand.cost > MAX_USAGE for demand in demands):
            return  # among larger costs a caller can choose many that hash alike
        request = _request(demands)
        self.held.pop(request, None)
        while len(self.held) >= self._most:
            self._drop(next(iter(self.held), None))
        ends_ns = sent_ns + outcome.steady_us * 1000
        self._since_ns = self.timer()
        self._latest_ns = max(self._latest_ns, ends_ns)
        self.held[request] = _Denial(self._since_ns, ends_ns, outcome, demands)
        for key in _keys(demands):
            self._by_key.setdefault(key, set()).add(request)

    def _forget_everywhere(self, demands: Sequence[Demand]) -> None:
        """Drop the denials of keys that have changed; if units were given back, those of all stores in this process.

        Another store may be on another server, and then asks it once more than it has to.
        """
        self.forget(demands)
        if _gives_back(demands):
            for known in _of_all_stores.copy():
                other = known()
                if other is not None and other is not self:
                    other.forget(demands)

    def forget(self, demands: Sequence[Demand]) -> None:
        """Drop the denials of keys that have changed."""
        with self._lock:
            self._forget(demands)

    def forget_rules(self, spaces: Container[object]) -> None:
        """Drop the denials by the rules with these spaces, and trust no reply to a request that was sent before."""
        with self._lock:
            self._trusted_ns = self.timer() + 1  # a clock that is moved by hand may stand still
            self._drop_those_of(spaces)

    def _drop_those_of(self, spaces: Container[object]) -> None:
        for request, denial in list(self.held.items()):
            if any(demand.binding.space in spaces for demand in denial.demands):
                self._drop(request)

    def _forget(self, demands: Sequence[Demand]) -> None:
        for key, demand in zip(_keys(demands), demands, strict=True):
            if demand.operation == "peek":
                continue
            for request in self._by_key.pop(key, ()):
                self._drop(request)
            if demand.operation != "hit":
                if len(self._changed_ns) >= self._most:
                    self._changed_ns.clear()
                    self._trusted_ns = self.timer()
                self._changed_ns[key] = self.timer()

    def _may_be_stale(self, demands: Sequence[Demand], sent_ns: int) -> bool:
        """Return whether units may have been given back while this answer was in flight."""
        return sent_ns < self._trusted_ns or any(sent_ns <= self._changed_ns.get(key, -1) for key in _keys(demands))

    def _drop(self, request: Hashable) -> None:
        denial = self.held.pop(request, None)
        for key in _keys(denial.demands) if denial else ():
            requests = self._by_key.get(key)
            if requests is not None:
                requests.discard(request)
                if not requests:
                    self._by_key.pop(key, None)


def forget_everywhere(bindings: Sequence[Binding]) -> None:
    """Drop the denials by these rules, of all stores in this process."""
    spaces = {binding.space for binding in bindings}
    for known in _of_all_stores.copy():
        denials = known()
        if denials is not None:
            denials.forget_rules(spaces)


def _gives_back(demands: Sequence[Demand]) -> bool:
    for demand in demands:  # noqa: SIM110 - takes half the time of any(), on every request with several demands
        if demand.operation not in ("hit", "peek"):
            return True
    return False


def _request(demands: Sequence[Demand]) -> Hashable:
    if len(demands) == 1:  # nearly always
        binding, key, cost, operation, _, _ = demands[0]
        return id(binding), key, cost, operation
    return tuple([(id(each.binding), each.key, each.cost, each.operation, each.binds) for each in demands])


def _keys(demands: Sequence[Demand]) -> list[Hashable]:
    return [(demand.binding.space, demand.key) for demand in demands]


def _later(answer: RuleAnswer, passed_us: int) -> RuleAnswer:
    allowed, remaining, retry_after, reset_after, delay = answer
    return (
        allowed,
        remaining,
        retry_after - passed_us if retry_after else retry_after,
        reset_after - passed_us if reset_after > passed_us else 0,
        delay - passed_us if delay > passed_us else 0,
    )
