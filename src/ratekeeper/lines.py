"""Who waits, and in which order: lines of places, and a forecast of when each will be left.

Those who wait for the same keys stand in one line, and only its first tries. The first of different lines may share a
key, a tenant's say: each of them claims the one key that keeps it waiting longest, and whoever came later leaves that
key to it. So a key serves in the order of arrival, and a user who waits for a limit of his own holds up nobody else.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import weakref
from bisect import insort
from collections.abc import Hashable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

from ratekeeper.algorithms.rule import Step
from ratekeeper.stores.port import Charge, Demand


class Waiter:
    """One caller that sleeps in a thread."""

    charge: Charge | None = None  # what it took, once admitted: what a give-back names

    def __init__(self) -> None:
        self.nudged = False
        self._woken = threading.Lock()  # held until woken; an Event may stay locked when a signal interrupts it
        self._woken.acquire()

    def wake(self) -> None:
        with suppress(RuntimeError):  # woken already
            self._woken.release()

    def sleep(self, seconds: float | None) -> None:
        self._woken.acquire(timeout=-1 if seconds is None else min(seconds, threading.TIMEOUT_MAX))


class AsyncWaiter:
    """One caller that sleeps in an event loop; anyone may wake it from any thread."""

    charge: Charge | None = None  # as above

    def __init__(self) -> None:
        self.nudged = False
        self._event = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def wake(self) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody is waiting there any more
            self._loop.call_soon_threadsafe(self._event.set)

    async def sleep(self, seconds: float | None) -> None:
        alarm = None if seconds is None else self._loop.call_later(seconds, self._event.set)
        try:
            await self._event.wait()
        finally:
            if alarm is not None:
                alarm.cancel()
        self._event.clear()


class Line:
    """The places of those who wait for the same keys, held weakly: who is gone, however that came, waits no more."""

    def __init__(self) -> None:
        self.places: dict[int, weakref.ref[Place]] = {}  # by their tickets
        self.forecast: Forecast | None = None

    def present(self) -> list[Place]:
        """Return who is in line, first come first."""
        return [place for reference in list(self.places.values()) if (place := reference()) is not None]

    def first(self) -> Place | None:
        """Return who is first in line."""
        while True:
            with suppress(RuntimeError):  # a place that is garbage left meanwhile
                return next((place for held in self.places.values() if (place := held()) is not None), None)


class Place:
    """A place in a line, left at the end of its `with` block at the latest."""

    def __init__(self, lines: Lines, name: Hashable, waiter: Waiter | AsyncWaiter, demands: Sequence[Demand]) -> None:
        self.waiter = waiter
        self.demands = demands
        self.served = False
        self.asking = False  # whether its hit is under way: the store may have counted it already, or not
        self.leaves_ns: int | None = None  # when, on the timer, if the line's forecast counts on this place
        self._lines = lines
        self._name = name
        with lines.lock:
            self._ticket = ticket = next(lines.tickets)
            self.line = lines.by_name.setdefault(name, Line())
            self.line.places[ticket] = weakref.ref(self, lambda _: lines.leave(name, ticket))

    def is_first(self) -> bool:
        with self._lines.lock:
            return self.line.first() is self

    def ahead(self) -> list[Place]:
        """Return those who came before and still wait, first come first."""
        with self._lines.lock:
            places = self.line.present()
        return [place for place in places[: places.index(self)] if not place.served]

    def was_denied(self) -> None:
        """Let the line be foreseen anew if that was done while this hit was under way, and did not count on it."""
        with self._lines.lock:
            behind = self.line.present() if self.leaves_ns is None and self.line.forecast is not None else []
            self.line.forecast = None if behind else self.line.forecast
        for place in behind:
            place.leaves_ns = None
            place.waiter.wake()

    def claim(self, demand: Demand) -> None:
        """Wait for this one's key, before all who came later."""
        self._lines.claim(self._ticket, identity(demand), self.waiter)

    def must_yield(self) -> bool:
        """Tell whether somebody who came earlier waits for one of these keys; if so, wait for that key as well."""
        with self._lines.lock:
            return self._must_yield()

    def _must_yield(self) -> bool:
        # No loop within a `with`: from Python 3.12 on a signal at its jump back would leave the lock locked.
        for demand in self.demands:
            if self._lines.claimed_before(self._ticket, identity(demand)):
                self.claim(demand)
                return True
        return False

    def leave(self) -> None:
        """Leave the line, if not yet done, and wake whoever is first then."""
        self._lines.leave(self._name, self._ticket, as_foreseen=self.served or self.leaves_ns is None)

    def __enter__(self) -> Place:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.leave()


