"""Where state lives: in this process, or on a server."""

from __future__ import annotations

from ratekeeper.errors import InvalidRule
from ratekeeper.rates import show
from ratekeeper.stores.memory import MemoryStore

__all__ = ["MemoryStore"]


def from_url(url: str) -> MemoryStore:
    """Make the store that a URL names."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.removeprefix("async+") != "memory":
        raise InvalidRule(f"store {show(url)} has an unknown scheme; use 'memory://'")
    if rest:
        raise InvalidRule(
            f"store {show(url)} has something behind 'memory://'; for options use MemoryStore(max_keys=...)"
        )
    return MemoryStore()
