"""How to connect: by URL, or as an existing redis-py client does; with settings under which nothing is sent twice.

A script that is sent again because its reply was lost charges twice, so redis-py's retries are off, whatever the URL or
the client says. Every socket operation gets the time that is left for the decision, to the
millisecond, not a fresh time-out.
"""

from __future__ import annotations

import asyncio
import functools
import select
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ratekeeper.clock import stopwatch
from ratekeeper.errors import StoreUnavailable
from ratekeeper.rates import show
from ratekeeper.stores.redis import urls
from ratekeeper.stores.redis.exchange import Address, Command
from ratekeeper.stores.redis.topology import Cluster, Sentinel, Standalone, Topology

_A_MOMENT = 0.001  # seconds by which a socket's time-out may differ from the time that is left
_OWN = {  # what decides how a decision is sent is not the URL's or the client's to say
    "retry": None,
    "retry_on_timeout": False,
    "retry_on_error": (),
    "protocol": 2,
    "decode_responses": False,
    "health_check_interval": 0,
    "socket_timeout": None,
    "socket_connect_timeout": None,
    "driver_info": None,  # no CLIENT SETINFO: two exchanges less before the first decision
}
_NOT_OURS = (
    "connection_class",
    "max_connections",
    "timeout",
    "socket_timeout",
    "socket_connect_timeout",
    "response_callbacks",
)


def topology_of(source: Any, *, for_asyncio: bool) -> Topology:
    """Return where to connect and how, from a URL or a redis-py client or pool."""
    try:
        import redis
        import redis.asyncio
    except ImportError as error:
        raise StoreUnavailable(
            "a Redis store needs the redis client; install it with: pip install 'ratekeeper[redis]'"
        ) from error
    module: Any = redis.asyncio if for_asyncio else redis
    if isinstance(source, str):
        return _of_url(source, module)
    if isinstance(source, module.RedisCluster):
        return _of_cluster(source, module)
    pool = getattr(source, "connection_pool", source)
    if not isinstance(pool, module.ConnectionPool):
        flavour = "redis.asyncio" if for_asyncio else "redis"
        raise TypeError(f"a store needs a URL, or a client or pool of {flavour}, not {show(type(source))}")
    if hasattr(pool, "sentinel_manager"):
        return _of_sentinel(pool, module)
    return Standalone((pool.connection_class, _ours(pool.connection_kwargs)))


def _ours(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name not in _NOT_OURS} | _OWN