class Lines:
    """All lines of one store in this process."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a place that is garbage leaves its line at any moment
        self.tickets = itertools.count()  # the order of arrival
        self.by_name: dict[Hashable, Line] = {}
        self._claims: dict[Hashable, list[int]] = {}  # by key: the tickets of those who wait for it, in order
        self._claimed: dict[int, tuple[Hashable, Waiter | AsyncWaiter]] = {}  # by ticket

    def wait_for(self, name: Hashable, demands: Sequence[Demand]) -> bool:
        """Tell whether somebody stands in the line of this name, or waits for one of these keys in another."""
        return bool(self.by_name) and (
            name in self.by_name or any(identity(demand) in self._claims for demand in demands)
        )

    def leave(self, name: Hashable, ticket: int, *, as_foreseen: bool = False) -> None:
        """Take a place out of its line and wake whoever is first then."""
        with self.lock:
            self._disclaim(ticket)
            line = self.by_name.get(name)
            if line is None or ticket not in line.places:
                return
            del line.places[ticket]
            if not line.places:
                del self.by_name[name]
                return
            if not as_foreseen:
                line.forecast = None  # those behind move up
            following = line.first()
        if following is not None:
            following.waiter.wake()

    def claim(self, ticket: int, key: Hashable, waiter: Waiter | AsyncWaiter) -> None:
        """Note that whoever has this ticket waits for this key, and for no other."""
        with self.lock:
            if self._claimed.get(ticket, (None,))[0] != key:
                self._disclaim(ticket)
                self._claimed[ticket] = key, waiter
                claims = self._claims.get(key, [])
                insort(claims, ticket)
                self._claims[key] = claims  # a place that is garbage may have given up the last claim meanwhile

    def claimed_before(self, ticket: int, key: Hashable) -> bool:
        """Tell whether somebody who came earlier waits for this key."""
        claims = self._claims.get(key)
        return claims is not None and claims[0] < ticket

    def _disclaim(self, ticket: int) -> None:
        """Give up a claim, if there is one, and wake whoever is first to wait for that key then."""
        if ticket not in self._claimed:
            return
        key = self._claimed[ticket][0]
        claims = self._claims.get(key, [])
        if ticket in claims:  # not if an interruption came between the two
            claims.remove(ticket)
        if claims:
            self._claimed[claims[0]][1].wake()
        else:
            self._claims.pop(key, None)
        del self._claimed[ticket]

    def nudge(self, demands: Sequence[Demand]) -> None:
        """Let the first in each line that waits for one of these keys try again: something was given back."""
        if not self.by_name:
            return
        keys = {identity(demand) for demand in demands}
        with self.lock:
            self._nudge(keys)

    def _nudge(self, keys: set[Hashable]) -> None:
        for line in list(self.by_name.values()):  # a place that is garbage may leave meanwhile
            place = line.first()
            if place is not None and not keys.isdisjoint(map(identity, place.demands)):
                line.forecast = None
                place.waiter.nudged = True
                place.waiter.wake()


class Forecast:
    """When those in line will be admitted if nobody else comes, by the rules' own step on copies of the states."""

    def __init__(self, now_us: int, states: list[Any], timer_ns: int) -> None:
        self._states = states
        self._at_us = now_us
        self._timer_offset_ns = timer_ns - now_us * 1000

    def foresee(self, place: Place, timer_ns: int, deadline: int | None = None) -> int:
        """Return when, on the timer, a place behind all others will be left, and count on it if that is in time."""
        demands = place.demands  # none of them above its limit, so this comes to an end
        at_us = max(self._at_us, (timer_ns - self._timer_offset_ns) // 1000)
        while True:
            steps = self._steps(demands, at_us, consume=False)
            denied = [step[3] or 0 for step in steps if not step[1]]
            if not denied:
                break
            at_us += max(denied)
        leaves_ns = (at_us + max(step[5] for step in steps)) * 1000 + self._timer_offset_ns
        if deadline is None or leaves_ns <= deadline:
            self._at_us = at_us
            self._states = [step[0] for step in self._steps(demands, at_us, consume=True)]
            place.leaves_ns = leaves_ns
        return leaves_ns

    def _steps(self, demands: Sequence[Demand], at_us: int, *, consume: bool) -> list[Step]:
        return [
            demand.binding.rule.decide(state, at_us, demand.cost, consume)
            for demand, state in zip(demands, self._states, strict=True)
        ]


_lines: weakref.WeakKeyDictionary[Any, Lines] = weakref.WeakKeyDictionary()
_lines_lock = threading.Lock()


def _forget_all() -> None:
    """In a forked child those who stood in line do not exist any more."""
    global _lines_lock  # noqa: PLW0603 - a thread that held it does not exist either
    _lines_lock = threading.Lock()
    for lines in _lines.values():
        lines.__init__()  # type: ignore[misc]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def lines_of(store: Any) -> Lines:
    """Return the lines of a store, the same for all limiters on it."""
    with _lines_lock:
        return _lines.setdefault(store, Lines())


def identity(demand: Demand) -> Hashable:
    """Return what a line is named by: one key of one rule."""
    return demand.binding.space, demand.key
