"""Values from clients as parts of keys: a long one is hashed, because keys have a maximum size."""

from __future__ import annotations

import hashlib

_LONGEST = 200  # bytes, so that several fit into one key


class Claim(str):
    """An attribute that is compared as it is written, and counted as something else: an address as its network."""

    __slots__ = ("counted_as",)
    counted_as: str

    def __new__(cls, text: str, counted_as: str) -> Claim:
        claim = super().__new__(cls, text)
        claim.counted_as = counted_as
        return claim


def named(kind: str, value: str) -> str:
    """Return the key of a value of this kind, such as "user:ada"; different values have different keys."""
    if len(value) * 4 <= _LONGEST or len(value.encode("utf-8", "surrogatepass")) <= _LONGEST:
        return f"{kind}:{value}"
    return f"{kind} sha256:{hashed(value)}"


def hashed(text: str) -> str:
    """Return a hash of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
