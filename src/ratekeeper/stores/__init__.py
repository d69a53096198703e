"""The stores, which keep the state of keys: in this process, in a file or on a server.

Reading order:

- `protocol`: what every store implements: its requests and answers
- `memory`: the shortest store; its states are in `tables`, `eviction` decides which keys it forgets when it is full,
  and `spinlock` guards its critical sections
- `deciding`: what a request does to the states of its keys, in memory and on SQLite; `rules_in_force`: by which rules a
  state ends
- `sqlite`: keeps state in a file; `database` reads and writes it, `filelock` guards it, `file_access` lets one caller
  at a time use it, `closing` closes both, and `paths` reads its URL
- `redis/`: state on servers, a package of its own
- `names`: the names of keys, in files and on servers; `breaker` keeps callers from a store that is away; `calls`
  tells who counts what a store does; `safe_urls` shows a URL without its secrets
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratekeeper.errors import InvalidRule
from ratekeeper.rates import show
from ratekeeper.stores.memory import MemoryStore
from ratekeeper.stores.protocol import Store

if TYPE_CHECKING:
    from ratekeeper.stores.redis.asyncio_store import AsyncRedisStore
    from ratekeeper.stores.redis.thread_store import RedisStore
    from ratekeeper.stores.sqlite import SqliteStore

__all__ = ["AsyncRedisStore", "MemoryStore", "RedisStore", "SqliteStore", "Store", "from_url"]


def __getattr__(name: str) -> Any:
    """Import a store that is not in memory when it is used."""
    if name == "SqliteStore":
        from ratekeeper.stores.sqlite import SqliteStore

        return SqliteStore
    if name == "RedisStore":
        from ratekeeper.stores.redis.thread_store import RedisStore

        return RedisStore
    if name == "AsyncRedisStore":
        from ratekeeper.stores.redis.asyncio_store import AsyncRedisStore

        return AsyncRedisStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def store_of(store: Any, *, for_asyncio: bool) -> Store:
    """Return the store that a limiter was given as a URL or as an object."""
    if isinstance(store, str):
        return from_url(store, for_asyncio=for_asyncio)
    if isinstance(store, type) or not isinstance(store, Store):
        raise TypeError(f"store must be a URL such as 'memory://' or a store object, not {_shown(store)}")
    return store


def _shown(store: Any) -> str:
    return show(store) if store is None or isinstance(store, type) else f"of type {type(store).__name__}"


def from_url(url: str, *, for_asyncio: bool = False) -> Store:
    """Make the store for a URL."""
    if url == "memory://":
        return MemoryStore()
    from ratekeeper.stores.redis.urls import SCHEMES
    from ratekeeper.stores.safe_urls import safe

    scheme, separator, rest = url.partition("://")
    scheme = scheme.removeprefix("async+")
    if separator and scheme in SCHEMES:
        if for_asyncio:
            from ratekeeper.stores.redis.asyncio_store import AsyncRedisStore

            return AsyncRedisStore(url)
        from ratekeeper.stores.redis.thread_store import RedisStore

        return RedisStore(url)
    if separator and scheme == "sqlite":
        from ratekeeper.stores.paths import path_of
        from ratekeeper.stores.sqlite import SqliteStore

        return SqliteStore(path_of(url))
    if not separator or scheme != "memory":
        known = ", ".join(f"'{known}://'" for known in ("memory", "sqlite", *SCHEMES))
        raise InvalidRule(f"store {show(safe(url))} has an unknown scheme; use {known}")
    if rest:
        raise InvalidRule(
            f"store {show(safe(url))} must be just 'memory://'; for options use MemoryStore(max_keys=...)"
        )
    return MemoryStore()
