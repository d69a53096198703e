"""The batches of threads: requests made while a batch is in flight go together into the next one.

A signal handler or a finalizer may make a request in the middle of another one of its own thread, even within the lock.
It is sent at once and alone, so that it waits for nobody who may be waiting for the interrupted request.

From Python 3.12 on, an exception that a signal handler raises at a loop's jump back can skip the exit of the `with` or
`try` around the loop and leave a lock locked. So where that matters, the loop is in a function of its own.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import zip_longest

from ratekeeper.clock import stopwatch
from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores.breaker import Breaker
from ratekeeper.stores.protocol import Demand, Outcome
from ratekeeper.stores.redis.batching import MAX_IN_A_BATCH, shows_away
from ratekeeper.stores.redis.redis_errors import LATE, Result, interrupted, unavailable
from ratekeeper.stores.redis.semaphore import CHECK_AGAIN
from ratekeeper.stores.redis.servers import MAX_AT_ONCE, NoteResults
from ratekeeper.stores.redis.thread_connections import ThreadConnections


class _ThreadRequest:
    """One thread's request in flight."""

    result: Result | None = None
    served = False
    leader: _ThreadRequest | None = None  # the request whose thread sends this one
    sent_ns: int | None = None  # when its thread sent the batch
    _wake: threading.Lock | None = None  # held until this request is served or may lead; None for a lone one

    def __init__(self, demands: Sequence[Demand], ends_ns: int, asked_ns: int | None = None) -> None:
        self.demands = demands
        self.asked_ns = asked_ns or stopwatch()
        self.ends_ns = ends_ns

    def expect_wake(self) -> None:
        self._wake = threading.Lock()
        self._wake.acquire()

    def wake(self) -> None:
        if self._wake is not None:
            with suppress(RuntimeError):  # already awake
                self._wake.release()

    def sleep(self, seconds: float) -> None:
        if self._wake is None:
            self.expect_wake()
        if not self.served and self._wake is not None:  # from here on, its leader will wake it
            self._wake.acquire(timeout=seconds)


