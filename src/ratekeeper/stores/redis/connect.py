"""How to connect: by URL, or as an existing redis-py client does; with settings under which nothing is sent twice.

A script that is sent again because its reply was lost charges twice, so redis-py's retries are off, whatever the URL or
the client says. Every socket operation gets the time that is left for the decision, not a fresh time-out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ratekeeper.clock import stopwatch
from ratekeeper.errors import InvalidRule, StoreUnavailable
from ratekeeper.rates import show

SCHEMES = ("redis", "rediss", "unix", "valkey", "valkeys")
_OWN = {  # what decides how a decision is sent is not the URL's or the client's to say
    "retry": None,
    "retry_on_timeout": False,
    "retry_on_error": (),
    "protocol": 2,
    "decode_responses": False,
    "health_check_interval": 0,
    "driver_info": None,  # no CLIENT SETINFO: two exchanges less before the first decision
}
_NOT_OURS = ("connection_class", "max_connections", "timeout", "socket_timeout", "socket_connect_timeout")


def settings(source: Any, *, for_asyncio: bool) -> tuple[type[Any], dict[str, Any]]:
    """Return the class of connection and its arguments, from a URL or a redis-py client or pool."""
    try:
        import redis
        import redis.asyncio.connection
        import redis.connection
    except ImportError as error:
        raise StoreUnavailable(
            "a Redis store needs the redis client; install it with: pip install 'ratekeeper[redis]'"
        ) from error
    if isinstance(source, str):
        given, kind = _of_url(source, for_asyncio=for_asyncio)
    else:
        pool = getattr(source, "connection_pool", source)
        wanted = redis.asyncio.connection.ConnectionPool if for_asyncio else redis.connection.ConnectionPool
        if not isinstance(pool, wanted):
            flavour = "redis.asyncio" if for_asyncio else "redis"
            raise TypeError(f"a store needs a URL, or a client or pool of {flavour}, not {show(type(source))}")
        given, kind = dict(pool.connection_kwargs), pool.connection_class
    return kind, {name: value for name, value in given.items() if name not in _NOT_OURS} | _OWN


def _of_url(url: str, *, for_asyncio: bool) -> tuple[dict[str, Any], type[Any]]:
    from redis import connection as sync_connection
    from redis.asyncio import connection as async_connection

    module: Any = async_connection if for_asyncio else sync_connection
    scheme, _, rest = url.removeprefix("async+").partition("://")
    scheme = scheme.replace("valkeys", "rediss").replace("valkey", "redis")
    try:
        given = module.parse_url(f"{scheme}://{rest}")
    except ValueError:  # whose text may quote a part of the password
        raise InvalidRule(
            f"store {safe(url)} cannot be read; write redis://[user:password@]host[:port][/database], and % codes for "
            "what is special in a password"
        ) from None
    return given, given.pop("connection_class", module.Connection)


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


def bounded(kind: type[Any], arguments: dict[str, Any]) -> Callable[[], Any]:
    """Return what makes connections whose every socket operation has the time that is left."""

    class Bounded(kind):  # type: ignore[misc]
        ends_ns = 0

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
            super().send_packed_command(command, check_health=False)

        def read_response(self, *args: Any, **kwargs: Any) -> Any:
            if self._sock is not None:
                self._sock.settimeout(self.left)
            return super().read_response(*args, **kwargs)

    return lambda: Bounded(**arguments)
