"""The order of waiters: queues of places.

Callers that wait for the same keys are in one queue, and only the first in a queue tries. The first in several queues
may share a key, such as a tenant's. Each of them claims the one key that keeps it waiting longest, and later callers
leave that key to it. So each key serves callers in the order of arrival, and a user who waits for a limit of their own
holds up no one else.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Container, Hashable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ratekeeper import event_loops, forks
from ratekeeper.clock import Clock
from ratekeeper.forecasts import Outlook
from ratekeeper.stores.protocol import Demand

if TYPE_CHECKING:
    import asyncio

_ONE_KEY = 2  # parts of a queue's name
_PAUSE_NS = 250_000_000
_PAUSE_EACH_NS = 400_000


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

    def sleep_until(self, until_ns: int | None) -> int:
        """Sleep until this time on the clock, or until woken; None: only until woken.

        Return by how much the clock was set back meanwhile.
        """
        began_ns = self._clock()
        unsubscribe = self._subscribe(self.wake) if self._subscribe else bool
        try:
            self.sleep(_seconds(self._clock, until_ns))
        finally:
            unsubscribe()
        return max(0, began_ns - self._clock())

    def sleep(self, seconds: float | None) -> None:
        self._woken.acquire(timeout=-1 if seconds is None else min(seconds, threading.TIMEOUT_MAX))


class AsyncWaiter:
    """A `Waiter` that sleeps in an event loop, which keeps it and its task alive meanwhile."""

    def __init__(self, clock: Clock) -> None:
        import asyncio

        self.nudged = False
        self._clock = clock
        self._subscribe = getattr(clock, "subscribe", None)
        self._event = asyncio.Event()
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        event_loops.watch(self.loop, _all_queues.closed)

    def wake(self) -> None:
        """End its sleep, or its next sleep if it is awake. Any thread may call this."""
        with suppress(RuntimeError):  # the loop is closed: no caller waits there any more
            self.loop.call_soon_threadsafe(self._event.set)

    async def sleep_until(self, until_ns: int | None) -> int:
        """Sleep until this time on the clock, or until woken; None: only until woken.

        Return by how much the clock was set back meanwhile.
        """
        began_ns = self._clock()
        unsubscribe = self._subscribe(self.wake) if self._subscribe else bool
        try:
            await self.sleep(_seconds(self._clock, until_ns))
        finally:
            unsubscribe()
        return max(0, began_ns - self._clock())

    async def sleep(self, seconds: float | None) -> None:
        alarm = None if seconds is None else self.loop.call_later(seconds, self._event.set)
        event_loops.keep(self.loop, self)
        try:
            await self._event.wait()
        finally:
            event_loops.release(self.loop, self)
            if alarm is not None:
                alarm.cancel()
        self._event.clear()


class Queue:
    """The places of callers that wait for the same keys, as weak references: abandoned waiters drop out."""

    def __init__(self) -> None:
        self.places: OrderedDict[int, weakref.ref[Place]] = OrderedDict()  # by ticket; a dict is slow to find the first
        self.outlook: Outlook | None = None  # once a caller with a timeout waits

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

    def __init__(
        self,
        queues: Queues,
        kind: str,
        waiter: Waiter | AsyncWaiter,
        demands: Sequence[Demand],
        deadline_ns: int | None = None,
    ) -> None:
        self.waiter = waiter
        self.demands = demands
        self.deadline_ns = deadline_ns
        name = (kind, *map(identity, demands))
        self.served = False
        self.asking = False  # whether its hit is in flight: the store may or may not have counted it
        self.leaves_ns: int | None = None  # when, on the timer, as far as that is known
        self.counted_in = 0  # the number of the forecast that counts it
        self._queues = queues
        self._name = name
        with queues.lock:
            self.ticket = ticket = next(queues.tickets)
            self.queue = queue = queues.by_name.get(name) or Queue()
            self.came_first = not queue.places
            queue.places[ticket] = weakref.ref(self, lambda _: queues.leave(name, ticket))
            if queues.by_name.get(name) is not queue:  # it is new, or its last place was garbage-collected meanwhile
                queues.add(name, queue)

    def is_first(self) -> bool:
        with self._queues.lock:
            return self.queue.first() is self

    def outlook(self, timer_ns: int) -> Outlook | None:
        """Return the forecast of this queue, if there is one or this place needs one; it counts this place."""
        with self._queues.lock:
            outlook = self.queue.outlook
            if outlook is not None:
                outlook.join(self, timer_ns)
            elif self.deadline_ns is not None:
                outlook = self.queue.outlook = Outlook(self._queues.lock, self.queue.places)
        return outlook

    def set_back(self, by_ns: int, timer_ns: int) -> None:
        """Note that the clock was set back, to this time."""
        if self.deadline_ns is not None:
            self.deadline_ns -= by_ns
        if self.queue.outlook is not None:
            self.queue.outlook.set_back(self, timer_ns)

    def was_denied(self, timer_ns: int, degraded: bool) -> None:
        """Note that this place's hit was denied: by the store, or by the fallback."""
        if degraded:
            self._queues.degraded[self.ticket] = self.waiter
        if self.queue.outlook is not None:
            self.queue.outlook.was_denied(self, timer_ns, degraded)

    def claim(self, demand: Demand) -> None:
        """Claim this demand's key, ahead of all later callers."""
        self._queues.claim(self.ticket, identity(demand), self.waiter)

    def must_yield(self) -> bool:
        """Tell whether an earlier caller waits for one of these keys; if so, claim that key too."""
        with self._queues.lock:
            return self._must_yield()

    def _must_yield(self) -> bool:
        # No loop within a `with`: from Python 3.12 on, a signal at its jump back would leave the lock locked.
        for demand in self.demands:
            if self._queues.claimed_before(self.ticket, identity(demand)):
                self.claim(demand)
                return True
        return False

    def leave(self) -> None:
        """Leave the queue, unless already done, and wake the next first place."""
        try:
            self._queues.leave(self._name, self.ticket, self)
        except BaseException:  # raised by a signal handler, in the middle of it
            self._queues.leave(self._name, self.ticket, self)
            self._queues.wake_first(self._name)
            raise


