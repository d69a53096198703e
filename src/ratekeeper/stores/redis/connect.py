"""How to connect: by URL, or as an existing redis-py client does; with settings under which nothing is sent twice.

A script that is sent again because its reply was lost charges twice, so redis-py's retries are off, whatever the URL or
the client says. Every socket operation gets the time that is left for the decision, not a fresh time-out.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ratekeeper.clock import stopwatch
from ratekeeper.errors import InvalidRule, StoreUnavailable
from ratekeeper.rates import show
from ratekeeper.stores.redis.exchange import Address
from ratekeeper.stores.redis.topology import Cluster, Sentinel, Standalone, Topology

_NAMES = ("redis", "rediss", "valkey", "valkeys")
SCHEMES = (*_NAMES, "unix", *(name + several for several in ("+cluster", "+sentinel") for name in _NAMES))
_A_MOMENT_NS = 1_000_000  # within which a time-out need not be set anew, which costs a system call
_PORT, _SENTINEL_PORT = 6379, 26_379
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


def settings(source: Any, *, for_asyncio: bool) -> tuple[type[Any], Topology]:
    """Return the class of connection and where to connect, from a URL or a redis-py client or pool."""
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
    given = dict(pool.connection_kwargs)
    if hasattr(pool, "sentinel_manager"):
        return _of_sentinel(pool, given, module)
    return pool.connection_class, Standalone(_ours(given))


def _ours(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name not in _NOT_OURS} | _OWN


def _of_url(url: str, module: Any) -> tuple[type[Any], Topology]:
    scheme, _, rest = url.removeprefix("async+").partition("://")
    scheme, _, several = scheme.replace("valkeys", "rediss").replace("valkey", "redis").partition("+")
    try:
        if not several:
            given = module.connection.parse_url(f"{scheme}://{rest}")
            return given.pop("connection_class", module.Connection), Standalone(_ours(given))
        secret, at, rest = rest.rpartition("@")
        hosts, _, rest = rest.partition("/")
        path, mark, query = rest.partition("?")
        addresses = [_address(host, _SENTINEL_PORT if several == "sentinel" else _PORT) for host in hosts.split(",")]
        name, _, database = path.partition("/") if several == "sentinel" else ("", "", path)
        given = module.connection.parse_url(f"{scheme}://{secret}{at}host/{database}{mark}{query}")
    except ValueError:  # whose text may quote a part of the password
        raise InvalidRule(
            f"store {safe(url)} cannot be read; write {_FORMS[several]}, and % codes for what is special in a password"
        ) from None
    kind = given.pop("connection_class", module.Connection)
    if several == "cluster":
        if given.pop("db", 0):
            raise InvalidRule(f"store {safe(url)} names a database; a cluster has only database 0")
        return kind, Cluster(_ours(given), addresses)
    if not name:
        raise InvalidRule(f"store {safe(url)} has no name of a master; write {_FORMS[several]}")
    login = {part: given.pop(f"sentinel_{part}", None) for part in ("username", "password")}
    for_sentinels = {part: value for part, value in given.items() if part not in _OF_THE_MASTER} | login
    return kind, Sentinel(_ours(given), _ours(for_sentinels), addresses, name)


_FORMS = {
    "": "redis://[user:password@]host[:port][/database]",
    "cluster": "redis+cluster://[user:password@]host[:port],host[:port]",
    "sentinel": "redis+sentinel://[user:password@]sentinel[:port],sentinel[:port]/master[/database]"
    "[?sentinel_password=...]",
}
_OF_THE_MASTER = ("username", "password", "db")


def _address(text: str, port: int) -> Address:
    host, colon, given = text.rpartition(":")
    if not colon or text.endswith("]"):  # an IPv6 address in brackets has colons of its own
        host, given = text, str(port)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not 0 < int(given) < 65_536:
        raise ValueError(text)
    return Address(host, int(given), port == _SENTINEL_PORT)


def _of_cluster(client: Any, module: Any) -> tuple[type[Any], Topology]:
    nodes = client.nodes_manager
    given = dict(nodes.connection_kwargs)
    seeds = [Address(node.host, int(node.port)) for node in nodes.startup_nodes.values()]
    kind = given.pop("connection_class", module.SSLConnection if given.pop("ssl", False) else module.Connection)
    return kind, Cluster(_ours({name: value for name, value in given.items() if name not in ("host", "port")}), seeds)


def _of_sentinel(pool: Any, given: dict[str, Any], module: Any) -> tuple[type[Any], Topology]:
    sentinels = [sentinel.connection_pool.connection_kwargs for sentinel in pool.sentinel_manager.sentinels]
    addresses = [Address(each["host"], int(each.get("port", _SENTINEL_PORT)), is_sentinel=True) for each in sentinels]
    given.pop("connection_pool", None)  # its connections would ask the pool for the master
    kind = module.SSLConnection if issubclass(pool.connection_class, module.SSLConnection) else module.Connection
    return kind, Sentinel(_ours(given), _ours(dict(sentinels[0])), addresses, pool.service_name)


def errors() -> tuple[type[Exception], tuple[type[Exception], ...]]:
    """Return what redis-py raises for an answer that is an error, and all that can go wrong with an exchange."""
    from redis.exceptions import RedisError, ResponseError

    return ResponseError, (RedisError, OSError, TimeoutError, asyncio.TimeoutError, StoreUnavailable)


def safe(url: str) -> str:
    """Show a URL without its password."""
    scheme, separator, rest = url.partition("://")
    secret, at, address = rest.rpartition("@")
    if any(special in secret for special in "/?#"):  # where the password ends is anybody's guess
        return f"{scheme}{separator}***"
    address = address.partition("?")[0].partition("#")[0]
    return f"{scheme}{separator}{secret.partition(':')[0]}:***@{address}" if at else f"{scheme}{separator}{address}"


def bounded(kind: type[Any]) -> type[Any]:
    """Return a kind of connection whose every socket operation has the time that is left."""

    class Bounded(kind):  # type: ignore[misc]
        ends_ns = 0
        set_ns = 0  # when the socket was last told how long it may take

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

        def send_packed_command(self, command: Any, check_health: bool = True) -> None:  # noqa: ARG002
            if self._sock is not None:
                self._sock.settimeout(self.left)
                self.set_ns = stopwatch()
            super().send_packed_command(command, check_health=False)

        def read_response(self, *args: Any, **kwargs: Any) -> Any:
            if self._sock is not None and stopwatch() - self.set_ns > _A_MOMENT_NS:
                self._sock.settimeout(self.left)
                self.set_ns = stopwatch()
            return super().read_response(*args, **kwargs)

    return Bounded
