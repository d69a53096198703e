"""AsyncRedisStore: decisions from event loops. What is asked for in one turn of a loop goes into one call."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

from ratekeeper.clock import stopwatch
from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores.port import Charge, Demand, Inspection, Operation, Outcome
from ratekeeper.stores.redis.base import (
    MOST_IN_A_CALL,
    MOST_IN_FLIGHT,
    Base,
    Command,
    in_full,
    lost_script,
    tells,
    unavailable,
)
from ratekeeper.stores.redis.wire import Request

_PATIENCE = 1.0  # seconds for one exchange with the server


class AsyncRedisStore(Base):
    """Keeps state on a Redis server, for event loops; each loop has connections of its own."""

    for_asyncio = True

    def __init__(self, source: Any, *, remember_denials: bool = True) -> None:
        super().__init__(source, remember_denials=remember_denials)
        self._arguments |= {"socket_timeout": None, "socket_connect_timeout": None}
        self._start()

    def _start(self) -> None:
        super()._start()
        self._lanes: dict[asyncio.AbstractEventLoop, Lane] = {}

    def execute(
        self,
        operation: Operation,
        demands: Sequence[Demand],
        charge: Charge | None = None,
        seconds: float = _PATIENCE,
    ) -> asyncio.Future[Outcome]:
        """Decide or change all demands at one instant; StoreUnavailable when there is no answer in time."""
        return self._lane().enter(Request(operation, demands, charge), seconds)

    async def inspect(self, demands: Sequence[Demand]) -> list[Inspection]:
        """Show how each demand's key is stored."""
        return self._seen(demands, await self._lane().ask(self._look(demands)))

    async def snapshot(self, demands: Sequence[Demand], seconds: float = _PATIENCE) -> tuple[int, list[Any]]:
        """Return the time and the state of each demand's key."""
        return self._states(demands, await self._lane().ask(self._look(demands), seconds))

    async def close(self) -> None:
        """Close this loop's connections; the next decision opens new ones."""
        lane = self._lanes.pop(asyncio.get_running_loop(), None)
        if lane is not None:
            await lane.close()

    def _lane(self) -> Lane:
        loop = asyncio.get_running_loop()
        lane = self._lanes.get(loop)
        if lane is None:
            for ended in [known for known in list(self._lanes) if known.is_closed()]:
                self._lanes.pop(ended, None)  # and with it its connections
            lane = self._lanes[loop] = Lane(self)
        return lane


class _Asked:
    """One caller's request on its way."""

    __slots__ = ("asked_at", "ends", "future", "request", "sent_at")

    def __init__(self, request: Request, future: asyncio.Future[Outcome], asked_at: float, ends: float) -> None:
        self.request = request
        self.future = future
        self.asked_at = asked_at
        self.ends = ends
        self.sent_at: float | None = None

    def tells(self, took_ns: int) -> bool:
        """Tell whether it tells that Redis is away if this one gets no answer."""
        return self.sent_at is not None and tells(self.asked_at * 1e9, self.sent_at * 1e9, self.ends * 1e9, took_ns)


