"""Leases: a process takes a slice of a hot key's capacity ahead and spends it without asking the store again.

Usage in any interval was taken in that interval or in the lease before it, so it is at most what the rule admits in
the interval plus the lease. At most one slice per key is held. The next call after the lease has ended gives back
its unused units. A slice of a window counter is never spent after the window that it was taken in.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from ratekeeper import forks
from ratekeeper.clock import Clock, stopwatch
from ratekeeper.errors import StoreUnavailable
from ratekeeper.flows import Flow, if_abandoned
from ratekeeper.stores.protocol import Binding, Demand, Layer, Outcome, Receipt, Snapshot

_MAX_KEYS = 10_000
_SLICE = 10  # a slice is at most this part of the capacity: a tenth
_HOT = 3  # hits within a lease that make a key hot
_AT_A_TIME = 2  # other leases that a call may give back
_LONG_US = 1 << 60


class _Lease:
    """The state of one key: how often it is hit, and what is left of its slice."""

    __slots__ = (
        "demand",
        "ends_ns",
        "hits",
        "left",
        "receipt",
        "rests_until_ns",
        "seen",
        "seen_ns",
        "since_ns",
        "taken_ns",
        "taking",
    )

    def __init__(self, since_ns: int) -> None:
        self.since_ns = since_ns  # since when hits are counted
        self.hits = 0
        self.taking = False  # whether a caller is about to take a slice
        self.rests_until_ns = 0  # until when no slice is taken, because one was denied
        self.left = 0  # units of the slice
        self.taken_ns = 0
        self.ends_ns = 0
        self.receipt: Any = None  # the receipt of the hit that took the slice
        self.demand: Any = None
        self.seen: Any = None  # the store's latest outcome
        self.seen_ns = 0


class Leases:
    """The slices that a limiter of one rule holds: the layer above the fallback."""

    def __init__(
        self,
        layer: Layer,
        seconds: float | None,
        deadline: float,
        timer: Clock,
        run: Callable[[Flow[Any]], Any],
    ) -> None:
        """`run` drives a flow, in a thread or in a task. Without `seconds`, no slice is taken."""
        self._layer = layer
        self._lease_ns = 0 if seconds is None else round(seconds * 1e9)
        self._deadline_ns = int(deadline * 1e9)
        self._timer = timer
        self._run = run
        self._took_ns = 0  # how long the latest answer took
        self.after_fork()
        forks.renew_in_child(self)

    def after_fork(self) -> None:
        """Hold nothing: the parent of a forked child keeps its slices."""
        self._lock = threading.RLock()  # a signal handler may hit in the middle of a hit of its own thread
        self._keys: dict[Hashable, _Lease] = {}
        self._over: deque[Demand] = deque(maxlen=_MAX_KEYS)  # to be given back

    def set_length(self, seconds: float | None) -> None:
        """Say for how long a slice may be held from now on; None: take no more, and give back what is held."""
        self._lease_ns = 0 if seconds is None else round(seconds * 1e9)
        if seconds is None:
            for key in list(self._keys):
                self._drop(key)

    def execute(self, demands: Sequence[Demand], ends_ns: int | None = None) -> Outcome | Awaitable[Outcome]:
        """Decide from a slice, or let the store decide."""
        if not self._lease_ns and not self._over:
            return self._layer.execute(demands, ends_ns)
        if len(demands) != 1 or demands[0].binding.rule.shapes:
            return self._layer.execute(demands, ends_ns)
        (demand,) = demands
        if demand.operation in ("hit", "peek"):
            known = self._spend(demand)
            if known is not None:
                return known
        elif demand.operation == "give_back":
            return self._layer.execute(demands, ends_ns)
        return self._run(self._flow(demand))  # type: ignore[no-any-return]

    def snapshot(self, demands: Sequence[Demand], ends_ns: int | None = None) -> Snapshot | Awaitable[Snapshot]:
        """Return the store's time and states."""
        return self._layer.snapshot(demands, ends_ns)

    def forget(self, bindings: Sequence[Binding]) -> Awaitable[None] | None:
        """Forget every key of these rules; units that were taken ahead are forgotten with them."""
        return self._run(self._forget(bindings))  # type: ignore[no-any-return]

    def _forget(self, bindings: Sequence[Binding]) -> Flow[None]:
        yield self._layer.forget(bindings)
        with self._lock:
            self._keys.clear()
            self._over.clear()

    def end(self, key: Hashable) -> Flow[None]:
        """End the lease of a key, and give back its unused units."""
        for over in self._end(key):
            with suppress(StoreUnavailable):  # otherwise they expire
                yield self._layer.execute([over])

    def end_all(self) -> Flow[None]:
        """End all leases, and give back their unused units."""
        yield from self.end(None)

    def _flow(self, demand: Demand) -> Flow[Outcome]:
        began_ns = stopwatch()
        operation = demand.operation
        gave = False
        if operation == "reset":
            self._end(demand.key)  # the store forgets the slice with the key
        elif operation not in ("hit", "peek"):
            gave = yield from self._give_back(began_ns, demand.key)  # the change applies to the store's count
        outcome = None
        more = self._wanted(demand) if operation == "hit" else 0
        if more:
            outcome = yield from self._take(began_ns, demand, more)
        if outcome is None:
            sent_ns = self._timer()
            outcome = yield from self._ask(demand, self._left(began_ns) if more or gave else self._deadline_ns)
            denied = operation in ("hit", "peek") and outcome.answers[0][2] and not outcome.degraded
            if denied and (yield from self._give_back(began_ns, demand.key)):  # may be enough
                outcome = yield from self._ask(demand, self._left(began_ns))
            elif denied and operation == "hit":
                self._rest(demand, outcome)
            outcome = self._saw(demand, outcome, sent_ns)
        yield from self._give_back(began_ns)
        return outcome

    def _ask(self, demand: Demand, time_ns: int) -> Flow[Outcome]:
        """Ask the store; units that a cancelled task took become a slice."""
        began_ns, sent_ns = stopwatch(), self._timer()
        asked = self._layer.execute([demand], began_ns + time_ns)
        outcome: Outcome = yield if_abandoned(asked, partial(self._keep_abandoned, demand, sent_ns))
        self._took_ns = stopwatch() - began_ns
        return outcome

    def _give_back(self, began_ns: int, key: Hashable = None) -> Flow[bool]:
        """Give back unused units, of one key or of ended leases, while there is time; tell whether there were any."""
        gives = False
        spare_ns = self._deadline_ns // 2 + (0 if key is None else self._took_ns)  # time for the request that follows
        for _ in range(_AT_A_TIME):
            left_ns = self._left(began_ns)
            back = self._next_over(key) if left_ns > spare_ns else None
            if back is not None:
                gives = True
                sent_ns = self._timer()
                with suppress(StoreUnavailable):  # otherwise they expire
                    outcome = yield from self._ask(back, left_ns)
                    self._saw(back, outcome, sent_ns)
        return gives

    def _take(self, began_ns: int, demand: Demand, more: int) -> Flow[Outcome | None]:
        """Hit, and take a slice with the same hit; return None if that is denied."""
        sent_ns = self._timer()
        try:
            outcome = yield from self._ask(demand._replace(cost=demand.cost + more), self._deadline_ns)
        finally:
            self._has_taken(demand.key)
        if not outcome.answers[0][0]:
            with self._lock:
                self._keys.setdefault(demand.key, _Lease(sent_ns)).rests_until_ns = self._timer() + self._lease_ns
            return None
        (receipt,) = outcome.receipts
        if outcome.degraded:
            yield self._layer.execute([_back(demand, more, receipt)], began_ns + self._deadline_ns)
            return outcome
        return self._keep(demand, more, outcome, sent_ns)

    def _rest(self, demand: Demand, outcome: Outcome) -> None:
        """Take no slice of a key as long as the store would deny it anyway."""
        with self._lock:
            lease = self._keys.get(demand.key)
            if lease is not None:
                rests_ns = min(self._lease_ns, outcome.steady_us * 1000)
                lease.rests_until_ns = max(lease.rests_until_ns, self._timer() + rests_ns)

    def _left(self, began_ns: int) -> int:
        return max(1_000_000, self._deadline_ns - (stopwatch() - began_ns))

    def _spend(self, demand: Demand) -> Outcome | None:
        """Answer from the slice, if it covers the cost."""
        with self._lock:
            now = self._timer()
            lease = self._keys.get(demand.key)
            if lease is None:
                return None
            if demand.operation == "hit":
                lease.hits += 1
            if not lease.taken_ns <= now < lease.ends_ns:
                self._give_up(lease)
            if lease.left < demand.cost or lease.demand.binding is not demand.binding:
                return None
            if demand.operation == "hit":
                lease.left -= demand.cost
            return _answer(lease, now)

    def _wanted(self, demand: Demand) -> int:
        """Return how much to take ahead: the usage of the last lease, at most a slice of the capacity."""
        with self._lock:
            now = self._timer()
            lease = self._keys.get(demand.key)
            if lease is None or not 0 <= now - lease.since_ns < 2 * self._lease_ns:
                self._drop(demand.key)
                if len(self._keys) >= _MAX_KEYS:
                    self._drop(next(iter(self._keys)))
                self._keys[demand.key] = _Lease(now)
                return 0
            hits = lease.hits
            if now - lease.since_ns >= self._lease_ns:
                lease.since_ns, lease.hits = now, hits // 2
            most = demand.binding.rule.limit // _SLICE
            if hits < _HOT or lease.taking or now < lease.rests_until_ns or most < demand.cost:
                return 0
            lease.taking = True
            return min(hits * demand.cost, most)

    def _has_taken(self, key: Hashable) -> None:
        lease = self._keys.get(key)  # without the lock: a flow may be garbage-collected while this thread holds it
        if lease is not None:
            lease.taking = False

    def _keep(self, demand: Demand, more: int, outcome: Outcome, sent_ns: int) -> Outcome:
        with self._lock:
            lease = self._keys.setdefault(demand.key, _Lease(sent_ns))
            self._give_up(lease)
            (receipt,) = outcome.receipts
            lease.left, lease.demand, lease.receipt, lease.taken_ns = more, demand, receipt, sent_ns
            lease.ends_ns = sent_ns + min(self._lease_ns, _counts_for_us(demand, outcome) * 1000)
            lease.seen, lease.seen_ns = outcome, sent_ns
            return _answer(lease, sent_ns)

    def _saw(self, demand: Demand, outcome: Outcome, sent_ns: int) -> Outcome:
        """Note the store's outcome for a key with a slice, and add the slice's unused units to `remaining`."""
        with self._lock:
            lease = self._keys.get(demand.key)
            if lease is None or not lease.left or outcome.degraded or sent_ns < lease.seen_ns:
                return outcome
            if lease.demand.binding is not demand.binding:
                return outcome
            lease.seen, lease.seen_ns = outcome, sent_ns
            allowed, remaining, retry_after, reset_after, delay = outcome.answers[0]
            answer = (True, remaining + lease.left, retry_after, reset_after, delay)
            return outcome._replace(answers=[answer]) if allowed else outcome

    def _keep_abandoned(self, demand: Demand, sent_ns: int, outcome: Outcome) -> None:
        """Keep as a slice what an abandoned hit took."""
        if demand.operation == "hit" and outcome.answers[0][0] and not outcome.degraded:
            self._keep(demand, demand.cost, outcome, sent_ns)

    def _next_over(self, key: Hashable = None) -> Demand | None:
        """Return what to give back next: of this key, whose lease then ends, or of any key."""
        with self._lock:
            if key is None:
                self._look_after_one()
            elif key in self._keys:
                self._give_up(self._keys[key])
            back = next((back for back in list(self._over) if key in (None, back.key)), None)
            return back if back is not None and self._takes(back) else None

    def _look_after_one(self) -> None:
        """Check one lease, which may have ended without another hit on its key."""
        key = next(iter(self._keys), None)
        if key is not None:
            lease = self._keys.pop(key, None) or _Lease(0)  # a signal handler may have ended it
            now = self._timer()
            if 0 <= now - lease.since_ns < 2 * self._lease_ns and lease.taken_ns <= now < lease.ends_ns:
                self._keys[key] = lease  # at the end
            else:
                self._give_up(lease)
                if lease.taking or 0 <= now - lease.since_ns < 2 * self._lease_ns:
                    self._keys[key] = lease

    def _end(self, key: Hashable) -> list[Demand]:
        """End the lease of a key, or all leases; without the lock, which a signal in a loop could leave locked."""
        for held in list(self._keys) if key is None else [key]:
            self._drop(held)
        return [back for back in list(self._over) if key in (None, back.key) and self._takes(back)]

    def _takes(self, back: Demand) -> bool:
        """Take units that are to be given back; return whether no signal handler had taken them."""
        try:
            self._over.remove(back)
        except ValueError:
            return False
        return True

    def _drop(self, key: Hashable) -> None:
        lease = self._keys.pop(key, None)
        if lease is not None:
            self._give_up(lease)

    def _give_up(self, lease: _Lease) -> None:
        left, lease.left = lease.left, 0  # first, so that nobody else gives them up too
        if left:
            self._over.append(_back(lease.demand, left, lease.receipt))


def _back(demand: Demand, cost: int, receipt: Receipt) -> Demand:
    return demand._replace(cost=cost, operation="give_back", receipt=receipt)


def _answer(lease: _Lease, now_ns: int) -> Outcome:
    """Answer from a slice: the store's own answer, moved to now, plus the slice's unused units."""
    passed_us = now_ns // 1000 - lease.seen_ns // 1000
    now_us, ((_, remaining, _, reset_after, _),), *_ = lease.seen
    answer = (True, remaining + lease.left, 0, max(0, reset_after - passed_us), 0)
    return Outcome(now_us + passed_us, [answer], times_us=[lease.receipt.at_us])  # charged with the slice


def _counts_for_us(demand: Demand, outcome: Outcome) -> int:
    """Return for how long a slice may be spent: in a window counter, until its window ends."""
    spendable_us = demand.binding.rule.spendable_us(outcome.answers[0][3])
    return _LONG_US if spendable_us is None else spendable_us
