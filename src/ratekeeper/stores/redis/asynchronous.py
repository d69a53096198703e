"""AsyncRedisStore: decisions from event loops. What is asked for in one turn of a loop goes into one call, or two."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Sequence
from typing import Any

from ratekeeper.clock import stopwatch
from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores.protocol import Demand, Inspection, Outcome, Snapshot
from ratekeeper.stores.redis import connect, layers
from ratekeeper.stores.redis.asked import Asked
from ratekeeper.stores.redis.base import MOST_IN_A_CALL, MOST_IN_FLIGHT, Base, interrupted, tells, unavailable
from ratekeeper.stores.redis.exchange import Address, Flow, Send, Torn, Unanswered, Unit, Unsent, converse
from ratekeeper.stores.redis.wire import Request, Result

_PATIENCE = 1.0  # seconds for one exchange with the server
_FEW = 16  # requests that are not worth two calls
_LATE = 0.02  # seconds behind its time at which the loop was busy elsewhere, and could not see an answer
_SOONER = 0.005  # seconds before the others of its patience at which a request has a timer of its own
_of_parents: list[Any] = []


class AsyncRedisStore(Base):
    """Keeps state on Redis servers, for event loops; each loop has connections of its own."""

    def __init__(self, source: Any, *, remember_denials: bool = True) -> None:
        super().__init__(source, for_asyncio=True, remember_denials=remember_denials)
        self.after_fork()

    def for_threads(self) -> AsyncRedisStore:
        raise TypeError(f"{self!r} has to be awaited; a Limiter needs a RedisStore")

    def for_asyncio(self) -> AsyncRedisStore:
        return self

    def after_fork(self) -> None:
        super().after_fork()
        if hasattr(self, "_hubs"):
            _of_parents.append(self._hubs)  # if they were garbage, they would close what they share with a parent
        self._hubs: dict[asyncio.AbstractEventLoop, Hub] = {}

    def execute(self, demands: Sequence[Demand], ends_ns: int | None = None) -> Outcome | Awaitable[Outcome]:
        """Decide or change all demands at one instant; StoreUnavailable when there is no answer in time."""
        known = self.denials.recall(demands) if self.denials is not None else None
        if known is not None:
            return known
        hub = self._hubs.get(asyncio.get_running_loop()) or self._hub()
        ends = hub.loop.time() + (_PATIENCE if ends_ns is None else (ends_ns - stopwatch()) / 1e9)
        return hub.execute(demands, ends) if hub.only is None else hub.only.enter(demands, ends)

    async def inspect(self, demands: Sequence[Demand]) -> list[Inspection]:
        """Show how each demand's key is stored."""
        return self._seen(demands, await self._hub().ask(self._look(demands), _PATIENCE))

    async def snapshot(self, demands: Sequence[Demand], ends_ns: int | None = None) -> Snapshot:
        """Return the time and the state of each demand's key."""
        self._refuse_if_away(demands)
        seconds = _PATIENCE if ends_ns is None else (ends_ns - stopwatch()) / 1e9
        return self._states(demands, await self._hub().ask(self._look(demands), seconds))

    async def close(self) -> None:
        """Close this loop's connections; the next decision opens new ones."""
        hub = self._hubs.pop(asyncio.get_running_loop(), None)
        if hub is not None:
            await hub.close()

    def _hub(self) -> Hub:
        loop = asyncio.get_running_loop()
        hub = self._hubs.get(loop)
        if hub is None:
            for ended in [known for known in list(self._hubs) if known.is_closed()]:
                self._hubs.pop(ended, None)  # and with it its connections
            hub = self._hubs[loop] = Hub(self, loop)
        return hub


