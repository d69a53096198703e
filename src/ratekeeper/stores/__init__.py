"""Where state lives: in this process, in a file, or on a server.

To read it: `protocol` is what every store implements, and what it is asked and answers; `memory` is the shortest store,
with `eviction` for what goes first when it is full and `spinlock` for its critical sections; `redis/` is a package of
its own; `breaker` keeps callers away from a server that is away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratekeeper.errors import InvalidRule
from ratekeeper.rates import show
from ratekeeper.stores.memory import MemoryStore
from ratekeeper.stores.protocol import Store

if TYPE_CHECKING:
    from ratekeeper.stores.redis.asynchronous import AsyncRedisStore
    from ratekeeper.stores.redis.sync import RedisStore

__all__ = ["AsyncRedisStore", "MemoryStore", "RedisStore", "Store", "from_url"]


def __getattr__(name: str) -> Any:
    """Import the Redis stores when they are used."""
    if name == "RedisStore":
        from ratekeeper.stores.redis.sync import RedisStore

        return RedisStore
    if name == "AsyncRedisStore":
        from ratekeeper.stores.redis.asynchronous import AsyncRedisStore

        return AsyncRedisStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def from_url(url: str, *, for_asyncio: bool = False) -> Store:
    """Make the store that a URL names."""
    if url == "memory://":
        return MemoryStore()
    from ratekeeper.stores.redis.urls import SCHEMES, safe

    scheme, separator, rest = url.partition("://")
    scheme = scheme.removeprefix("async+")
    if separator and scheme in SCHEMES:
        if for_asyncio:
            from ratekeeper.stores.redis.asynchronous import AsyncRedisStore

            return AsyncRedisStore(url)
        from ratekeeper.stores.redis.sync import RedisStore

        return RedisStore(url)
    if not separator or scheme != "memory":
        known = ", ".join(f"'{known}://'" for known in ("memory", *SCHEMES))
        raise InvalidRule(f"store {show(safe(url))} has an unknown scheme; use {known}")
    if rest:
        raise InvalidRule(
            f"store {show(safe(url))} has something behind 'memory://'; for options use MemoryStore(max_keys=...)"
        )
    return MemoryStore()
