"""Where state lives: in this process, or on a server."""

from __future__ import annotations

from ratekeeper.errors import InvalidRule
from ratekeeper.rates import show
from ratekeeper.stores.memory import MemoryStore
from ratekeeper.stores.redis.asynchronous import AsyncRedisStore
from ratekeeper.stores.redis.sync import RedisStore
from ratekeeper.stores.redis.urls import SCHEMES, safe

__all__ = ["AsyncRedisStore", "MemoryStore", "RedisStore"]

Store = MemoryStore | RedisStore | AsyncRedisStore


def from_url(url: str, *, for_asyncio: bool = False) -> Store:
    """Make the store that a URL names."""
    scheme, separator, rest = url.partition("://")
    scheme = scheme.removeprefix("async+")
    if separator and scheme in SCHEMES:
        return AsyncRedisStore(url) if for_asyncio else RedisStore(url)
    if not separator or scheme != "memory":
        known = ", ".join(f"'{known}://'" for known in ("memory", *SCHEMES))
        raise InvalidRule(f"store {show(safe(url))} has an unknown scheme; use {known}")
    if rest:
        raise InvalidRule(
            f"store {show(safe(url))} has something behind 'memory://'; for options use MemoryStore(max_keys=...)"
        )
    return MemoryStore()