class ThreadBatches:
    """The batches for one server. Up to two are in flight at a time.

    A thread that finds a free one leads: it sends all waiting requests, including its own, reads the answers and hands
    them out.
    """

    def __init__(self, connections: ThreadConnections, breaker: Breaker, note_results: NoteResults) -> None:
        self._connections = connections
        self._breaker = breaker
        self._note_results = note_results
        self._lock = threading.Lock()
        self._inside: set[int] = set()  # the threads that have a request
        self._waiting: deque[_ThreadRequest] = deque()
        self._leaders: set[_ThreadRequest] = set()
        self._crowded = False  # whether the latest batch had several requests
        self._took_ns = 0  # how long the latest answer took

    def execute(self, demands: Sequence[Demand], ends_ns: int, asked_ns: int | None = None) -> Outcome:
        """Have a request decided (or part of an earlier one), together with those of other threads."""
        breaker = self._breaker
        if breaker.is_open and not breaker.admits(ends_ns):
            raise breaker.refusal()
        request = _ThreadRequest(demands, ends_ns, asked_ns)
        me = threading.get_ident()
        try:
            if me in self._inside:
                (request.result,) = self._decide((demands,), request)
            else:
                self._with_others(request, me)
            result = request.result
            if not isinstance(result, Outcome):
                raise unavailable(result or interrupted())
        except BaseException as error:
            self._note_results((demands,), (interrupted(),), request.asked_ns)  # it may still have been executed
            if isinstance(error, StoreUnavailable):
                breaker.noted(error)
            raise
        if breaker.is_open:  # a concurrent batch opened it, or this was the retry
            breaker.succeeded()
        return result

    def _with_others(self, request: _ThreadRequest, thread: int) -> None:
        """Have a request served, and leave nothing behind, even if signals interrupt this more than once."""
        try:
            self._inside.add(thread)
            if self._enter(request):
                (request.result,) = self._decide((request.demands,), request)
                request.served = True
                self._hand_over(request)
            else:
                self._see_served(request)
        finally:
            try:
                if not request.served or request in self._leaders:
                    try:
                        self._leave(request)
                    finally:
                        self._leave(request)  # once more, in case a signal interrupted the first
            finally:
                try:
                    self._leaders.discard(request)  # one C call, which no signal interrupts
                finally:
                    self._inside.discard(thread)

    def _enter(self, request: _ThreadRequest) -> bool:
        """Lead if there is room; return whether there are no others, so that the request is sent at once and alone."""
        with self._lock:
            alone = not (self._leaders or self._waiting or self._crowded)
            if len(self._leaders) < MAX_AT_ONCE:
                self._leaders.add(request)
            else:
                request.expect_wake()
            if not alone:
                self._waiting.append(request)
        return alone

    def _see_served(self, request: _ThreadRequest) -> None:
        while not request.served:
            now = stopwatch()
            if now >= request.ends_ns:
                sent_ns = (request.leader or request).sent_ns
                is_away = self._shows_away(request, sent_ns, None)
                raise StoreUnavailable("Redis did not answer in time", away=is_away, reason=LATE)
            if request in self._leaders:
                if self._crowded:
                    time.sleep(0)  # lets other threads join
                self._serve(request)
                self._hand_over(request)  # served or not: another leader may be sending this request
            else:
                request.sleep(min((request.ends_ns - now) / 1e9, CHECK_AGAIN))
                if not request.served:
                    self._look_after(request)

    def _shows_away(self, request: _ThreadRequest, sent_ns: int | None, error: BaseException | None) -> bool:
        return sent_ns is not None and shows_away(error, request.asked_ns, sent_ns, request.ends_ns, self._took_ns)

    def _leave(self, request: _ThreadRequest) -> None:
        """Remove a request from the queue and the leaders, whatever its result."""
        with self._lock:
            if request in self._waiting:
                self._waiting.remove(request)
        self._hand_over(request)

    def _hand_over(self, request: _ThreadRequest) -> None:
        """Stop leading and let the request with the most time left lead, because that time bounds the batch."""
        if request not in self._leaders:
            return
        with self._lock:
            following = self._with_most_time() if self._waiting else None
            if following is not None:
                self._leaders.add(following)
            self._leaders.discard(request)
        if following is not None:
            following.wake()

    def _with_most_time(self) -> _ThreadRequest | None:
        others = [waiting for waiting in self._waiting if waiting not in self._leaders]
        return max(others, key=lambda waiting: waiting.ends_ns, default=None)

    def _look_after(self, request: _ThreadRequest) -> None:
        """Lead, or give up, if repeated signals kept a leader from handing over or handing out."""
        with self._lock:
            if request in self._waiting:
                if len(self._leaders) < MAX_AT_ONCE:
                    self._leaders.add(request)
            elif request.leader not in self._leaders and not request.served:
                raise interrupted()

    def _serve(self, leader: _ThreadRequest) -> None:
        """Send the waiting requests and hand out the answers."""
        batch: list[_ThreadRequest] = []
        results: Sequence[Result] = ()
        try:
            with self._lock:
                self._take_those_who_wait(batch, leader)
            self._crowded = len(batch) > 1
            if batch:
                results = self._decide([request.demands for request in batch], leader)
        finally:
            try:
                _hand_out(batch, results)
            except BaseException:
                _hand_out(batch, results)  # once more, if a signal interrupted the first
                raise

    def _take_those_who_wait(self, batch: list[_ThreadRequest], leader: _ThreadRequest) -> None:
        """Fill a batch. The leader's time bounds it, so requests with far more time wait for another one."""
        now = stopwatch()
        latest_ns = now + 2 * (leader.ends_ns - now)
        for request in list(self._waiting):
            if len(batch) < MAX_IN_A_BATCH and request.ends_ns <= latest_ns:
                request.leader = leader
                batch.append(request)
                self._waiting.remove(request)

    def _decide(self, requests: Sequence[Sequence[Demand]], leader: _ThreadRequest) -> Sequence[Result]:
        """Have requests decided; return the result of each."""
        leader.sent_ns = sent_ns = stopwatch()
        results: Sequence[Result]
        try:
            results = self._connections.decide(requests, leader.ends_ns)
            self._took_ns = stopwatch() - sent_ns
        except StoreUnavailable as error:
            results = [error] * len(requests)
        for result in results:
            if isinstance(result, StoreUnavailable) and not self._shows_away(leader, sent_ns, result.__cause__):
                result.away = False
        self._note_results(requests, results, sent_ns)
        if self._connections.calls.observers:
            self._connections.calls.tell(len(requests), any(type(result) is Outcome for result in results))
        return results


def _hand_out(batch: Sequence[_ThreadRequest], results: Sequence[Result]) -> None:
    for request, result in zip_longest(batch, results):
        request.result = result or interrupted()
        request.served = True
        request.wake()
