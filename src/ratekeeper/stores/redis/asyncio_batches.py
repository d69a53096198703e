"""The batches of one event loop: requests made in one turn of the loop are sent together, in one call or two."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from ratekeeper.clock import stopwatch
from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores.breaker import Breaker
from ratekeeper.stores.protocol import Demand, Outcome
from ratekeeper.stores.redis.asyncio_connections import AsyncioConnections
from ratekeeper.stores.redis.batching import MAX_IN_A_BATCH, shows_away
from ratekeeper.stores.redis.redis_errors import LATE, Result, interrupted, unavailable
from ratekeeper.stores.redis.servers import MAX_AT_ONCE, NoteResults

_FEW = 16  # with no more requests than this, two batches do not pay
_LATE_NS = 20_000_000  # later than this, the loop was busy elsewhere and could not see an answer
_SOONER_NS = 5_000_000  # a request that ends this much before those ahead of it gets its own timer
_EARLY_NS = 1_000_000  # how early a timer may fire: some event loops count milliseconds


class _TaskRequest:
    """One task's request in flight."""

    __slots__ = ("asked_ns", "demands", "ends_ns", "future", "sent_ns")

    def __init__(self, demands: Sequence[Demand], ends_ns: int, asked_ns: int, future: asyncio.Future[Outcome]) -> None:
        self.demands = demands
        self.ends_ns = ends_ns
        self.asked_ns = asked_ns
        self.future = future
        self.sent_ns: int | None = None