class Lane:
    """The calls of one event loop."""

    def __init__(self, store: AsyncRedisStore) -> None:
        self._store = store
        self._waiting: deque[_Asked] = deque()
        self._calls: set[asyncio.Task[None]] = set()
        self._due = False
        self._idle: list[Any] = []
        self._asking = asyncio.Semaphore(MOST_IN_FLIGHT)
        self._by_patience: dict[float, deque[_Asked]] = {}  # in each, who came first runs out of time first

    def enter(self, request: Request, seconds: float) -> asyncio.Future[Outcome]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Outcome] = loop.create_future()
        now = loop.time()
        asked = _Asked(request, future, now, now + seconds)
        self._waiting.append(asked)
        if not self._due and len(self._calls) < MOST_IN_FLIGHT:
            self._due = True
            loop.call_soon(self._set_off)  # behind all that runs in this turn of the loop, which may ask as well
        pending = self._by_patience.get(seconds)
        if pending is None:
            pending = self._by_patience[seconds] = deque()
            loop.call_later(seconds, self._run_out, seconds)
        while pending and pending[0].future.done():
            pending.popleft()
        pending.append(asked)
        return future

    def _run_out(self, seconds: float) -> None:
        """Answer those whose time is over, and look again when the next one's is."""
        loop = asyncio.get_running_loop()
        pending = self._by_patience[seconds]
        now = loop.time()
        while pending and (pending[0].future.done() or pending[0].ends <= now):
            asked = pending.popleft()
            if not asked.future.done():
                away = asked.tells(self._store._took_ns)  # noqa: SLF001
                asked.future.set_exception(StoreUnavailable(f"Redis did not decide within {seconds} s", away=away))
        if pending:
            loop.call_at(pending[0].ends, self._run_out, seconds)
        else:
            del self._by_patience[seconds]

    async def ask(self, commands: Sequence[Command], seconds: float = _PATIENCE) -> list[Any]:
        """Send commands that are no decision; as many at a time as there are calls."""

        async def exchange() -> list[Any]:
            async with self._asking:
                return await self._exchange(commands)

        try:
            return await asyncio.wait_for(exchange(), seconds)
        except self._store._troubles as error:  # noqa: SLF001
            raise unavailable(error) from error

    async def close(self) -> None:
        for call in list(self._calls):
            call.cancel()
        while self._idle:
            await self._idle.pop().disconnect(nowait=True)

    def _set_off(self) -> None:
        """Send what waits, if a call is free."""
        self._due = False
        batch: list[_Asked] = []
        now = asyncio.get_running_loop().time()
        while self._waiting and len(batch) < MOST_IN_A_CALL:
            asked = self._waiting.popleft()
            if not asked.future.done():  # cancelled, or out of time, before it was sent: not executed
                asked.sent_at = now
                batch.append(asked)
        if batch:
            call = asyncio.get_running_loop().create_task(self._serve(batch))
            self._calls.add(call)
            call.add_done_callback(self._finished)

    def _finished(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        if self._waiting and not self._due:
            self._set_off()

    async def _serve(self, batch: Sequence[_Asked]) -> None:
        error = StoreUnavailable("the call to Redis was interrupted", away=False)
        try:
            requests = [asked.request for asked in batch]
            command = self._store._call(requests)  # noqa: SLF001
            sent_ns = stopwatch()
            left = max(asked.ends for asked in batch) - asyncio.get_running_loop().time()
            replies = await asyncio.wait_for(self._exchange([command]), left)
            outcomes = self._store._outcomes(replies[0], requests, sent_ns)  # noqa: SLF001
            for asked, outcome in zip(batch, outcomes, strict=True):
                if not asked.future.done():
                    asked.future.set_result(outcome)
        except asyncio.TimeoutError as caught:
            error = unavailable(caught)
            error.away = batch[-1].tells(self._store._took_ns)  # noqa: SLF001 - the last had least to wait
        except Exception as caught:  # noqa: BLE001 - a task of our own: every caller in the batch has to hear of it
            error = unavailable(caught)
        finally:
            for asked in batch:
                if not asked.future.done():
                    asked.future.set_exception(unavailable(error))

    async def _exchange(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands once and read their replies; a script that the server does not know is sent in full."""
        connection = await self._take()
        try:
            replies = await self._send(connection, commands)
            if lost_script(replies[0]):
                replies = await self._send(connection, [in_full(commands[0])])
        except BaseException:
            await connection.disconnect(nowait=True)  # what is read next on it would be another's
            raise
        self._idle.append(connection)
        return replies

    async def _send(self, connection: Any, commands: Sequence[Command]) -> list[Any]:
        packed = connection.pack_command(*commands[0]) if len(commands) == 1 else connection.pack_commands(commands)
        await connection.send_packed_command(packed, check_health=False)
        replies = []
        for _ in commands:
            try:
                replies.append(await connection.read_response())
            except self._store._refusal as error:  # noqa: SLF001
                replies.append(error)
        return replies

    async def _take(self) -> Any:
        """Return a connection that the server has not closed meanwhile."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_connected and not await connection.can_read():
                return connection
            await connection.disconnect(nowait=True)
        return self._store._kind(**self._store._arguments)  # noqa: SLF001
