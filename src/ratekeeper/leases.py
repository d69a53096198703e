"""Leases: a process takes a slice of a hot key ahead and spends it without asking the store again.

What is spent in any interval was taken in that interval or in the lease before it, so it is at most what the rule
admits in the interval lengthened by the lease. At most the slice is held back unused, and given back when the lease is
over; of a counter nothing is spent beyond the window that it was taken in.

`_flow` yields what to ask the store for and is sent the outcome; a sync and an async driver run it.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from ratekeeper.algorithms import FixedWindow, SlidingWindowCounter
from ratekeeper.clock import Clock, stopwatch
from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores.port import Charge, Demand, Operation, Outcome

_MOST_KEYS = 10_000
_SLICE = 10  # the part of the capacity that is taken ahead at most
_HOT = 3  # hits within a lease that make a key hot

_LONG_US = 1 << 60

Call = tuple[Operation, Sequence[Demand], Charge | None]
Flow = Generator[Call, Outcome, Outcome]


class _Lease:
    """What is known of one key: how often it is hit, and what is left of its slice."""

    __slots__ = ("demand", "ends_ns", "hits", "left", "outcome", "since_ns", "taken_ns")

    def __init__(self, since_ns: int) -> None:
        self.since_ns = since_ns  # when the hits began to be counted
        self.hits = 0
        self.left = 0  # units
        self.ends_ns = 0
        self.taken_ns = 0
        self.outcome: Any = None  # of the hit that took the slice
        self.demand: Any = None


class Leases:
    """The slices that one limiter of one rule holds."""

    def __init__(self, execute: Callable[..., Any], seconds: float, clock: Clock | None) -> None:
        self._execute = execute
        self._lease_ns = round(seconds * 1e9)
        self._timer = clock or stopwatch
        self._start()
        _all.add(self)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._keys: dict[Hashable, _Lease] = {}
        self._taken: deque[_Lease] = deque()  # in the order of their ends, or nearly so
        self._over: list[Call] = []  # what is to be given back

    def execute(self, operation: Operation, demands: Sequence[Demand], charge: Charge | None = None) -> Outcome:
        """Decide from a slice or by the store, in this thread."""
        flow = self._flow(operation, demands, charge)
        try:
            call = next(flow)
            while True:
                try:
                    outcome = self._execute(*call)
                except StoreUnavailable as error:
                    call = flow.throw(error)
                else:
                    call = flow.send(outcome)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    async def execute_async(
        self, operation: Operation, demands: Sequence[Demand], charge: Charge | None = None
    ) -> Outcome:
        """Decide from a slice or by the store, in this task."""
        flow = self._flow(operation, demands, charge)
        try:
            call = next(flow)
            while True:
                try:
                    outcome = await self._execute(*call)
                except StoreUnavailable as error:
                    call = flow.throw(error)
                else:
                    call = flow.send(outcome)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    def _flow(self, operation: Operation, demands: Sequence[Demand], charge: Charge | None) -> Flow:
        """Decide one request; give back what leases that are over have left."""
        (demand,) = demands
        if operation in ("hit", "peek"):
            spent = self._spend(demand, operation)
            if spent is not None:
                return spent
        else:
            self._end(demand.key)  # what it changes is counted by the store
        for back in self._backs():
            with suppress(StoreUnavailable):  # then it expires
                yield back
        more = self._wanted(demand) if operation == "hit" else 0
        if more:
            sent_ns = self._timer()
            outcome = yield "hit", [demand._replace(cost=demand.cost + more)], None
            if outcome.answers[0][0]:
                return self._keep(demand, more, outcome, sent_ns)
        return (yield operation, demands, charge)

    def return_all(self) -> list[Call]:
        """End all leases; return what gives back what they have left."""
        with self._lock:
            for key in list(self._keys):
                self._drop(key)
        return list(self._backs())

    def _backs(self) -> Iterator[Call]:
        """Return what gives back what leases have left that are over, of whichever key."""
        with self._lock:
            now = self._timer()
            while self._taken and not self._taken[0].taken_ns <= now < self._taken[0].ends_ns:
                self._give_up(self._taken.popleft())
            over, self._over = self._over, []
        yield from over

    def _spend(self, demand: Demand, operation: Operation) -> Outcome | None:
        """Take from the slice what it still covers."""
        with self._lock:
            now = self._timer()
            lease = self._keys.get(demand.key)
            if lease is None:
                return None
            if operation == "hit":
                lease.hits += 1
            if not lease.taken_ns <= now < lease.ends_ns:
                self._give_up(lease)
                return None
            if lease.left < demand.cost:
                return None
            if operation == "hit":
                lease.left -= demand.cost
            return _answer(lease, (now - lease.taken_ns) // 1000)

    def _wanted(self, demand: Demand) -> int:
        """Return how much to take ahead: what was asked for in the last lease, at most a slice of the capacity."""
        with self._lock:
            now = self._timer()
            lease = self._keys.get(demand.key)
            if lease is None or not 0 <= now - lease.since_ns < 2 * self._lease_ns:
                if lease is not None:
                    self._give_up(lease)
                while len(self._keys) >= _MOST_KEYS:
                    self._drop(next(iter(self._keys)))
                self._keys[demand.key] = _Lease(now)
                return 0
            hits = lease.hits
            if now - lease.since_ns >= self._lease_ns:
                lease.since_ns, lease.hits = now, hits // 2
            return min(hits * demand.cost, demand.binding.rule.limit // _SLICE) if hits >= _HOT else 0

    def _keep(self, demand: Demand, more: int, outcome: Outcome, sent_ns: int) -> Outcome:
        with self._lock:
            lease = self._keys.get(demand.key) or _Lease(sent_ns)
            self._give_up(lease)  # another thread's, taken meanwhile
            kept = self._keys[demand.key] = _Lease(lease.since_ns)
            kept.hits, kept.left, kept.demand, kept.outcome = lease.hits, more, demand, outcome
            kept.taken_ns = sent_ns
            kept.ends_ns = sent_ns + min(self._lease_ns, _counts_for_us(demand, outcome) * 1000)
            self._taken.append(kept)
            return _answer(kept, 0)

    def _end(self, key: Hashable) -> None:
        with self._lock:
            self._drop(key)

    def _drop(self, key: Hashable) -> None:
        lease = self._keys.pop(key, None)
        if lease is not None:
            self._give_up(lease)

    def _give_up(self, lease: _Lease) -> None:
        if lease.left:
            self._over.append(("give_back", [lease.demand._replace(cost=lease.left)], lease.outcome.charge))
        lease.left = 0


def _answer(lease: _Lease, passed_us: int) -> Outcome:
    """Answer from a slice: the store's own answer, later, and with what is left of the slice."""
    now_us, ((_, remaining, _, reset_after, _),), degraded, *_ = lease.outcome
    answer = (True, remaining + lease.left, 0, max(0, reset_after - passed_us), 0)
    return Outcome(now_us + passed_us, [answer], degraded)


def _counts_for_us(demand: Demand, outcome: Outcome) -> int:
    """Return for how long what was taken may be spent: of a counter, until its window ends."""
    rule = demand.binding.rule
    reset_after = outcome.answers[0][3]
    if isinstance(rule, SlidingWindowCounter):
        return reset_after - rule.window_us
    return reset_after if isinstance(rule, FixedWindow) else _LONG_US


_all: weakref.WeakSet[Leases] = weakref.WeakSet()


def _start_again() -> None:
    """In a forked child the slices are the parent's to spend."""
    for leases in _all:
        leases._start()  # noqa: SLF001


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_again)
