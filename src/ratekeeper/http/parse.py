"""Read the limits in a server's response headers: the counterpart of `headers`. Malformed values are ignored.

>>> answer = {"RateLimit-Policy": '"user";q=100;w=60', "RateLimit": '"user";r=0;t=17'}
>>> limits = parse_headers(answer)
>>> limits.limits[0].remaining, limits.wait
(0, 17.0)
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ratekeeper.clock import wall_clock
from ratekeeper.http.structured import Item, Malformed, read_dictionary, read_list

_SECONDS = re.compile(r"[0-9]{1,15}(\.[0-9]{1,9})?")
_AN_EPOCH = 500_000_000  # an X-RateLimit-Reset above this is a point in time, below it a number of seconds to wait
_IN_MILLISECONDS = 100_000_000_000  # above this, it is in milliseconds


class QuotaPolicy(NamedTuple):
    """An item of `RateLimit-Policy`: a quota that the server grants to a partition of its clients."""

    name: str
    quota: int
    window: int | None
    unit: str = "requests"
    partition_key: bytes | None = None


class ServiceLimit(NamedTuple):
    """An item of `RateLimit` or of the older headers: what the client has left."""

    policy: str
    remaining: int
    reset_after: float | None
    partition_key: bytes | None = None


class ServerLimits(NamedTuple):
    """Everything that the headers of a response say about limits."""

    policies: tuple[QuotaPolicy, ...]
    limits: tuple[ServiceLimit, ...]
    retry_after: float | None

    @property
    def wait(self) -> float:
        """Seconds to wait before the next request: `Retry-After`, or until every exhausted limit resets."""
        if self.retry_after is not None:
            return self.retry_after
        return max((limit.reset_after or 0.0 for limit in self.limits if limit.remaining <= 0), default=0.0)


def parse_headers(headers: Mapping[str, str] | Iterable[tuple[str, str]], now: float | None = None) -> ServerLimits:
    """Read the limits from response headers. `now` is in seconds since the epoch; the default is the `Date` header."""
    fields: dict[str, str] = {}
    for name, value in headers.items() if isinstance(headers, Mapping) else headers:
        lower = name.lower()
        fields[lower] = f"{fields[lower]}, {value}" if lower in fields else value
    if now is None:
        now = _date(fields.get("date")) or wall_clock() / 1e9
    policies = tuple(_policies(fields.get("ratelimit-policy", "")))
    limits = tuple(_limits(fields.get("ratelimit", ""))) or tuple(_older(fields, now))
    return ServerLimits(policies, limits, _retry_after(fields.get("retry-after"), now))


def _policies(text: str) -> Iterable[QuotaPolicy]:
    for item in _items(text):
        values = item.parameters
        is_named = isinstance(item.value, str)  # before version 8 of the draft, the quota was the value
        quota = _count(values.get("q") if is_named else item.value)
        unit, partition = values.get("qu"), values.get("pk")
        if quota is not None:
            yield QuotaPolicy(
                str(item.value) if is_named else "default",
                quota,
                _count(values.get("w")),
                unit if isinstance(unit, str) else "requests",
                partition if isinstance(partition, bytes) else None,
            )


def _limits(text: str) -> Iterable[ServiceLimit]:
    for item in _items(text):
        remaining, reset = _count(item.parameters.get("r")), _count(item.parameters.get("t"))
        partition = item.parameters.get("pk")
        if isinstance(item.value, str) and remaining is not None:
            yield ServiceLimit(
                item.value,
                remaining,
                None if reset is None else float(reset),
                partition if isinstance(partition, bytes) else None,
            )


def _older(fields: Mapping[str, str], now: float) -> Iterable[ServiceLimit]:
    """Read version 7 of the draft, then version 6, then the non-standard `X-RateLimit-*` headers."""
    try:
        dictionary = read_dictionary(fields.get("ratelimit", ""))
    except Malformed:
        dictionary = {}
    named = {name: str(item.value) for name, item in dictionary.items()}
    for prefix, values in (("", named), ("ratelimit-", fields), ("x-ratelimit-", fields)):
        remaining = _number(values.get(f"{prefix}remaining"))
        if remaining is not None:
            reset = _number(values.get(f"{prefix}reset"))
            if reset is not None and reset > _AN_EPOCH:
                reset = max(0.0, (reset / 1000 if reset > _IN_MILLISECONDS else reset) - now)
            yield ServiceLimit("default", math.floor(remaining), reset)
            return


def _items(text: str) -> list[Item]:
    try:
        return read_list(text)
    except Malformed:
        return []


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _number(text: str | None) -> float | None:
    first = "" if text is None else text.partition(",")[0].partition(";")[0].strip()
    return float(first) if _SECONDS.fullmatch(first) else None


def _retry_after(text: str | None, now: float) -> float | None:
    seconds = _number(text)
    if seconds is not None:
        return seconds
    moment = _date(text)
    return None if moment is None else max(0.0, moment - now)


def _date(text: str | None) -> float | None:
    if text is None:
        return None
    from email.utils import parsedate_to_datetime  # only when there is a date to read: it takes milliseconds to import

    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
