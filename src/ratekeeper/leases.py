"""Leases: a process takes a slice of a hot key ahead and spends it without asking the store again.

What is spent in any interval was taken in that interval or in the lease before it, so it is at most what the rule
admits in the interval lengthened by the lease. One slice a key is held at most, and what is left of it is given back
once the lease is over and somebody asks; of a counter nothing is spent beyond the window that it was taken in.

`_flow` yields what to ask the store for and is sent the outcome; a sync and an async driver run it.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from ratekeeper.algorithms import FixedWindow, SlidingWindowCounter
from ratekeeper.clock import Clock, stopwatch
from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores.port import Charge, Demand, Operation, Outcome, Recall

_MOST_KEYS = 10_000
_SLICE = 10  # the part of the capacity that is taken ahead at most
_HOT = 3  # hits within a lease that make a key hot
_AT_A_TIME = 2  # leases that a call looks after besides its own
_LONG_US = 1 << 60

Call = tuple[Operation, Sequence[Demand], Charge | None, float]  # the last: for how many seconds
Flow = Generator[Call, Outcome, Outcome]


class _Lease:
    """What is known of one key: how often it is hit, and what is left of its slice."""

    __slots__ = ("demand", "ends_ns", "hits", "left", "outcome", "rests_until_ns", "since_ns", "taken_ns", "taking")

    def __init__(self, since_ns: int) -> None:
        self.since_ns = since_ns  # when the hits began to be counted
        self.hits = 0
        self.taking = False  # whether somebody is about to take a slice
        self.rests_until_ns = 0  # until when none is taken, because one was denied
        self.left = 0  # units
        self.taken_ns = 0
        self.ends_ns = 0
        self.outcome: Any = None  # of the hit that took the slice
        self.demand: Any = None


class Leases:
    """The slices that one limiter of one rule holds. `execute` asks the store, `recall` knows what it denied."""

    def __init__(
        self,
        execute: Callable[..., Any],
        recall: Recall,
        seconds: float,
        deadline: float,
        clock: Clock | None,
    ) -> None:
        self._execute = execute
        self._recall = recall
        self._lease_ns = round(seconds * 1e9)
        self._deadline = deadline
        self._timer = clock or stopwatch
        self._start()
        _all.add(self)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._keys: dict[Hashable, _Lease] = {}
        self._over: deque[tuple[Demand, Charge]] = deque(maxlen=_MOST_KEYS)  # what is to be given back

    def execute(self, operation: Operation, demands: Sequence[Demand]) -> Outcome:
        """Decide from a slice or by the store, in this thread."""
        flow = self._flow(operation, demands)
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

    async def execute_async(self, operation: Operation, demands: Sequence[Demand]) -> Outcome:
        """Decide from a slice or by the store, in this task; what a cancelled one has taken becomes a slice."""
        flow = self._flow(operation, demands)
        try:
            call = next(flow)
            while True:
                sent_ns = self._timer()
                asked = asyncio.ensure_future(self._execute(*call))
                try:
                    outcome = await asyncio.shield(asked)
                except StoreUnavailable as error:
                    call = flow.throw(error)
                except asyncio.CancelledError:
                    flow.close()
                    asked.add_done_callback(partial(self._late, call, sent_ns))
                    raise
                else:
                    call = flow.send(outcome)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    def backs(self, key: Hashable = None) -> list[Call]:
        """End the lease of a key, or all; return what gives back what they have left."""
        with self._lock:
            for held in list(self._keys) if key is None else [key]:
                self._drop(held)
            over, self._over = self._over, deque(maxlen=_MOST_KEYS)
        return [("give_back", [demand], charge, self._deadline) for demand, charge in over]

    def _flow(self, operation: Operation, demands: Sequence[Demand]) -> Flow:
        began_ns = stopwatch()
        (demand,) = demands
        if operation in ("hit", "peek"):
            known = self._spend(demand, operation)
            if known is None and operation == "hit":
                known = self._recall(demands)
            if known is not None:
                return known
        else:
            for call in self.backs(demand.key):  # what it changes is counted by the store
                with suppress(StoreUnavailable):
                    yield call
        outcome = None
        more = self._wanted(demand) if operation == "hit" else 0
        if more:
            outcome = yield from self._take(demand, more)
        if outcome is None:
            outcome = yield operation, demands, None, self._left(began_ns) if more else self._deadline
        for _ in range(_AT_A_TIME):
            left = self._left(began_ns)
            back = self._next_over() if left > self._deadline / 2 else None
            if back is not None:
                with suppress(StoreUnavailable):  # then it expires
                    yield "give_back", [back[0]], back[1], left
        return outcome

    def _take(self, demand: Demand, more: int) -> Generator[Call, Outcome, Outcome | None]:
        """Hit, and take a slice with it; None if that is too much."""
        sent_ns = self._timer()
        try:
            outcome = yield "hit", [demand._replace(cost=demand.cost + more)], None, self._deadline
        finally:
            self._took(demand.key)
        if not outcome.answers[0][0]:
            with self._lock:
                self._keys.setdefault(demand.key, _Lease(sent_ns)).rests_until_ns = self._timer() + self._lease_ns
            return None
        if outcome.degraded:
            yield "give_back", [demand._replace(cost=more)], outcome.charge, self._deadline
            return outcome
        return self._keep(demand, more, outcome, sent_ns)

    def _left(self, began_ns: int) -> float:
        return max(0.001, self._deadline - (stopwatch() - began_ns) / 1e9)

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
                self._drop(demand.key)
                if len(self._keys) >= _MOST_KEYS:
                    self._drop(next(iter(self._keys)))
                self._keys[demand.key] = _Lease(now)
                return 0
            hits = lease.hits
            if now - lease.since_ns >= self._lease_ns:
                lease.since_ns, lease.hits = now, hits // 2
            if hits < _HOT or lease.taking or now < lease.rests_until_ns:
                return 0
            more = min(hits * demand.cost, demand.binding.rule.limit // _SLICE)
            lease.taking = more > 0
            return more

    def _took(self, key: Hashable) -> None:
        with self._lock:
            lease = self._keys.get(key)
            if lease is not None:
                lease.taking = False

    def _keep(self, demand: Demand, more: int, outcome: Outcome, sent_ns: int) -> Outcome:
        with self._lock:
            lease = self._keys.setdefault(demand.key, _Lease(sent_ns))
            self._give_up(lease)
            lease.left, lease.demand, lease.outcome, lease.taken_ns = more, demand, outcome, sent_ns
            lease.ends_ns = sent_ns + min(self._lease_ns, _counts_for_us(demand, outcome) * 1000)
            return _answer(lease, 0)

    def _late(self, call: Call, sent_ns: int, ended: asyncio.Future[Outcome]) -> None:
        """Keep what a hit took that nobody waits for any more."""
        operation, demands, _, _ = call
        if operation == "hit" and not ended.cancelled() and ended.exception() is None:
            outcome = ended.result()
            if outcome.answers[0][0] and not outcome.degraded:
                self._keep(demands[0], demands[0].cost, outcome, sent_ns)

    def _next_over(self) -> tuple[Demand, Charge] | None:
        """Look after a lease that nobody may have asked for any more; return what is to be given back next."""
        with self._lock:
            key = next(iter(self._keys), None)
            if key is not None:
                lease = self._keys.pop(key)
                now = self._timer()
                if 0 <= now - lease.since_ns < 2 * self._lease_ns and lease.taken_ns <= now < lease.ends_ns:
                    self._keys[key] = lease  # as the last
                else:
                    self._give_up(lease)
                    if lease.taking or 0 <= now - lease.since_ns < 2 * self._lease_ns:
                        self._keys[key] = lease
            return self._over.popleft() if self._over else None

    def _drop(self, key: Hashable) -> None:
        lease = self._keys.pop(key, None)
        if lease is not None:
            self._give_up(lease)

    def _give_up(self, lease: _Lease) -> None:
        if lease.left:
            self._over.append((lease.demand._replace(cost=lease.left), lease.outcome.charge))
        lease.left = 0


def _answer(lease: _Lease, passed_us: int) -> Outcome:
    """Answer from a slice: the store's own answer, later, and with what is left of the slice."""
    now_us, ((_, remaining, _, reset_after, _),), *_ = lease.outcome
    answer = (True, remaining + lease.left, 0, max(0, reset_after - passed_us), 0)
    return Outcome(now_us + passed_us, [answer], times_us=lease.outcome.charge.at_us)  # it was taken with the slice


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
