"""The order of waiters: queues of places, and a forecast of when each waiter will leave its place.

Callers that wait for the same keys are in one queue, and only the first in a queue tries. The first in several queues
may share a key, such as a tenant's. Each of them claims the one key that keeps it waiting longest, and later callers
leave that key to it. So each key serves callers in the order of arrival, and a user who waits for a limit of their own
holds up no one else.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from bisect import insort
from collections.abc import Hashable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ratekeeper import forks
from ratekeeper.algorithms.rule import Step
from ratekeeper.clock import Clock
from ratekeeper.stores.breaker import PROBE_US
from ratekeeper.stores.protocol import Demand, Snapshot

if TYPE_CHECKING:
    import asyncio


def _seconds(clock: Clock, until_ns: int | None) -> float | None:
    """Return how long to sleep in real time; a clock that is moved by hand wakes its waiters itself."""
    now_ns = clock()
    if until_ns is None or (hasattr(clock, "subscribe") and now_ns < until_ns):
        return None
    return max(0.0, (until_ns - now_ns) / 1e9)


class Waiter:
    """A caller that sleeps in a thread until a time on its clock, or until it is woken."""

    def __init__(self, clock: Clock) -> None:
        self.nudged = False
        self._clock = clock
        self._subscribe = getattr(clock, "subscribe", None)  # on a clock that is moved by hand
        self._woken = threading.Lock()  # held until woken; an Event may stay locked when a signal interrupts it
        self._woken.acquire()

    def wake(self) -> None:
        """End its sleep, or its next sleep if it is awake. Any thread may call this."""
        with suppress(RuntimeError):  # woken already
            self._woken.release()

    def sleep_until(self, until_ns: int | None) -> None:
        """Sleep until this time on the clock, or until woken; None: only until woken."""
        unsubscribe = self._subscribe(self.wake) if self._subscribe else bool
        try:
            self.sleep(_seconds(self._clock, until_ns))
        finally:
            unsubscribe()

    def sleep(self, seconds: float | None) -> None:
        self._woken.acquire(timeout=-1 if seconds is None else min(seconds, threading.TIMEOUT_MAX))


class AsyncWaiter:
    """A `Waiter` that sleeps in an event loop."""

    def __init__(self, clock: Clock) -> None:
        import asyncio

        self.nudged = False
        self._clock = clock
        self._subscribe = getattr(clock, "subscribe", None)
        self._event = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()

    def wake(self) -> None:
        """End its sleep, or its next sleep if it is awake. Any thread may call this."""
        with suppress(RuntimeError):  # the loop is closed: no caller waits there any more
            self._loop.call_soon_threadsafe(self._event.set)

    async def sleep_until(self, until_ns: int | None) -> None:
        """Sleep until this time on the clock, or until woken; None: only until woken."""
        unsubscribe = self._subscribe(self.wake) if self._subscribe else bool
        try:
            await self.sleep(_seconds(self._clock, until_ns))
        finally:
            unsubscribe()

    async def sleep(self, seconds: float | None) -> None:
        alarm = None if seconds is None else self._loop.call_later(seconds, self._event.set)
        try:
            await self._event.wait()
        finally:
            if alarm is not None:
                alarm.cancel()
        self._event.clear()


class Queue:
    """The places of callers that wait for the same keys, as weak references: abandoned waiters drop out."""

    def __init__(self) -> None:
        self.places: dict[int, weakref.ref[Place]] = {}  # by ticket
        self.forecast: Forecast | None = None

    def present(self) -> list[Place]:
        """Return all places in the queue, in the order of arrival."""
        return [place for reference in list(self.places.values()) if (place := reference()) is not None]

    def first(self) -> Place | None:
        """Return the first place."""
        while True:
            try:
                for held in self.places.values():
                    place = held()
                    if place is not None:
                        return place
            except RuntimeError:  # a garbage-collected place left meanwhile
                continue
            return None


class Place:
    """A place in the queue for some keys. Its kind is what it waits for there: its turn, or its departure."""

    def __init__(self, queues: Queues, kind: str, waiter: Waiter | AsyncWaiter, demands: Sequence[Demand]) -> None:
        self.waiter = waiter
        self.demands = demands
        name = (kind, *map(identity, demands))
        self.served = False
        self.asking = False  # whether its hit is in flight: the store may or may not have counted it
        self.leaves_ns: int | None = None  # when, on the timer, if the queue's forecast includes this place
        self._queues = queues
        self._name = name
        with queues.lock:
            self._ticket = ticket = next(queues.tickets)
            self.queue = queues.by_name.setdefault(name, Queue())
            self.came_first = not self.queue.places
            self.queue.places[ticket] = weakref.ref(self, lambda _: queues.leave(name, ticket))

    def is_first(self) -> bool:
        with self._queues.lock:
            return self.queue.first() is self

    def ahead(self) -> list[Place]:
        """Return the places ahead that still wait, in the order of arrival."""
        with self._queues.lock:
            places = self.queue.present()
        return [place for place in places[: places.index(self)] if not place.served]

    def was_denied(self) -> None:
        """Discard the forecast if it was made while this hit was in flight, and so does not include it."""
        with self._queues.lock:
            behind = self.queue.present() if self.leaves_ns is None and self.queue.forecast is not None else []
            self.queue.forecast = None if behind else self.queue.forecast
        for place in behind:
            place.leaves_ns = None
            place.waiter.wake()

    def claim(self, demand: Demand) -> None:
        """Claim this demand's key, ahead of all later callers."""
        self._queues.claim(self._ticket, identity(demand), self.waiter)

    def must_yield(self) -> bool:
        """Tell whether an earlier caller waits for one of these keys; if so, claim that key too."""
        with self._queues.lock:
            return self._must_yield()

    def _must_yield(self) -> bool:
        # No loop within a `with`: from Python 3.12 on, a signal at its jump back would leave the lock locked.
        for demand in self.demands:
            if self._queues.claimed_before(self._ticket, identity(demand)):
                self.claim(demand)
                return True
        return False

    def leave(self) -> None:
        """Leave the queue, unless already done, and wake the next first place."""
        self._queues.leave(self._name, self._ticket, as_foreseen=self.served or self.leaves_ns is None)


