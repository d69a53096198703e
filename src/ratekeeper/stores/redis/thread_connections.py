"""The connections of threads: one exchange at a time on each, with one server.

Every socket operation gets the time left for the decision, to the millisecond, not a fresh time-out.
"""

from __future__ import annotations

import functools
import select
import weakref
from collections.abc import Sequence
from contextlib import suppress
from itertools import repeat, starmap
from typing import Any

from ratekeeper import flows, forks
from ratekeeper.clock import stopwatch
from ratekeeper.stores.protocol import Demand
from ratekeeper.stores.redis import redis_client
from ratekeeper.stores.redis.redis_errors import Result, Unanswered, Unsent, unavailable
from ratekeeper.stores.redis.routing import Bundle, send
from ratekeeper.stores.redis.semaphore import SignalSafeSemaphore
from ratekeeper.stores.redis.servers import MAX_AT_ONCE, Servers, Within, time_for_each
from ratekeeper.stores.redis.thread_jobs import ThreadJobs
from ratekeeper.stores.redis.tls import thread_context
from ratekeeper.stores.redis.topology import Command
from ratekeeper.stores.redis.urls import NodeAddress, is_sentinel
from ratekeeper.stores.redis.wire import decode

_TRIES = 10  # connections that a caller waits for: other callers may take what was set up for it
_A_MOMENT_NS = 1_000_000  # how far a socket's time-out may differ from the time left


class ThreadConnections:
    """The connections of one store to its servers."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self.calls = servers.calls
        self._semaphore = SignalSafeSemaphore(MAX_AT_ONCE)  # for anything but decisions
        self._idle: dict[NodeAddress | None, list[Any]] = {}
        self._set_ups = ThreadJobs(servers.ready)
        self._searches = ThreadJobs(lambda _: servers.breaker.ask_again())
        self._era = object()  # another one after each time that all connections were closed

    # Written again in `AsyncioConnections`: a flow would make the walk of every decision on Redis three calls longer.
    def decide(self, requests: Sequence[Sequence[Demand]], ends_ns: int) -> Sequence[Result]:
        """Have requests decided in one batch; return the result of each."""
        servers = self._servers
        try:
            if not servers.topology.may_move:
                (reply,) = self.exchange(None, (servers.codec.command(requests),), ends_ns)
                results = decode(reply, requests) if type(reply) is list else servers.results_of(reply, requests)
                if results is not None:
                    return results
            return flows.run(servers.decide(requests, Within(ends_ns, self)))
        except servers.troubles as error:
            raise unavailable(error) from error
        except Unanswered as error:
            raise unavailable(error.__cause__ or error) from error.__cause__

    def ask(self, bundles: Sequence[Bundle], ends_ns: int) -> None:
        """Send commands other than decisions; as many callers at a time as there are batches."""
        flow = send(self._servers.topology, bundles, Within(ends_ns, self))
        try:
            self._semaphore.call(ends_ns, flows.run, flow)
        except self._servers.troubles as error:
            raise unavailable(error) from error

    def find_nodes(self, ends_ns: int) -> None:
        """Find out which node has which slot, unless the cluster is considered away."""
        with self._servers.breaker.asking(ends_ns):
            self.find(ends_ns)

    def find(self, ends_ns: int) -> None:
        """Find out which server has which role, beside decisions; all callers wait for one that asks."""
        search = functools.partial(self._search, time_for_each(ends_ns))
        try:
            error = self._searches.run("roles", search, ends_ns, shared=True)
        except Unanswered as late:
            raise unavailable(late.__cause__ or late) from late.__cause__
        if error is not None:
            raise unavailable(error) if isinstance(error, self._servers.troubles) else error

    def _search(self, each_ns: int, _: int) -> None:
        topology = self._servers.topology
        if not topology.is_known:
            flows.run(topology.discover(lambda node, commands: self.exchange(node, commands, stopwatch() + each_ns)))

    def exchange(self, node: NodeAddress | None, commands: Sequence[Command], ends_ns: int) -> list[Any]:
        """Send commands to a server (None: the only one) once and return its replies; raise Unanswered if none come."""
        servers = self._servers
        connection = self._take(node, ends_ns)
        try:
            if node in servers.checked:
                replies = connection.exchange(commands)
            else:
                replies = connection.exchange(servers.with_question(node, commands))
        except BaseException as error:
            connection.disconnect()  # unfinished: the next read would get another call's reply
            if isinstance(error, servers.troubles):
                raise Unanswered from error
            raise
        self._idle.setdefault(node, []).append(connection)
        return replies if len(replies) == len(commands) else servers.without_question(node, replies)

    def close(self) -> None:
        """Close the connections; the next exchange opens a new one."""
        self._era = object()
        for idle in list(self._idle.values()):
            with suppress(IndexError):  # another thread was quicker
                while idle:
                    idle.pop().disconnect()

    def _take(self, node: NodeAddress | None, ends_ns: int) -> Any:
        """Return a connection that the server has not closed in the meantime, or set one up beside decisions."""
        for _ in range(_TRIES):
            connection = self._idle_one(node, ends_ns)
            if connection is not None:
                return connection
            error = self._set_ups.run(node, functools.partial(self._set_up, node), ends_ns)
            if error is not None:
                if isinstance(error, self._servers.troubles):
                    raise Unsent from error
                raise error
            self._servers.leave_for_others(node, ends_ns)
        raise Unsent from ConnectionError("each connection was closed as soon as it was set up")

    def _idle_one(self, node: NodeAddress | None, ends_ns: int) -> Any:
        idle = self._idle.get(node)
        while idle:
            try:
                connection = idle.pop()
            except IndexError:  # another thread was quicker
                break
            connection.ends_ns = ends_ns
            try:
                if connection.is_usable():
                    return connection
            except Exception:  # noqa: BLE001, S110 - broken in some way: close it
                pass
            connection.disconnect()
        return None

    def _set_up(self, node: NodeAddress | None, ends_ns: int) -> None:
        self._close_others()
        servers, era = self._servers, self._era
        kind, arguments = servers.topology.connection(node)
        connection = redis_client.connection_of((thread_connection(kind), arguments))  # type: ignore[arg-type]  # a class is hashable
        connection.ends_ns = ends_ns
        try:
            if is_sentinel(node) not in servers.tls_contexts:
                servers.tls_contexts[is_sentinel(node)] = thread_context(kind, arguments)
            connection.tls_context = servers.tls_contexts[is_sentinel(node)]
            connection.connect()
            flows.run(servers.welcome(node, connection.exchange))
        except BaseException as error:
            connection.disconnect()
            if isinstance(error, servers.troubles):
                servers.topology.suspect(node)
            raise
        if era is self._era:
            self._idle.setdefault(node, []).append(connection)
        else:
            connection.disconnect()

    def _close_others(self) -> None:
        """Close connections to servers that no longer belong to the store."""
        for node in [known for known in list(self._idle) if not self._servers.topology.knows(known)]:
            for connection in self._idle.pop(node, ()):
                connection.disconnect()


@functools.cache
def thread_connection(kind: Any) -> type[Any]:
    """Return a subclass of a redis-py connection whose every socket operation gets the time left."""
    return type("ThreadConnection", (_ThreadConnection, kind), {"kind": kind})


class _ThreadConnection:
    """The mix-in that comes before redis-py's own class."""

    _sock: Any = None
    _parser: Any
    kind: Any
    ends_ns = 0
    tls_context: Any = None
    _poll: Any = None
    _socket_has_ns = 0  # the time-out last set on the socket

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments | {"parser_class": parser_class()})
        self._parser.owner = weakref.proxy(self)
        forks.renew_in_child(self)

    def after_fork(self) -> None:
        """Close the socket: it is the parent's, and a call that a signal handler forked in must not read its answer."""
        if self._sock is not None:
            self._sock.close()

    @property
    def socket_timeout(self) -> float:
        """Seconds until the exchange must end."""
        return _seconds(self.ends_ns - stopwatch()) if self.ends_ns else 1.0

    @socket_timeout.setter
    def socket_timeout(self, _: object) -> None:
        pass

    socket_connect_timeout = socket_timeout

    def _connect(self) -> Any:
        if self.tls_context is None:
            return super()._connect()  # type: ignore[misc]
        plain = super(self.kind, self)._connect()  # type: ignore[misc]
        try:
            return self.tls_context.wrap_socket(plain, server_hostname=self.host)  # type: ignore[attr-defined]
        except BaseException:
            plain.close()
            raise

    def is_usable(self) -> bool:
        """Return whether the connection is open and has nothing unexpected to read."""
        if not hasattr(select, "poll"):  # on Windows
            self._socket_has_ns = 0  # redis-py may change the time-out to look
            return not self.can_read()  # type: ignore[attr-defined]
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self._sock, select.POLLIN)
        return not (self._parser.holds_more() or self._poll.poll(0))

    def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands and return the replies; an error reply is returned too, not raised."""
        pack = redis_client.packer()
        packed = self.pack_commands(commands) if pack is None else [b"".join(map(pack, commands))]  # type: ignore[attr-defined]
        self.send_packed_command(packed)
        return list(starmap(self._parser.read_response, repeat((), len(commands))))

    def tell_socket(self) -> None:
        """Set the socket's time-out to the time left, unless it is close to that already."""
        left_ns = self.ends_ns - stopwatch()
        if left_ns <= 0:
            raise TimeoutError("no time left")
        if not -_A_MOMENT_NS <= self._socket_has_ns - left_ns <= _A_MOMENT_NS and self._sock is not None:
            self._sock.settimeout(left_ns / 1e9)
            self._socket_has_ns = left_ns

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:  # noqa: ARG002
        self.tell_socket()
        super().send_packed_command(command, check_health=False)  # type: ignore[misc]