class AsyncioBatches:
    """The batches of one event loop for one server. Up to two are in flight at a time."""

    def __init__(self, connections: AsyncioConnections, breaker: Breaker, note_results: NoteResults) -> None:
        self._connections = connections
        self._breaker = breaker
        self._note_results = note_results
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_TaskRequest] = deque()
        self._under_way: dict[asyncio.Task[None], Sequence[_TaskRequest]] = {}
        self._due = False  # whether waiting requests will be sent in this turn of the loop
        self._closed = False
        self._pending: deque[_TaskRequest] = deque()  # ordered, roughly, by when their time runs out
        self._looks_at_ns = 0  # when the timer checks for requests out of time; 0: not set
        self._took_ns = 0  # how long the latest answer took

    def execute(self, demands: Sequence[Demand], ends_ns: int, asked_ns: int | None = None) -> asyncio.Future[Outcome]:
        """Have a request decided (or part of an earlier one), together with the others of this loop."""
        loop = self._loop
        future: asyncio.Future[Outcome] = loop.create_future()
        if self._breaker.is_open and not self._breaker.admits(ends_ns):
            future.set_exception(self._breaker.refusal())
            return future
        now = stopwatch()
        request = _TaskRequest(demands, ends_ns, asked_ns or now, future)
        self._waiting.append(request)
        if not self._due and len(self._under_way) < MAX_AT_ONCE:
            self._due = True
            loop.call_soon(self._send)  # after everything else in this turn of the loop, which may ask too
        pending = self._pending
        if ends_ns < self._looks_at_ns or (pending and ends_ns < pending[-1].ends_ns - _SOONER_NS):
            timer = loop.call_later((ends_ns - now) / 1e9, self._give_up, request)
            future.add_done_callback(lambda _: timer.cancel())
            return future
        if not self._looks_at_ns:
            self._looks_at_ns = ends_ns
            loop.call_later((ends_ns - now) / 1e9, self._run_out)
        while pending and pending[0].future.done():
            pending.popleft()
        pending.append(request)
        return future

    async def close(self) -> None:
        """Give up what is in flight."""
        self._closed = True
        while self._waiting:
            self._resolve(self._waiting.popleft(), interrupted())
        for batch in list(self._under_way):
            batch.cancel()

    def _run_out(self) -> None:
        """Answer requests whose time is up, and set the timer for the next one."""
        pending = self._pending
        now = stopwatch()
        try:
            while pending and (pending[0].future.done() or pending[0].ends_ns - _EARLY_NS <= now):
                self._give_up(pending.popleft())
        finally:  # a log handler may raise
            self._looks_at_ns = pending[0].ends_ns if pending else 0
            if pending:
                self._loop.call_later((self._looks_at_ns - now) / 1e9, self._run_out)

    def _give_up(self, request: _TaskRequest) -> None:
        if not request.future.done():
            said = f"Redis did not decide within {(request.ends_ns - request.asked_ns) / 1e9:.3g} s"
            error = StoreUnavailable(said, reason=LATE)
            self._note_results((request.demands,), (error,), request.asked_ns)  # it may still be executed
            self._resolve(request, error)

    def _send(self) -> None:
        """Send waiting requests, in as many batches as are free."""
        self._due = False
        while self._waiting and len(self._under_way) < MAX_AT_ONCE:
            # When many requests arrive at once, the server decides one half while the other is prepared.
            most = MAX_IN_A_BATCH if self._under_way else min(MAX_IN_A_BATCH, max(_FEW, (len(self._waiting) + 1) // 2))
            batch: list[_TaskRequest] = []
            while self._waiting and len(batch) < most:
                request = self._waiting.popleft()
                if not request.future.done():  # if cancelled or out of time before it was sent, it is not executed
                    batch.append(request)
            if batch:
                task = self._loop.create_task(self._serve(batch))
                self._under_way[task] = batch
                task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        batch = self._under_way.pop(task)
        if task.cancelled() or task.exception() is not None:  # if that was before it started, it has resolved nothing
            self._note_results([request.demands for request in batch], [interrupted()] * len(batch), stopwatch())
            for request in batch:
                self._resolve(request, interrupted())
        if self._waiting and not self._due and not self._closed:
            self._send()

    async def _serve(self, batch: Sequence[_TaskRequest]) -> None:
        """Send a batch and hand out the answers."""
        sent_ns = stopwatch()
        ends_ns = 0
        for request in batch:
            request.sent_ns = sent_ns
            ends_ns = max(ends_ns, request.ends_ns)
        requests = [request.demands for request in batch]
        results: Sequence[Result]
        try:
            results = await self._connections.decide(requests, ends_ns)
            self._took_ns = stopwatch() - sent_ns
        except Exception as caught:  # noqa: BLE001 - our own task: every caller in the batch must be told
            error = unavailable(caught)
            error.away = error.away and isinstance(caught, StoreUnavailable)
            results = [error] * len(batch)
        self._note_results(requests, results, sent_ns)
        if self._connections.calls.observers:
            self._connections.calls.tell(len(batch), any(type(result) is Outcome for result in results))
        if self._breaker.is_open:
            for request, result in zip(batch, results, strict=True):
                self._resolve(request, result)
            return
        for request, result in zip(batch, results, strict=True):
            if type(result) is Outcome:  # nearly always: as `_resolve`, without the call
                if not request.future.done():
                    request.future.set_result(result)
            else:
                self._resolve(request, result)

    def _resolve(self, request: _TaskRequest, result: Result) -> None:
        """Tell a caller the result of its request, and the breaker whether Redis answered."""
        future = request.future
        if future.done() and not future.cancelled():
            return
        if isinstance(result, Outcome):
            if not future.done():
                future.set_result(result)
            if self._breaker.is_open:
                self._breaker.succeeded()
        else:
            if not future.done():  # first: the breaker logs, and a log handler may raise
                future.set_exception(unavailable(result))
            if not result.away or self._shows_away(request, result.__cause__):
                self._breaker.noted(result)

    def _shows_away(self, request: _TaskRequest, error: BaseException | None) -> bool:
        if request.sent_ns is None or stopwatch() - request.ends_ns > _LATE_NS:
            return False
        return shows_away(error, request.asked_ns, request.sent_ns, request.ends_ns, self._took_ns)