class Queues:
    """All queues of one store in this process."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all waiters."""
        self.lock = threading.RLock()  # a garbage-collected place leaves its queue at any moment
        self.tickets = itertools.count()  # the order of arrival
        self.by_name: dict[Hashable, Queue] = {}
        self.claims: dict[Hashable, list[int]] = {}  # by key: the tickets of the places that wait for it, in order
        self._claimed: dict[int, tuple[Hashable, Waiter | AsyncWaiter]] = {}  # by ticket

    def leave(self, name: Hashable, ticket: int, *, as_foreseen: bool = False) -> None:
        """Remove a place from its queue and wake the next first place."""
        with self.lock:
            if ticket in self._claimed:
                self._disclaim(ticket)
            queue = self.by_name.get(name)
            if queue is None or ticket not in queue.places:
                return
            del queue.places[ticket]
            if not queue.places:
                del self.by_name[name]
                return
            if not as_foreseen:
                queue.forecast = None  # the places behind move up
            following = queue.first()
        if following is not None:
            following.waiter.wake()

    def claim(self, ticket: int, key: Hashable, waiter: Waiter | AsyncWaiter) -> None:
        """Note that the place with this ticket waits for this key, and for no other."""
        with self.lock:
            if self._claimed.get(ticket, (None,))[0] != key:
                if ticket in self._claimed:
                    self._disclaim(ticket)
                self._claimed[ticket] = key, waiter
                claims = self.claims.get(key, [])
                insort(claims, ticket)
                self.claims[key] = claims  # a garbage-collected place may have given up the last claim meanwhile

    def claimed_before(self, ticket: int, key: Hashable) -> bool:
        """Tell whether an earlier caller waits for this key."""
        claims = self.claims.get(key)
        return claims is not None and claims[0] < ticket

    def _disclaim(self, ticket: int) -> None:
        """Give up a claim, and wake the place that is then the first to wait for that key."""
        key = self._claimed[ticket][0]
        claims = self.claims.get(key, [])
        if ticket in claims:  # not if an interruption came in between
            claims.remove(ticket)
        if claims:
            self._claimed[claims[0]][1].wake()
        else:
            self.claims.pop(key, None)
        del self._claimed[ticket]

    def nudge(self, demands: Sequence[Demand]) -> None:
        """Let the first place of each queue for one of these keys try again, because usage was given back."""
        if not self.by_name:
            return
        keys = {identity(demand) for demand in demands}
        with self.lock:
            self._nudge(keys)

    def _nudge(self, keys: set[Hashable]) -> None:
        for queue in list(self.by_name.values()):  # a garbage-collected place may leave meanwhile
            place = queue.first()
            if place is not None and not keys.isdisjoint(map(identity, place.demands)):
                queue.forecast = None
                place.waiter.nudged = True
                place.waiter.wake()


class Forecast:
    """When the places in a queue will be admitted if no other request comes, computed on copies of the states."""

    def __init__(self, snapshot: Snapshot, timer_ns: int) -> None:
        self._rules = snapshot.rules
        self._states = list(snapshot.states)
        self._at_us = snapshot.now_us
        self._timer_offset_ns = timer_ns - snapshot.now_us * 1000

    def foresee(self, place: Place, timer_ns: int, deadline: int | None = None) -> int:
        """Return when, on the timer, the last place in the queue will leave, and include it if that is in time."""
        costs = [demand.cost for demand in place.demands]
        at_us = max(self._at_us, (timer_ns - self._timer_offset_ns) // 1000)
        while True:
            steps = self._steps(costs, at_us, consume=False)
            denied = [step[3] for step in steps if not step[1]]
            if not denied:
                break
            if None in denied:  # more than this process's share of the limit: at best the store is back then
                at_us += PROBE_US
                break
            at_us += max(retry for retry in denied if retry is not None)
        leaves_ns = (at_us + max(step[5] for step in steps)) * 1000 + self._timer_offset_ns
        if deadline is None or leaves_ns <= deadline:
            self._at_us = at_us
            self._states = [step[0] for step in self._steps(costs, at_us, consume=True)]
            place.leaves_ns = leaves_ns
        return leaves_ns

    def _steps(self, costs: Sequence[int], at_us: int, *, consume: bool) -> list[Step]:
        return [
            rule.decide(state, at_us, cost, consume)
            for rule, state, cost in zip(self._rules, self._states, costs, strict=True)
        ]


class _AllQueues:
    """The queues of every store."""

    def __init__(self) -> None:
        self._of: weakref.WeakKeyDictionary[Any, Queues] = weakref.WeakKeyDictionary()
        forks.renew_in_child(self)

    def of(self, store: Any) -> Queues:
        return self._of.get(store) or self._of.setdefault(store, Queues())  # one C call: all threads get the same

    def after_fork(self) -> None:
        """Start with empty queues: the waiters do not exist in the child."""
        for queues in list(self._of.values()):
            queues.clear()


_all_queues = _AllQueues()
queues_of = _all_queues.of
"""Return the queues of a store, which all limiters on it share."""


def identity(demand: Demand) -> Hashable:
    """Return what identifies a key of a rule in the names of queues."""
    return demand.binding.space, demand.key
