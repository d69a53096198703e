"""How to connect: by URL or like an existing redis-py client, with settings under which nothing is sent twice.

A script that is sent again because its reply was lost would charge twice, so redis-py's retries are turned off,
whatever the URL or the client says.
"""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ratekeeper.errors import StoreUnavailable
from ratekeeper.rates import show
from ratekeeper.stores.redis import urls
from ratekeeper.stores.redis.topology import Cluster, Command, Connecting, Sentinel, Standalone, Topology
from ratekeeper.stores.redis.urls import NodeAddress

_OLDEST = 5  # the major version of redis-py
_INSTALL = "install it with: pip install 'ratekeeper[redis]'"
_OWN = {  # these settings override the URL and the client
    "retry": None,
    "retry_on_timeout": False,
    "retry_on_error": (),
    "protocol": 2,
    "decode_responses": False,
    "health_check_interval": 0,
    "socket_timeout": None,
    "socket_connect_timeout": None,
}
_OF_THE_LIBRARY = ("driver_info", "lib_name", "lib_version")  # what redis-py tells the server about itself
_NOT_OURS = (
    "connection_class",
    "max_connections",
    "timeout",
    "socket_timeout",
    "socket_connect_timeout",
    "response_callbacks",
    *_OF_THE_LIBRARY,
)


def topology_of(source: Any, *, for_asyncio: bool) -> Topology:
    """Return where to connect and how, from a URL or a redis-py client or pool."""
    try:
        import redis
        import redis.asyncio
    except ImportError as error:
        raise StoreUnavailable(f"a Redis store needs the redis client ({error}); {_INSTALL}") from error
    if int(redis.__version__.partition(".")[0]) < _OLDEST:
        raise StoreUnavailable(
            f"a Redis store needs redis {_OLDEST}.0 or newer, and {redis.__version__} is installed; {_INSTALL}"
        )
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


def connection_of(connecting: Connecting) -> Any:
    """Return a connection that is not open yet."""
    kind, arguments = connecting
    connection = kind(**arguments)
    for name in _OF_THE_LIBRARY:  # no CLIENT SETINFO, which would be two more exchanges before the first decision
        setattr(connection, name, None)
    return connection


def _ours(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name not in _NOT_OURS} | _OWN


def _anywhere(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments without an address, which is added later."""
    return {name: value for name, value in _ours(given).items() if name not in ("host", "port")}


def _of_url(url: str, module: Any) -> Topology:
    read = urls.read(url)
    try:
        given = module.connection.parse_url(read.plain)
        kind = given.pop("connection_class", module.Connection)
        login = {part: given.pop(f"sentinel_{part}", None) for part in ("username", "password")}
        kind(**_ours(given))  # does not connect: only checks the arguments
    except (ValueError, TypeError, AttributeError, module.RedisError) as error:  # its text may quote the password
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
    seeds = [NodeAddress(node.host, int(node.port)) for node in nodes.startup_nodes.values()]
    kind = given.pop("connection_class", module.SSLConnection if given.pop("ssl", False) else module.Connection)
    return Cluster((kind, _anywhere(given)), seeds, getattr(nodes, "address_remap", None))


def _of_sentinel(pool: Any, module: Any) -> Topology:
    sentinels = [sentinel.connection_pool for sentinel in pool.sentinel_manager.sentinels]
    addresses = [
        NodeAddress(each.connection_kwargs["host"], int(each.connection_kwargs.get("port", urls.SENTINEL_PORT)), True)
        for each in sentinels
    ]
    given = dict(pool.connection_kwargs)
    given.pop("connection_pool", None)  # its connections would ask that pool for the master
    kind = module.SSLConnection if issubclass(pool.connection_class, module.SSLConnection) else module.Connection
    to_sentinels = (sentinels[0].connection_class, _anywhere(sentinels[0].connection_kwargs))
    return Sentinel((kind, _anywhere(given)), to_sentinels, addresses, pool.service_name)


def errors() -> tuple[type[Exception], tuple[type[Exception], ...]]:
    """Return what redis-py raises for an error reply, and everything that a failed exchange can raise."""
    from redis.exceptions import RedisError, ResponseError

    return ResponseError, (RedisError, OSError, TimeoutError, asyncio.TimeoutError, StoreUnavailable)


@functools.cache
def timeout_at() -> Callable[[float], Any]:
    """Return `asyncio.timeout_at`, or its backport before Python 3.11."""
    if sys.version_info >= (3, 11):
        return asyncio.timeout_at
    import async_timeout  # a dependency of redis-py

    return async_timeout.timeout_at


@functools.cache
def packer() -> Callable[[Command], bytes] | None:
    """Return hiredis's function that packs a command in C; None if it is missing and the connection must pack."""
    try:
        from hiredis import pack_command
    except ImportError:
        return None
    return pack_command  # type: ignore[return-value]  # its stub allows only one part
