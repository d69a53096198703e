"""How the tasks of an event loop share calls: what is asked for in one turn of the loop goes into one call, or two."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores.port import Outcome
from ratekeeper.stores.redis.base import MOST_IN_A_CALL, MOST_IN_FLIGHT, interrupted, unavailable
from ratekeeper.stores.redis.exchange import Address
from ratekeeper.stores.redis.wire import Request, Result, alike

if TYPE_CHECKING:
    from ratekeeper.stores.redis.asynchronous import Hub

_FEW = 16  # requests that are not worth two calls
_LATE = 0.02  # seconds behind its time at which the loop was busy elsewhere, and could not see an answer
_SOONER = 0.005  # seconds before the others of its patience at which a request has a timer of its own
_NEARLY = 0.01  # of its time, by which the end of a request may differ from that of one that it joins


class _Asked:
    """A request on its way: of one caller, or of some that ask for the same one after the other."""

    __slots__ = ("asked_at", "ends", "futures", "request", "sent_at")

    def __init__(self, request: Request, future: asyncio.Future[Outcome], asked_at: float, ends: float) -> None:
        self.request = request
        self.futures = [future]
        self.asked_at = asked_at
        self.ends = ends
        self.sent_at: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether nobody waits for it any more."""
        futures = self.futures
        return futures[0].done() and (len(futures) == 1 or all(future.done() for future in futures))


