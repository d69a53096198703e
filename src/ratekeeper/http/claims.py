"""Values from clients as parts of keys: a long one is hashed, because keys have a maximum size."""

from __future__ import annotations

import hashlib

_LONGEST = 200  # bytes, so that several fit into one key


def named(kind: str, value: str) -> str:
    """Return the key of a value of this kind, such as "user:ada"; different values have different keys."""
    if len(value) * 4 <= _LONGEST or len(value.encode("utf-8", "surrogatepass")) <= _LONGEST:
        return f"{kind}:{value}"
    return f"{kind} sha256:{hashed(value)}"


def hashed(text: str) -> str:
    """Return a hash of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
