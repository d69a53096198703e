"""Keys: what is limited. A str, bytes or int, or a tuple of these; "1", b"1" and 1 are three different keys."""

from __future__ import annotations

from typing import Any

from ratekeeper.errors import InvalidRule
from ratekeeper.rates import show

MAX_BYTES = 1024
MAX_PARTS = 16
SURELY_SHORT = MAX_BYTES // 4  # characters; each takes four bytes at most


class Number(int):
    """An int in a key. Nobody can choose many that hash alike, which would make each lookup a search."""

    __slots__ = ()

    def __hash__(self) -> int:
        return hash(self.to_bytes(self.bit_length() // 8 + 1, "big", signed=True))  # salted, unlike that of an int


def check(key: Any) -> Any:
    """Return the key if it is valid, with each int as a `Number`, otherwise raise an error that says why it is not."""
    if type(key) is str and 0 < len(key) <= SURELY_SHORT:
        return key
    parts = key if isinstance(key, tuple) else (key,)
    if not parts:
        raise InvalidRule("key must not be empty: ()")
    if len(parts) > MAX_PARTS:
        raise InvalidRule(f"key must have at most {MAX_PARTS} parts, not {len(parts)}: {show(key)}")
    size = sum(map(_size, parts))
    if not size:
        raise InvalidRule(f"key must not be empty: {show(key)}")
    if size > MAX_BYTES:
        raise InvalidRule(f"key must have at most {MAX_BYTES} bytes, not {size}: {show(key)}; hash longer keys first")
    if isinstance(key, tuple):
        return tuple([Number(part) if isinstance(part, int) else part for part in key])
    return Number(key) if isinstance(key, int) else key


def _size(part: Any) -> int:
    if isinstance(part, str):
        return len(part.encode("utf-8", "surrogatepass"))
    if isinstance(part, bytes):
        return len(part)
    if isinstance(part, int) and not isinstance(part, bool):
        return part.bit_length() // 8 + 1
    raise TypeError(f"key must be a str, bytes or int, or a tuple of these, not {show(part)}")