def _seconds(left_ns: int) -> float:
    if left_ns <= 0:
        raise TimeoutError("no time left")
    return left_ns / 1e9


@functools.cache
def parser_class() -> type[Any]:
    """Return a subclass of redis-py's parser that updates the time-out before each read."""
    from redis.connection import DefaultParser

    class Parser(DefaultParser):  # type: ignore[misc, valid-type]
        owner: Any = None

        def on_connect(self, connection: Any, **kwargs: Any) -> None:
            super().on_connect(connection, **kwargs)
            if not hasattr(self, "_reader"):  # without hiredis, a buffer reads from the socket
                self._buffer._sock = _Piecewise(self.owner)  # noqa: SLF001 - third-party

        def holds_more(self) -> bool:
            """Return whether data is left over after the last reply."""
            return bool(self._reader.has_data() if hasattr(self, "_reader") else self._buffer.unread_bytes())

        def read_from_socket(self, *args: Any, **kwargs: Any) -> Any:
            if self.owner is not None:
                self.owner.tell_socket()  # a reply may arrive in many pieces
            return super().read_from_socket(*args, **kwargs)

    return Parser


class _Piecewise:
    """A connection's socket, with its time-out updated before each read."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def recv(self, size: int) -> bytes:
        self._owner.tell_socket()
        return self._owner._sock.recv(size)  # type: ignore[no-any-return]  # noqa: SLF001 - third-party

    def settimeout(self, seconds: float | None) -> None:
        self._owner._sock.settimeout(seconds)  # noqa: SLF001 - third-party