class Lane:
    """The calls of one event loop to one server."""

    def __init__(self, hub: Hub, address: Address | None) -> None:
        self._hub = hub
        self._loop = hub.loop
        self._breaker = hub.store.breaker_of(address)
        self._waiting: deque[_Asked] = deque()
        self._latest: _Asked | None = None  # of those who wait
        self._calls: dict[asyncio.Task[None], Sequence[_Asked]] = {}
        self._due = False
        self._closed = False
        self._by_patience: dict[float, deque[_Asked]] = {}  # in each, who came first runs out of time first, or nearly

    def enter(self, request: Request, seconds: float, ends: float | None = None) -> asyncio.Future[Outcome]:
        """Have a request decided, together with what else this loop asks for."""
        loop = self._loop
        future: asyncio.Future[Outcome] = loop.create_future()
        if self._breaker.is_open and not self._breaker.admits():
            future.set_exception(StoreUnavailable("Redis is away", away=False))
            return future
        now = loop.time()
        ends = ends or now + seconds
        latest = self._latest
        if (
            latest is not None
            and alike(request, latest.request)
            and len(latest.futures) < _FEW
            and abs(ends - latest.ends) <= _NEARLY * seconds
            and not latest.is_over
        ):
            latest.futures.append(future)
            return future
        asked = _Asked(request, future, ends - seconds, ends)
        self._waiting.append(asked)
        if not self._due and len(self._calls) < MOST_IN_FLIGHT:
            self._due = True
            loop.call_soon(self._set_off)  # behind all that runs in this turn of the loop, which may ask as well
        if ends < now + seconds - _SOONER:  # a later part of a request
            timer = loop.call_at(ends, self._give_up, asked)
            future.add_done_callback(lambda _: timer.cancel())
            self._latest = None
            return future
        pending = self._by_patience.get(seconds)
        if pending is None:
            pending = self._by_patience[seconds] = deque()
            loop.call_at(ends, self._run_out, seconds)
        while pending and pending[0].is_over:
            pending.popleft()
        pending.append(asked)
        self._latest = asked
        return future

    def close(self) -> None:
        """Give up what is under way."""
        self._closed = True
        while self._waiting:
            self._tell_all(self._waiting.popleft(), interrupted())
        for call in list(self._calls):
            call.cancel()

    def _run_out(self, seconds: float) -> None:
        """Answer those whose time is over, and look again when the next one's is."""
        loop = self._loop
        pending = self._by_patience[seconds]
        now = loop.time()
        while pending and (pending[0].is_over or pending[0].ends <= now):
            asked = pending.popleft()
            if not asked.is_over:
                self._give_up(asked)
        if pending:
            loop.call_at(pending[0].ends, self._run_out, seconds)
        else:
            del self._by_patience[seconds]

    def _give_up(self, asked: _Asked) -> None:
        error = StoreUnavailable(f"Redis did not decide within {asked.ends - asked.asked_at:.3g} s")
        for future in asked.futures:
            if not future.done():  # the call tells of who is cancelled
                self._tell(asked, future, error)

    def _set_off(self) -> None:
        """Send what waits, in as many calls as are free."""
        self._due = False
        self._latest = None
        while self._waiting and len(self._calls) < MOST_IN_FLIGHT:
            most = MOST_IN_A_CALL
            if not self._calls:  # of a crowd that comes at once the server decides one half while the other is prepared
                crowd = sum([len(asked.futures) for asked in self._waiting])
                most = min(most, max(_FEW, (crowd + 1) // 2))
            batch = self._next(most)
            if batch:
                call = self._loop.create_task(self._serve(batch))
                self._calls[call] = batch
                call.add_done_callback(self._finished)

    def _next(self, most: int) -> list[_Asked]:
        """Take as many of those who wait, or a few more."""
        batch, count = [], 0
        while self._waiting and count < most:
            asked = self._waiting.popleft()
            futures = asked.futures
            if asked.is_over:  # cancelled, or out of time, before it was sent: not executed
                continue
            if len(futures) > 1:
                futures = asked.futures = [future for future in futures if not future.done()]
            batch.append(asked)
            count += len(futures)
        return batch

    def _finished(self, call: asyncio.Task[None]) -> None:
        batch = self._calls.pop(call)
        if call.cancelled() or call.exception() is not None:  # if it was before it began, it has settled nothing itself
            for asked in batch:
                self._tell_all(asked, interrupted())
        if self._waiting and not self._due and not self._closed:
            self._set_off()

    async def _serve(self, batch: Sequence[_Asked]) -> None:
        now = self._loop.time()
        for asked in batch:
            asked.sent_at = now
        requests = [asked.request for asked in batch for _ in asked.futures]
        try:
            results = iter(await self._hub.decided(requests, max([asked.ends for asked in batch])))
        except Exception as caught:  # noqa: BLE001 - a task of our own: every caller in the batch has to hear of it
            error = unavailable(caught)
            error.away = error.away and isinstance(caught, self._hub.store.troubles)
            for asked in batch:
                self._tell_all(asked, error)
        else:
            for asked in batch:
                for future, result in zip(asked.futures, results, strict=False):  # the rest is the others'
                    if type(result) is Outcome and not future.done() and not self._breaker.is_open:
                        future.set_result(result)  # nearly always
                    else:
                        self._tell(asked, future, result)

    def _tell_all(self, asked: _Asked, error: StoreUnavailable) -> None:
        """Tell all who ask for a request that it was not decided."""
        for future in asked.futures:
            self._tell(asked, future, error)

    def _tell(self, asked: _Asked, future: asyncio.Future[Outcome], result: Result) -> None:
        """Tell a caller what came of its request, and the breaker whether Redis answered."""
        if future.done() and not future.cancelled():
            return
        if isinstance(result, Outcome):
            if not future.done():
                future.set_result(result)
            if self._breaker.is_open:
                self._breaker.succeeded()
        else:
            if not future.done():
                future.set_exception(unavailable(result))
            if not result.away or self._tells(asked, result.__cause__):
                self._breaker.noted(result)

    def _tells(self, asked: _Asked, error: BaseException | None) -> bool:
        if asked.sent_at is None or self._loop.time() - asked.ends > _LATE:
            return False
        return self._hub.store.tells(error, asked.asked_at * 1e9, asked.sent_at * 1e9, asked.ends * 1e9)