class Hub:
    """The connections of one event loop."""

    def __init__(self, store: AsyncRedisStore, loop: asyncio.AbstractEventLoop) -> None:
        self.store = store
        self.loop = loop
        self._lanes: dict[Address | None, Lane] = {}
        self._idle: dict[Address | None, list[Any]] = {}
        self._asking = asyncio.Semaphore(MOST_IN_FLIGHT)
        self._halfway: set[asyncio.Task[Outcome]] = set()
        self._closed = False
        self.only = None if store.topology.has_slots else self.lane(None)

    def lane(self, address: Address | None) -> Lane:
        """Return the calls to one server."""
        lane = self._lanes.get(address)
        if lane is None:
            for gone in [known for known in self._lanes if not self.store.topology.knows(known)]:
                del self._lanes[gone]
            lane = self._lanes[address] = Lane(self, address)
        return lane

    async def execute(self, request: Request, ends: float) -> Outcome:
        """Have a request decided by the nodes that have its keys."""
        asked_at = self.loop.time()
        if not self.store.topology.is_known:
            await self._find_nodes(ends - asked_at)
        parts = layers.parts_of(request)
        try:
            if len(parts) == 1:
                return await self._at_its_node(request, ends, asked_at)
            return await self._across(request, parts, ends, asked_at)
        except Torn:  # keys of one slot, which is on its way to another node
            return await self._across(request, layers.singly(request), ends, asked_at)

    async def ask(self, units: Sequence[Unit], seconds: float) -> Sequence[Unit]:
        """Send commands that are no decision; as many at a time as there are calls."""

        async def exchange() -> None:
            async with self._asking:
                await self.run(converse(self.store.topology, units), seconds)

        try:
            await asyncio.wait_for(exchange(), seconds)
        except self.store.troubles as error:
            raise unavailable(error) from error
        return units

    async def close(self) -> None:
        if self._halfway:
            await asyncio.wait(self._halfway)
        self._closed = True
        for lane in self._lanes.values():
            lane.close()
        for idle in self._idle.values():
            while idle:
                await idle.pop().disconnect(nowait=True)

    def _at_its_node(self, request: Request, ends: float, asked_at: float) -> Awaitable[Outcome]:
        return self.lane(self.store._node_of(request)).enter(request, ends, asked_at)  # noqa: SLF001

    async def _across(self, *asked: Any) -> Outcome:
        """Decide a request part by part; if the caller is cancelled, that does not end halfway."""
        deciding = self.loop.create_task(self._part_by_part(*asked))
        self._halfway.add(deciding)
        deciding.add_done_callback(self._ended)
        return await asyncio.shield(deciding)

    def _ended(self, deciding: asyncio.Task[Outcome]) -> None:
        self._halfway.discard(deciding)
        if not deciding.cancelled():
            deciding.exception()  # which nobody hears of whose caller has gone

    async def _part_by_part(self, request: Request, parts: layers.Parts, ends: float, asked_at: float) -> Outcome:
        sent_ns = stopwatch()
        seconds = ends - asked_at
        flow = layers.across(request, parts)
        try:
            asked = next(flow)
            while True:
                voids = isinstance(asked, layers.Voids)  # which goes on when the caller has no time left
                now = self.loop.time()
                times = (now + seconds, now) if voids else (ends, asked_at)
                calls = [self._at_its_node(part, *times) for part in asked]
                answers = asyncio.gather(*calls, return_exceptions=True)
                await asyncio.wait([answers], timeout=ends - self.loop.time() if voids else None)
                asked = flow.send(answers.result() if answers.done() else ())
        except StopIteration as stop:
            self.store._note(request, stop.value, sent_ns)  # noqa: SLF001
            return stop.value  # type: ignore[no-any-return]

    async def decided(self, requests: Sequence[Request], ends: float) -> Sequence[Result]:
        """Have requests decided; return what came of each."""
        store = self.store
        sent_ns = stopwatch()
        if not store.topology.may_move:
            try:
                (reply,) = await self._exchange(Send(None, (store._call(requests),)), ends)  # noqa: SLF001
            except Unanswered as error:
                raise unavailable(error.__cause__ or error) from error.__cause__
            results = store._at_once(reply, requests, sent_ns)  # noqa: SLF001
            if results is not None:
                return results
        left = ends - self.loop.time()
        decided: Sequence[Result] = await self.run(store._decide(requests, sent_ns), left)  # noqa: SLF001
        return decided

    async def _find_nodes(self, seconds: float) -> None:
        """Ask which node has which slot; who comes while somebody asks waits for that."""

        async def find() -> None:
            async with self._asking:
                if not self.store.topology.is_known:
                    with self.store.breaker.asking(stopwatch() + int(seconds * 1e9)):
                        await self.run(self.store.topology.discover(), seconds)

        try:
            await asyncio.wait_for(find(), seconds)
        except self.store.troubles as error:
            raise unavailable(error) from error

    async def run(self, flow: Flow, seconds: float) -> Any:
        """Drive a flow in this task."""
        ends = self.loop.time() + seconds
        try:
            send = next(flow)
            while True:
                try:
                    replies = await self._exchange(send, ends)
                except Unanswered as error:
                    send = flow.throw(error)
                else:
                    send = flow.send(replies)
        except StopIteration as stop:
            return stop.value

    async def _exchange(self, send: Send, ends: float) -> list[Any]:
        """Send commands once and read their replies."""
        now = self.loop.time()
        if now >= ends:
            raise StoreUnavailable("no time was left to ask Redis", away=False)
        ends = ends if send.share == 1 else now + (ends - now) * send.share
        connection = await self._take(send.address, ends)
        try:
            commands = self.store._with_policy(send)  # noqa: SLF001
            async with connect.timeout_at(ends):
                replies = await connect.exchange(connection, commands, self.store._refusal)  # noqa: SLF001
        except BaseException as error:
            await connection.disconnect(nowait=True)  # what is read next on it would be another's
            if isinstance(error, self.store.troubles):
                raise (interrupted() if self.loop.is_closed() else Unanswered()) from error
            raise
        if self._closed:
            await connection.disconnect(nowait=True)
        else:
            self._idle.setdefault(send.address, []).append(connection)
        return self.store._judged(send, replies)  # noqa: SLF001

    async def _take(self, address: Address | None, ends: float) -> Any:
        """Return a connection that the server has not closed meanwhile."""
        idle = self._idle.get(address)
        while idle:
            connection = idle.pop()
            if await connect.stands(connection):
                return connection
            await connection.disconnect(nowait=True)
        await self._forget_others()
        kind, arguments = self.store.topology.connection(address)
        connection = kind(**arguments)
        try:
            async with connect.timeout_at(ends):
                await connection.connect()
        except self.store.troubles as error:
            await connection.disconnect(nowait=True)
            raise (interrupted() if self.loop.is_closed() else Unsent()) from error
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection

    async def _forget_others(self) -> None:
        """Close connections to servers that are no part of the store any more."""
        for address in [known for known in self._idle if not self.store.topology.knows(known)]:
            for connection in self._idle.pop(address, ()):
                await connection.disconnect(nowait=True)