class Queues:
    """All queues of one store in this process."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all waiters."""
        self.lock = threading.RLock()  # a garbage-collected place leaves its queue at any moment
        self.tickets = itertools.count()  # the order of arrival
        self.by_name: dict[tuple[Hashable, ...], Queue] = {}
        self._of_several: dict[Hashable, set[tuple[Hashable, ...]]] = {}  # by key: the names of queues for several keys
        self.claims: dict[Hashable, list[int]] = {}  # by key: the tickets of the places that wait for it, in order
        self.degraded: dict[int, Waiter | AsyncWaiter] = {}  # by ticket: callers that the fallback denied
        self._claimed: dict[int, tuple[Hashable, Waiter | AsyncWaiter]] = {}  # by ticket

    def add(self, name: tuple[Hashable, ...], queue: Queue) -> None:
        """Add a queue; its name is the kind of its places and the identities of its keys."""
        self.by_name[name] = queue
        if len(name) > _ONE_KEY:
            for key in name[1:]:
                self._of_several.setdefault(key, set()).add(name)

    def leave(self, name: tuple[Hashable, ...], ticket: int, place: Place | None = None) -> None:
        """Remove a place (None: it was garbage-collected) from its queue, and wake the next first place."""
        self.degraded.pop(ticket, None)
        with self.lock:
            if ticket in self._claimed:
                self._disclaim(ticket)
            queue = self.by_name.get(name)
            if queue is None or (queue.places and ticket not in queue.places):
                return
            if queue.outlook is not None:
                queue.outlook.left(ticket, place)
            queue.places.pop(ticket, None)
            if not queue.places:
                self._remove(name)
                return
            following = queue.first()
        if following is not None:
            following.waiter.wake()

    def wake_first(self, name: tuple[Hashable, ...]) -> None:
        """Wake the first place of a queue."""
        queue = self.by_name.get(name)
        first = None if queue is None else queue.first()
        if first is not None:
            first.waiter.wake()

    def _remove(self, name: tuple[Hashable, ...]) -> None:
        if len(name) > _ONE_KEY:
            for key in name[1:]:
                names = self._of_several.get(key, set())
                names.discard(name)
                if not names:
                    self._of_several.pop(key, None)
        self.by_name.pop(name, None)

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
        at = bisect_left(claims, ticket)
        if ticket in claims[at : at + 1]:  # not if an interruption came in between
            del claims[at]
        if claims:
            self._claimed[claims[0]][1].wake()
        else:
            self.claims.pop(key, None)
        del self._claimed[ticket]

    @property
    def size(self) -> int:
        """How many callers wait."""
        return sum(len(queue.places) for queue in list(self.by_name.values()))

    @property
    def pause_ns(self) -> int:
        """How long to sleep before asking again a store that did not decide; longer if there are many callers."""
        return max(_PAUSE_NS, len(self.degraded) * _PAUSE_EACH_NS)

    def store_is_back_for(self, place: Place) -> None:
        """Wake all callers that the fallback denied, this place among them, because the store decides again."""
        if self.degraded.pop(place.ticket, None) is None:
            return
        others, self.degraded = self.degraded, {}
        for waiter in others.values():
            waiter.nudged = True
            waiter.wake()

    def drop_those_in(self, loop: object) -> None:
        """Remove the places of callers in this event loop, which was closed."""
        for name, queue in list(self.by_name.items()):
            for ticket, held in list(queue.places.items()):
                place = held()
                if place is not None and getattr(place.waiter, "loop", None) is loop:
                    self.leave(name, ticket, place)

    def nudge(self, demands: Sequence[Demand]) -> None:
        """Let the first place of each queue for one of these keys try again, because usage was given back."""
        if not self.by_name:
            return
        with self.lock:
            self._nudge(demands)

    def nudge_all(self, spaces: Container[object]) -> None:
        """Let the first place of each queue for a key in one of these spaces try again."""
        with self.lock:
            self._nudge(self._awaited_in(spaces))

    def _awaited_in(self, spaces: Container[object]) -> list[Demand]:
        first = [queue.first() for queue in list(self.by_name.values())]
        return [each for place in first if place is not None for each in place.demands if each.binding.space in spaces]

    def _nudge(self, demands: Sequence[Demand]) -> None:
        names: set[tuple[Hashable, ...]] = set()
        for demand in demands:
            key = identity(demand)
            names.add(("turn", key))
            names |= self._of_several.get(key, set())
        for name in names:
            queue = self.by_name.get(name)
            place = None if queue is None else queue.first()
            if queue is not None and place is not None:
                if queue.outlook is not None:
                    queue.outlook.gained()
                place.waiter.nudged = True
                place.waiter.wake()


class _AllQueues:
    """The queues of every store."""

    def __init__(self) -> None:
        self._of: weakref.WeakKeyDictionary[Any, Queues] = weakref.WeakKeyDictionary()
        forks.renew_in_child(self)

    def of(self, store: Any) -> Queues:
        return self._of.get(store) or self._of.setdefault(store, Queues())  # one C call: all threads get the same

    def closed(self, loop: weakref.ref[Any]) -> None:
        """Drop the callers that waited in an event loop that was closed."""
        it = loop()
        for queues in list(self._of.values()):
            if it is not None:  # otherwise they were garbage-collected, too
                queues.drop_those_in(it)

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
