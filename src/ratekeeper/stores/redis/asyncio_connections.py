"""The connections of one event loop: one exchange at a time on each, with one server."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from typing import Any

from ratekeeper import flows
from ratekeeper.clock import stopwatch
from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores.protocol import Demand
from ratekeeper.stores.redis import redis_client
from ratekeeper.stores.redis.asyncio_jobs import TaskJobs
from ratekeeper.stores.redis.redis_errors import LATE, Result, Unanswered, Unsent, interrupted, unavailable
from ratekeeper.stores.redis.routing import Bundle, send
from ratekeeper.stores.redis.servers import MAX_AT_ONCE, Servers, Within, time_for_each
from ratekeeper.stores.redis.tls import share_context
from ratekeeper.stores.redis.topology import Command
from ratekeeper.stores.redis.urls import NodeAddress, is_sentinel
from ratekeeper.stores.redis.wire import decode

_TRIES = 10  # connections that a caller waits for: other callers may take what was set up for it


class AsyncioConnections:
    """The connections of one event loop to the servers of a store."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self.calls = servers.calls
        self._loop = asyncio.get_running_loop()
        self._semaphore = asyncio.Semaphore(MAX_AT_ONCE)  # for anything but decisions
        self._idle: dict[NodeAddress | None, list[Any]] = {}
        self._set_ups = TaskJobs(servers.ready)
        self._searches = TaskJobs(lambda _: servers.breaker.ask_again())
        self._closed = False

    async def decide(self, requests: Sequence[Sequence[Demand]], ends_ns: int) -> Sequence[Result]:
        """Have requests decided in one batch; return the result of each."""
        servers = self._servers
        try:
            if not servers.topology.may_move:
                (reply,) = await self.exchange(None, (servers.codec.command(requests),), ends_ns)
                results = decode(reply, requests) if type(reply) is list else servers.results_of(reply, requests)
                if results is not None:
                    return results
            return await flows.run_async(servers.decide(requests, Within(ends_ns, self)))
        except servers.troubles as error:
            raise unavailable(error) from error
        except Unanswered as error:
            raise unavailable(error.__cause__ or error) from error.__cause__

    async def ask(self, bundles: Sequence[Bundle], ends_ns: int) -> None:
        """Send commands other than decisions; as many callers at a time as there are batches."""

        async def run() -> None:
            async with self._semaphore:
                await flows.run_async(send(self._servers.topology, bundles, Within(ends_ns, self)))

        try:
            await asyncio.wait_for(run(), (ends_ns - stopwatch()) / 1e9)
        except self._servers.troubles as error:
            raise unavailable(error) from error

    async def find_nodes(self, ends_ns: int) -> None:
        """Find out which node has which slot, unless the cluster is considered away."""
        with self._servers.breaker.asking(ends_ns):
            await self.find(ends_ns)

    async def find(self, ends_ns: int) -> None:
        """Find out which server has which role, beside decisions; all callers wait for one that asks."""
        search = functools.partial(self._search, time_for_each(ends_ns))
        try:
            error = await self._searches.run("roles", search, ends_ns, shared=True)
        except Unanswered as late:
            raise unavailable(late.__cause__ or late) from late.__cause__
        if error is not None:
            raise unavailable(error) if isinstance(error, self._servers.troubles) else error

    async def _search(self, each_ns: int, _: int) -> None:
        topology = self._servers.topology
        if not topology.is_known:
            await flows.run_async(
                topology.discover(lambda node, commands: self.exchange(node, commands, stopwatch() + each_ns))
            )

    async def exchange(self, node: NodeAddress | None, commands: Sequence[Command], ends_ns: int) -> list[Any]:
        """Send commands to a server (None: the only one) once and return its replies; raise Unanswered if none come."""
        servers = self._servers
        if stopwatch() >= ends_ns:
            raise StoreUnavailable("no time was left to ask Redis", away=False, reason=LATE)
        connection = await self._take(node, ends_ns)
        timeout_at = redis_client.timeout_at()
        try:
            asked = commands if node in servers.checked else servers.with_question(node, commands)
            async with timeout_at(self._loop.time() + (ends_ns - stopwatch()) / 1e9):
                replies = await self._replies(connection, asked)
        except BaseException as error:
            await connection.disconnect(nowait=True)  # the next read would get another call's reply
            if isinstance(error, servers.troubles):
                raise (interrupted() if self._loop.is_closed() else Unanswered()) from error
            raise
        if self._closed:
            await connection.disconnect(nowait=True)
        else:
            self._idle.setdefault(node, []).append(connection)
        return replies if len(replies) == len(commands) else servers.without_question(node, replies)

    async def _replies(self, connection: Any, commands: Sequence[Command]) -> list[Any]:
        pack = redis_client.packer()
        packed = connection.pack_commands(commands) if pack is None else [b"".join(map(pack, commands))]
        await connection.send_packed_command(packed, check_health=False)
        replies: list[Any] = []
        for _ in commands:
            try:
                replies.append(await connection.read_response())
            except self._servers.refusal as error:
                replies.append(error)
        return replies

    async def close(self) -> None:
        """Close the connections; those in use are closed when their exchange ends."""
        self._closed = True
        self._searches.cancel()
        self._set_ups.cancel()
        for idle in self._idle.values():
            while idle:
                await idle.pop().disconnect(nowait=True)

    async def _take(self, node: NodeAddress | None, ends_ns: int) -> Any:
        """Return a connection that the server has not closed in the meantime, or set one up beside decisions."""
        for _ in range(_TRIES):
            connection = await self._idle_one(node)
            if connection is not None:
                return connection
            error = await self._set_ups.run(node, functools.partial(self._set_up, node), ends_ns)
            if error is not None:
                if isinstance(error, self._servers.troubles):
                    raise (interrupted() if self._loop.is_closed() else Unsent()) from error
                raise error
            self._servers.leave_for_others(node, ends_ns)
        raise Unsent from ConnectionError("each connection was closed as soon as it was set up")

    async def _idle_one(self, node: NodeAddress | None) -> Any:
        idle = self._idle.get(node)
        while idle:
            connection = idle.pop()
            if _is_usable(connection):
                return connection
            await connection.disconnect(nowait=True)
        return None

    async def _set_up(self, node: NodeAddress | None, ends_ns: int) -> None:
        await self._close_others()
        servers = self._servers
        connection = redis_client.connection_of(servers.topology.connection(node))
        timeout_at = redis_client.timeout_at()
        try:
            async with timeout_at(self._loop.time() + (ends_ns - stopwatch()) / 1e9):
                await share_context(connection, servers.tls_contexts, is_sentinel(node))
                await connection.connect()
                await flows.run_async(servers.welcome(node, functools.partial(self._replies, connection)))
        except BaseException as error:
            await connection.disconnect(nowait=True)
            if isinstance(error, servers.troubles):
                servers.topology.suspect(node)
            raise
        if self._closed:
            await connection.disconnect(nowait=True)
        else:
            self._idle.setdefault(node, []).append(connection)

    async def _close_others(self) -> None:
        """Close connections to servers that no longer belong to the store."""
        for node in [known for known in self._idle if not self._servers.topology.knows(known)]:
            for connection in self._idle.pop(node, ()):
                await connection.disconnect(nowait=True)


def _is_usable(connection: Any) -> bool:
    """Return whether a connection is open and has nothing unexpected to read, neither in its stream nor in its parser.

    The name of redis-py's own method depends on its version, and it does not notice a connection that was reset.
    """
    reader, writer = connection._reader, connection._writer  # noqa: SLF001 - third-party
    if reader is None or writer is None or writer.is_closing() or reader.at_eof() or reader.exception() is not None:
        return False
    parser = connection._parser  # noqa: SLF001 - third-party
    try:
        rest = parser._reader.has_data()  # noqa: SLF001 - third-party
    except AttributeError:  # without hiredis
        rest = parser._buffer  # noqa: SLF001 - third-party
    return not (rest or reader._buffer)  # noqa: SLF001 - third-party
