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

    __slots__ = (
        "charge",
        "demand",
        "ends_ns",
        "hits",
        "left",
        "rests_until_ns",
        "seen",
        "seen_ns",
        "since_ns",
        "taken_ns",
        "taking",
    )

    def __init__(self, since_ns: int) -> None:
        self.since_ns = since_ns  # when the hits began to be counted
        self.hits = 0
        self.taking = False  # whether somebody is about to take a slice
        self.rests_until_ns = 0  # until when none is taken, because one was denied
        self.left = 0  # units
        self.taken_ns = 0
        self.ends_ns = 0
        self.charge: Any = None  # what took the slice
        self.demand: Any = None
        self.seen: Any = None  # the latest outcome of the store
        self.seen_ns = 0


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
        self._took = 0.0  # seconds that the latest answer took
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
                began_ns = stopwatch()
                try:
                    outcome = self._execute(*call)
                except StoreUnavailable as error:
                    call = flow.throw(error)
                else:
                    self._took = (stopwatch() - began_ns) / 1e9
                    call = flow.send(outcome)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        finally:
            flow.close()

    async def execute_async(self, operation: Operation, demands: Sequence[Demand]) -> Outcome:
        """Decide from a slice or by the store, in this task; what a cancelled one has taken becomes a slice."""
        flow = self._flow(operation, demands)
        try:
            call = next(flow)
            while True:
                began_ns, sent_ns = stopwatch(), self._timer()
                asked = asyncio.ensure_future(self._execute(*call))
                try:
                    outcome = await asyncio.shield(asked)
                except StoreUnavailable as error:
                    call = flow.throw(error)
                except asyncio.CancelledError:
                    asked.add_done_callback(partial(self._late, call, sent_ns))
                    raise
                else:
                    self._took = (stopwatch() - began_ns) / 1e9
                    call = flow.send(outcome)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        finally:
            flow.close()

    def backs(self, key: Hashable = None) -> list[Call]:
        """End the lease of a key, or all; return what gives back what they have left."""
        with self._lock:
            over = self._end(key)
        return [("give_back", [demand], charge, self._deadline) for demand, charge in over]

    def _flow(self, operation: Operation, demands: Sequence[Demand]) -> Flow:
        began_ns = stopwatch()
        (demand,) = demands
        gave = False
        if operation in ("hit", "peek"):
            known = self._spend(demand, operation)
            if known is None and operation == "hit":
                known = self._recall(demands)
            if known is not None:
                return known
        elif operation == "reset":
            self.backs(demand.key)  # which the store forgets with all else
        else:
            gave = yield from self._give_back(began_ns, demand.key)  # what it changes is counted by the store
        outcome = None
        more = self._wanted(demand) if operation == "hit" else 0
        if more:
            outcome = yield from self._take(demand, more)
        if outcome is None:
            sent_ns = self._timer()
            outcome = yield operation, demands, None, self._left(began_ns) if more or gave else self._deadline
            denied = operation == "hit" and outcome.answers[0][2] and not outcome.degraded
            if denied and (yield from self._give_back(began_ns, demand.key)):  # it may have been what was missing
                outcome = yield operation, demands, None, self._left(began_ns)
            outcome = self._saw(demand, outcome, sent_ns)
        yield from self._give_back(began_ns)
        return outcome

    def _give_back(self, began_ns: int, key: Hashable = None) -> Generator[Call, Outcome, bool]:
        """Give back some of what leases have left, a key's or any that is over, while there is time; tell if any."""
        gives = False
        spare = self._deadline / 2 + (0 if key is None else self._took)  # for what is asked afterwards
        for _ in range(_AT_A_TIME):
            left = self._left(began_ns)
            back = self._next_over(key) if left > spare else None
            if back is not None:
                gives = True
                sent_ns = self._timer()
                with suppress(StoreUnavailable):  # then it expires
                    outcome = yield "give_back", [back[0]], back[1], left
                    self._saw(back[0], outcome, sent_ns)
        return gives

    def _take(self, demand: Demand, more: int) -> Generator[Call, Outcome, Outcome | None]:
        """Hit, and take a slice with it; None if that is too much."""
        sent_ns = self._timer()
        try:
            outcome = yield "hit", [demand._replace(cost=demand.cost + more)], None, self._deadline
        finally:
            self._has_taken(demand.key)
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
            return _answer(lease, now)

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
            most = demand.binding.rule.limit // _SLICE
            if hits < _HOT or lease.taking or now < lease.rests_until_ns or most < demand.cost:
                return 0
            lease.taking = True
            return min(hits * demand.cost, most)

    def _has_taken(self, key: Hashable) -> None:
        lease = self._keys.get(key)  # without the lock: a flow may end as garbage while this thread holds it
        if lease is not None:
            lease.taking = False

    def _keep(self, demand: Demand, more: int, outcome: Outcome, sent_ns: int) -> Outcome:
        with self._lock:
            lease = self._keys.setdefault(demand.key, _Lease(sent_ns))
            self._give_up(lease)
            lease.left, lease.demand, lease.charge, lease.taken_ns = more, demand, outcome.charge, sent_ns
            lease.ends_ns = sent_ns + min(self._lease_ns, _counts_for_us(demand, outcome) * 1000)
            lease.seen, lease.seen_ns = outcome, sent_ns
            return _answer(lease, sent_ns)

    def _saw(self, demand: Demand, outcome: Outcome, sent_ns: int) -> Outcome:
        """Note how a key stands of which a slice is held; what is left of that remains besides what the store says."""
        with self._lock:
            lease = self._keys.get(demand.key)
            if lease is None or not lease.left or outcome.degraded or sent_ns < lease.seen_ns:
                return outcome
            lease.seen, lease.seen_ns = outcome, sent_ns
            allowed, remaining, retry_after, reset_after, delay = outcome.answers[0]
            answer = (True, remaining + lease.left, retry_after, reset_after, delay)
            return outcome._replace(answers=[answer]) if allowed else outcome

    def _late(self, call: Call, sent_ns: int, ended: asyncio.Future[Outcome]) -> None:
        """Keep what a hit took that nobody waits for any more."""
        operation, demands, _, _ = call
        if operation == "hit" and not ended.cancelled() and ended.exception() is None:
            outcome = ended.result()
            if outcome.answers[0][0] and not outcome.degraded:
                self._keep(demands[0], demands[0].cost, outcome, sent_ns)

    def _next_over(self, key: Hashable = None) -> tuple[Demand, Charge] | None:
        """Return what is to be given back next, of a key, whose lease ends with that, or of any."""
        with self._lock:
            if key is None:
                self._look_after_one()
            elif key in self._keys:
                self._give_up(self._keys[key])
            back = next((back for back in self._over if key in (None, back[0].key)), None)
            if back is not None:
                self._over.remove(back)
            return back

    def _look_after_one(self) -> None:
        """Look after a lease that nobody may have asked for any more."""
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

    def _end(self, key: Hashable) -> list[tuple[Demand, Charge]]:
        """End the lease of a key, or all; a loop of its own, since within a `with` a signal might leave that locked."""
        for held in list(self._keys) if key is None else [key]:
            self._drop(held)
        over = [back for back in self._over if key in (None, back[0].key)]
        for back in over:
            self._over.remove(back)
        return over

    def _drop(self, key: Hashable) -> None:
        lease = self._keys.pop(key, None)
        if lease is not None:
            self._give_up(lease)

    def _give_up(self, lease: _Lease) -> None:
        if lease.left:
            self._over.append((lease.demand._replace(cost=lease.left), lease.charge))
        lease.left = 0


def _answer(lease: _Lease, now_ns: int) -> Outcome:
    """Answer from a slice: the store's own answer, later, and with what is left of the slice."""
    passed_us = now_ns // 1000 - lease.seen_ns // 1000
    now_us, ((_, remaining, _, reset_after, _),), *_ = lease.seen
    answer = (True, remaining + lease.left, 0, max(0, reset_after - passed_us), 0)
    return Outcome(now_us + passed_us, [answer], times_us=lease.charge.at_us)  # it was taken with the slice


def _counts_for_us(demand: Demand, outcome: Outcome) -> int:
    """Return for how long what was taken may be spent: of a counter, until its window ends."""
    spendable_us = demand.binding.rule.spendable_us(outcome.answers[0][3])
    return _LONG_US if spendable_us is None else spendable_us


_all: weakref.WeakSet[Leases] = weakref.WeakSet()


def _start_again() -> None:
    """In a forked child the slices are the parent's to spend."""
    for leases in _all:
        leases._start()  # noqa: SLF001


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_again)
