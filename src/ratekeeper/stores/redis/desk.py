"""How threads share calls: what waits while a call is under way goes together into the next one.

From Python 3.12 on, a signal that is handled at a jump back of a loop leaves the `with` or `try` around the loop
without its exit, and a lock locked. So no loop stands within one where that matters: it is called.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from ratekeeper.clock import stopwatch
from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores.protocol import Outcome
from ratekeeper.stores.redis.base import MOST_IN_A_CALL, MOST_IN_FLIGHT, interrupted, tells, unavailable
from ratekeeper.stores.redis.exchange import Address
from ratekeeper.stores.redis.turns import LOOK_AFTER
from ratekeeper.stores.redis.wire import Request, Result

if TYPE_CHECKING:
    from ratekeeper.stores.redis.sync import RedisStore


class _Place:
    """One thread's request on its way."""

    result: Result | None = None
    served = False
    leader: _Place | None = None  # who sends it
    sent_ns: int | None = None  # when it sent what it leads
    _called: Any = None  # a lock that is held until this place is served or is to lead; a lone one has none

    def __init__(self, request: Request, ends_ns: int, asked_ns: int | None = None) -> None:
        self.request = request
        self.asked_ns = asked_ns or stopwatch()
        self.ends_ns = ends_ns

    def expect_call(self) -> None:
        self._called = threading.Lock()
        self._called.acquire()

    def call(self) -> None:
        if self._called is not None:
            with suppress(RuntimeError):  # called already
                self._called.release()

    def sleep(self, seconds: float) -> None:
        if self._called is None:
            self.expect_call()
        if not self.served:  # from here on, who serves it will call
            self._called.acquire(timeout=seconds)


class Desk:
    """The calls to one server. Up to two are under way at a time.

    A thread that finds a free one leads: it sends what waits, its own request included, reads the answers and hands
    them out.
    """

    def __init__(self, store: RedisStore, address: Address | None) -> None:
        self._store = store
        self._breaker = store.breaker_of(address)
        self._lock = threading.Lock()
        self._waiting: deque[_Place] = deque()
        self._leaders: set[_Place] = set()
        self._crowded = False  # whether the latest call was for several

    def execute(self, request: Request, ends_ns: int, asked_ns: int | None = None) -> Outcome:
        """Have a request decided, or a part of one that was asked for earlier, with what other threads ask for."""
        breaker = self._breaker
        if breaker.is_open:
            with breaker.asking(ends_ns):
                return self._take_part(request, ends_ns, asked_ns)
        try:
            outcome = self._take_part(request, ends_ns, asked_ns)
        except StoreUnavailable as error:
            breaker.noted(error)
            raise
        if breaker.is_open:  # by another call, at the same time
            breaker.succeeded()
        return outcome

    def _take_part(self, request: Request, ends_ns: int, asked_ns: int | None) -> Outcome:
        place = _Place(request, ends_ns, asked_ns)
        try:
            with self._lock:
                alone = not (self._leaders or self._waiting or self._crowded)
                if len(self._leaders) < MOST_IN_FLIGHT:
                    self._leaders.add(place)
                else:
                    place.expect_call()
                if not alone:
                    self._waiting.append(place)
            if alone:
                (place.result,) = self._decided((place.request,), place)
                place.served = True
                self._hand_over(place)
            else:
                self._see_served(place)
        finally:
            if not place.served or place in self._leaders:
                try:
                    self._leave(place)
                finally:
                    try:
                        self._leave(place)  # once more, in case that a signal interrupted the first time
                    finally:
                        self._leaders.discard(place)  # one call of C code, which no signal interrupts
        if not isinstance(place.result, Outcome):
            raise unavailable(place.result or interrupted())
        return place.result

    def _see_served(self, place: _Place) -> None:
        while not place.served:
            now = stopwatch()
            if now >= place.ends_ns:
                sent_ns = (place.leader or place).sent_ns
                raise StoreUnavailable("Redis did not answer in time", away=self._tells(place, sent_ns, None))
            if place in self._leaders:
                if self._crowded:
                    time.sleep(0)  # lets other threads come along
                self._serve(place)
                self._hand_over(place)  # served or not: another leader may have this request under way
            else:
                place.sleep(min((place.ends_ns - now) / 1e9, LOOK_AFTER))
                if not place.served:
                    self._look_after(place)

    def _tells(self, place: _Place, sent_ns: int | None, error: BaseException | None) -> bool:
        return sent_ns is not None and tells(error, place.asked_ns, sent_ns, place.ends_ns, self._store.took_ns)

    def _leave(self, place: _Place) -> None:
        """Take a place out of everything, whatever came of it."""
        with self._lock:
            if place in self._waiting:
                self._waiting.remove(place)
        self._hand_over(place)

    def _hand_over(self, place: _Place) -> None:
        """Lead no more, and let somebody else: whoever has the most time left, which bounds the call."""
        if place not in self._leaders:
            return
        with self._lock:
            following = self._with_most_time() if self._waiting else None
            if following is not None:
                self._leaders.add(following)
            self._leaders.discard(place)
        if following is not None:
            following.call()

    def _with_most_time(self) -> _Place | None:
        others = [waiting for waiting in self._waiting if waiting not in self._leaders]
        return max(others, key=lambda waiting: waiting.ends_ns, default=None)

    def _look_after(self, place: _Place) -> None:
        """Lead, or give up, if a leader that signals interrupted time and again could not hand over or hand out."""
        with self._lock:
            if place in self._waiting:
                if len(self._leaders) < MOST_IN_FLIGHT:
                    self._leaders.add(place)
            elif place.leader not in self._leaders and not place.served:
                raise interrupted()

    def _serve(self, leader: _Place) -> None:
        """Send what waits and hand out the answers."""
        batch: list[_Place] = []
        results: Sequence[Result] = ()
        try:
            with self._lock:
                self._take_those_who_wait(batch, leader)
            self._crowded = len(batch) > 1
            if batch:
                results = self._decided([place.request for place in batch], leader)
        finally:
            try:
                _hand_out(batch, results)
            except BaseException:
                _hand_out(batch, results)  # once more, if a signal interrupted the first time
                raise

    def _take_those_who_wait(self, batch: list[_Place], leader: _Place) -> None:
        """Fill a batch; whoever has far more time than the leader, whose time bounds the call, is to lead another."""
        now = stopwatch()
        latest_ns = now + 2 * (leader.ends_ns - now)
        for place in list(self._waiting):
            if len(batch) < MOST_IN_A_CALL and place.ends_ns <= latest_ns:
                place.leader = leader
                batch.append(place)
                self._waiting.remove(place)

    def _decided(self, requests: Sequence[Request], leader: _Place) -> Sequence[Result]:
        """Have requests decided; return what came of each."""
        leader.sent_ns = sent_ns = stopwatch()
        results: Sequence[Result]
        try:
            results = self._store.decided(requests, sent_ns, leader.ends_ns)
        except self._store.troubles as error:
            results = [unavailable(error)] * len(requests)
        for result in results:
            if isinstance(result, StoreUnavailable) and not self._tells(leader, sent_ns, result.__cause__):
                result.away = False
        return results


def _hand_out(batch: Sequence[_Place], results: Sequence[Result]) -> None:
    for place, result in zip_longest(batch, results):
        place.result = result or interrupted()
        place.served = True
        place.call()