def _anywhere(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments without an address: that comes later."""
    return {name: value for name, value in _ours(given).items() if name not in ("host", "port")}


def _of_url(url: str, module: Any) -> Topology:
    read = urls.read(url)
    try:
        given = module.connection.parse_url(read.plain)
        kind = given.pop("connection_class", module.Connection)
        login = {part: given.pop(f"sentinel_{part}", None) for part in ("username", "password")}
        kind(**_ours(given))  # not connected: only to see that it can be made
    except (ValueError, TypeError, AttributeError, module.RedisError) as error:  # whose text may quote the password
        raise urls.unreadable(url, read.several, type(error).__name__) from None
    if not read.several:
        return Standalone((kind, _ours(given)))
    if read.several == "cluster":
        return Cluster((kind, _anywhere(given)), read.addresses)
    to_sentinels = {part: value for part, value in given.items() if part not in _OF_THE_MASTER} | login
    return Sentinel((kind, _anywhere(given)), (kind, _anywhere(to_sentinels)), read.addresses, read.name)


_OF_THE_MASTER = ("username", "password", "db")


def _of_cluster(client: Any, module: Any) -> Topology:
    nodes = client.nodes_manager
    given = dict(nodes.connection_kwargs)
    seeds = [Address(node.host, int(node.port)) for node in nodes.startup_nodes.values()]
    kind = given.pop("connection_class", module.SSLConnection if given.pop("ssl", False) else module.Connection)
    return Cluster((kind, _anywhere(given)), seeds, getattr(nodes, "address_remap", None))


def _of_sentinel(pool: Any, module: Any) -> Topology:
    sentinels = [sentinel.connection_pool for sentinel in pool.sentinel_manager.sentinels]
    addresses = [
        Address(each.connection_kwargs["host"], int(each.connection_kwargs.get("port", urls.SENTINEL_PORT)), True)
        for each in sentinels
    ]
    given = dict(pool.connection_kwargs)
    given.pop("connection_pool", None)  # its connections would ask the pool for the master
    kind = module.SSLConnection if issubclass(pool.connection_class, module.SSLConnection) else module.Connection
    to_sentinels = (sentinels[0].connection_class, _anywhere(sentinels[0].connection_kwargs))
    return Sentinel((kind, _anywhere(given)), to_sentinels, addresses, pool.service_name)


def errors() -> tuple[type[Exception], tuple[type[Exception], ...]]:
    """Return what redis-py raises for an answer that is an error, and all that can go wrong with an exchange."""
    from redis.exceptions import RedisError, ResponseError

    return ResponseError, (RedisError, OSError, TimeoutError, asyncio.TimeoutError, StoreUnavailable)


def timeout_at(ends: float) -> Any:
    """Return what bounds the time of what is awaited in it, by the clock of the event loop."""
    if sys.version_info >= (3, 11):
        return asyncio.timeout_at(ends)
    import async_timeout  # which redis brings along

    return async_timeout.timeout_at(ends)


async def stands(connection: Any) -> bool:
    """Tell whether an asyncio connection was neither closed nor reset, nor told what nobody asked for."""
    if not connection.is_connected or connection._writer.is_closing():  # noqa: SLF001 - a reset is no end to can_read()
        return False
    return not await connection.can_read()


@functools.cache
def packer() -> Callable[[Command], bytes] | None:
    """Return what packs a command in C; None if hiredis is not there, and the connection has to do it."""
    try:
        from hiredis import pack_command
    except ImportError:
        return None
    return pack_command  # type: ignore[return-value]  # which says that a command has one part


def pack(connection: Any, commands: Sequence[Command]) -> list[bytes]:
    """Return commands as they are sent."""
    pack_one = packer()
    if pack_one is None:
        return connection.pack_commands(commands)  # type: ignore[no-any-return]
    return [b"".join(map(pack_one, commands))]


async def exchange(connection: Any, commands: Sequence[Command], refusal: type[Exception]) -> list[Any]:
    """Send commands on a connection of an event loop; return the replies, an error that is one included."""
    await connection.send_packed_command(pack(connection, commands), check_health=False)
    replies: list[Any] = []
    for _ in commands:
        try:
            replies.append(await connection.read_response())
        except refusal as error:
            replies.append(error)
    return replies


@functools.cache
def bounded(kind: Any) -> type[Any]:
    """Return a kind of connection whose every socket operation has the time that is left."""
    return type("Bounded", (_Bounded, kind), {})


@functools.cache
def _parser() -> type[Any]:
    from redis.connection import DefaultParser

    class Parser(DefaultParser):  # type: ignore[misc, valid-type]
        owner: Any = None

        def on_connect(self, connection: Any, **kwargs: Any) -> None:
            super().on_connect(connection, **kwargs)
            if not hasattr(self, "_reader"):  # hiredis is not there: a buffer reads from the socket
                self._buffer._sock = _Piecewise(self.owner)  # noqa: SLF001

        def holds_more(self) -> bool:
            """Tell whether something was read that is no part of a reply that was read."""
            return bool(self._reader.has_data() if hasattr(self, "_reader") else self._buffer.unread_bytes())

        def read_from_socket(self, *args: Any, **kwargs: Any) -> Any:
            if self.owner is not None:
                self.owner.tell_socket()  # a reply may come in many pieces
            return super().read_from_socket(*args, **kwargs)

    return Parser


class _Piecewise:
    """A connection's socket, which is told before each piece how long it may take."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def recv(self, size: int) -> bytes:
        self._owner.tell_socket()
        return self._owner._sock.recv(size)  # type: ignore[no-any-return]  # noqa: SLF001

    def settimeout(self, seconds: float | None) -> None:
        self._owner._sock.settimeout(seconds)  # noqa: SLF001


class _Bounded:
    """What is put before a connection's own class."""

    _sock: Any
    _parser: Any
    ends_ns = 0
    _poll: Any = None
    _told = 0.0  # how many seconds the socket may take, as far as it knows

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments | {"parser_class": _parser()})
        self._parser.owner = weakref.proxy(self)

    @property
    def left(self) -> float:
        """Seconds until the exchange must have come to its end."""
        left = (self.ends_ns - stopwatch()) / 1e9
        if left <= 0:
            raise TimeoutError("no time left")
        return left

    @property
    def socket_timeout(self) -> float:
        return self.left if self.ends_ns else 1.0

    @socket_timeout.setter
    def socket_timeout(self, _: object) -> None:
        pass

    socket_connect_timeout = socket_timeout

    def stands(self) -> bool:
        """Tell whether the server has neither closed the connection nor said what nobody asked for."""
        if not hasattr(select, "poll"):  # as on Windows
            self._told = 0.0  # redis-py may set another one to look
            return not self.can_read()  # type: ignore[attr-defined]
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self._sock, select.POLLIN)
        return not (self._parser.holds_more() or self._poll.poll(0))

    def tell_socket(self) -> None:
        """Tell the socket how long it may take, unless it knows."""
        left = self.left
        if self._sock is not None and abs(self._told - left) > _A_MOMENT:
            self._sock.settimeout(left)
            self._told = left

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:  # noqa: ARG002
        self.tell_socket()
        super().send_packed_command(command, check_health=False)  # type: ignore[misc]

    def reply(self) -> Any:
        """Return the next reply; an error that is one is returned, too."""
        return self._parser.read_response()