class Lane:
    """The calls of one event loop to one server."""

    def __init__(self, hub: Hub, address: Address | None) -> None:
        self._hub = hub
        self._loop = hub.loop
        self._breaker = hub.store.breaker_of(address)
        self._waiting: deque[Asked] = deque()
        self._calls: dict[asyncio.Task[None], Sequence[Asked]] = {}
        self._due = False
        self._closed = False
        self._looks_at = 0.0  # when a timer looks after those who run out of time; 0: none is set
        self._pending: deque[Asked] = deque()  # who runs out of time first is first, or nearly

    def enter(self, request: Request, ends: float, asked_at: float | None = None) -> asyncio.Future[Outcome]:
        """Have a request decided, together with what else this loop asks for."""
        loop = self._loop
        future: asyncio.Future[Outcome] = loop.create_future()
        now = loop.time()
        if self._breaker.is_open and not self._breaker.admits(stopwatch() + int((ends - now) * 1e9)):
            future.set_exception(StoreUnavailable("Redis is away", away=False))
            return future
        asked = Asked(request, future, asked_at or now, ends)
        self._waiting.append(asked)
        if not self._due and len(self._calls) < MOST_IN_FLIGHT:
            self._due = True
            loop.call_soon(self._set_off)  # behind all that runs in this turn of the loop, which may ask as well
        pending = self._pending
        if ends < self._looks_at or (pending and ends < pending[-1].ends - _SOONER):
            timer = loop.call_at(ends, self._give_up, asked)
            future.add_done_callback(lambda _: timer.cancel())
            return future
        if not self._looks_at:
            self._looks_at = ends
            loop.call_at(ends, self._run_out)
        while pending and pending[0].future.done():
            pending.popleft()
        pending.append(asked)
        return future

    def close(self) -> None:
        """Give up what is under way."""
        self._closed = True
        while self._waiting:
            self._settle(self._waiting.popleft(), interrupted())
        for call in list(self._calls):
            call.cancel()

    def _run_out(self) -> None:
        """Answer those whose time is over, and look again when the next one's is."""
        loop = self._loop
        pending = self._pending
        now = loop.time()
        try:
            while pending and (pending[0].future.done() or pending[0].ends <= now):
                asked = pending.popleft()
                if not asked.future.done():
                    self._give_up(asked)
        finally:  # a handler of the log may raise
            self._looks_at = pending[0].ends if pending else 0.0
            if pending:
                loop.call_at(self._looks_at, self._run_out)

    def _give_up(self, asked: Asked) -> None:
        seconds = asked.ends - asked.asked_at
        self._settle(asked, StoreUnavailable(f"Redis did not decide within {seconds:.3g} s"))

    def _set_off(self) -> None:
        """Send what waits, in as many calls as are free."""
        self._due = False
        while self._waiting and len(self._calls) < MOST_IN_FLIGHT:
            # Of a crowd that comes at once the server decides one half while the other half is prepared.
            most = MOST_IN_A_CALL if self._calls else min(MOST_IN_A_CALL, max(_FEW, (len(self._waiting) + 1) // 2))
            batch: list[Asked] = []
            while self._waiting and len(batch) < most:
                asked = self._waiting.popleft()
                if not asked.future.done():  # cancelled, or out of time, before it was sent: not executed
                    batch.append(asked)
            if batch:
                call = self._loop.create_task(self._serve(batch))
                self._calls[call] = batch
                call.add_done_callback(self._finished)

    def _finished(self, call: asyncio.Task[None]) -> None:
        batch = self._calls.pop(call)
        if call.cancelled() or call.exception() is not None:  # if it was before it began, it has settled nothing itself
            for asked in batch:
                self._settle(asked, interrupted())
        if self._waiting and not self._due and not self._closed:
            self._set_off()

    async def _serve(self, batch: Sequence[Asked]) -> None:
        results: Sequence[Result]
        now = self._loop.time()
        for asked in batch:
            asked.sent_at = now
        try:
            ends = max(asked.ends for asked in batch)
            results = await self._hub.decided([asked.request for asked in batch], ends)
        except Exception as caught:  # noqa: BLE001 - a task of our own: every caller in the batch has to hear of it
            error = unavailable(caught)
            error.away = error.away and isinstance(caught, self._hub.store.troubles)
            results = [error] * len(batch)
        for asked, result in zip(batch, results, strict=True):
            self._settle(asked, result)

    def _settle(self, asked: Asked, result: Result) -> None:
        """Tell a caller what came of its request, and the breaker whether Redis answered."""
        future = asked.future
        if future.done() and not future.cancelled():
            return
        if isinstance(result, Outcome):
            if self._breaker.is_open:
                self._breaker.succeeded()
            if not future.done():
                future.set_result(result)
        else:
            self._hub.store.doubt(asked.request)
            if not result.away or self._tells(asked, result.__cause__):
                self._breaker.noted(result)
            if not future.done():
                future.set_exception(unavailable(result))

    def _tells(self, asked: Asked, error: BaseException | None) -> bool:
        if asked.sent_at is None or self._loop.time() - asked.ends > _LATE:
            return False
        took_ns = self._hub.store.took_ns
        return tells(error, asked.asked_at * 1e9, asked.sent_at * 1e9, asked.ends * 1e9, took_ns)
