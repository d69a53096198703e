"""Read the limits in a server's response headers: the counterpart of `headers`, and what services write on their own.

Malformed values are ignored.

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
_DURATION = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)(h|ms|m|s)")  # of 6m0s, 7.66s or 120ms
_UNITS = {"h": 3600, "m": 60, "s": 1, "ms": 0.001}
_TIMESTAMP = re.compile(  # RFC 3339
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})", re.IGNORECASE
)
_NAMED = re.compile(r"x-ratelimit-remaining-([\w-]+)|anthropic-ratelimit-([\w-]+)-remaining")
_AN_EPOCH = 500_000_000  # an X-RateLimit-Reset above this is a point in time, below it a number of seconds to wait
_PREFIXES = ("ratelimit-", "x-ratelimit-", "x-rate-limit-")
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
    next_after: float | None = None
    """Seconds until one more is admitted, if the limit is known to fill up steadily; None: not before it resets."""


class ServerLimits(NamedTuple):
    """Everything that the headers of a response say about limits."""

    policies: tuple[QuotaPolicy, ...]
    limits: tuple[ServiceLimit, ...]
    retry_after: float | None

    @property
    def wait(self) -> float:
        """Seconds to wait before the next request: `Retry-After`, or until every exhausted limit admits one more."""
        if self.retry_after is not None:
            return self.retry_after
        exhausted = [limit for limit in self.limits if limit.remaining <= 0]
        waits = [limit.reset_after if limit.next_after is None else limit.next_after for limit in exhausted]
        return max((wait or 0.0 for wait in waits), default=0.0)


def parse_headers(headers: Mapping[str, str] | Iterable[tuple[str, str]], now: float | None = None) -> ServerLimits:
    """Read the limits from response headers. `now` is in seconds since the epoch; the default is the `Date` header."""
    fields: dict[str, str] = {}
    for name, value in headers.items() if isinstance(headers, Mapping) else headers:
        lower = name.lower()
        fields[lower] = f"{fields[lower]}, {value}" if lower in fields else value
    if now is None:
        now = _date(fields.get("date")) or wall_clock() / 1e9
    policies = tuple(_policies(fields.get("ratelimit-policy", "")))
    limits = tuple(_limits(fields.get("ratelimit", ""))) or (*_older(fields, now), *_named(fields, now))
    return ServerLimits(policies, limits, _retry_after(fields, now))


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
    """Read version 7 of the draft, then version 6, then the non-standard `X-RateLimit-*` and `X-Rate-Limit-*`."""
    try:
        dictionary = read_dictionary(fields.get("ratelimit", ""))
    except Malformed:
        dictionary = {}
    named = {name: str(item.value) for name, item in dictionary.items()}
    for prefix, values in (("", named), *((prefix, fields) for prefix in _PREFIXES)):
        remaining = _number(values.get(f"{prefix}remaining"))
        if remaining is not None:
            yield ServiceLimit("default", math.floor(remaining), _reset(values.get(f"{prefix}reset"), now))
            return


def _named(fields: Mapping[str, str], now: float) -> Iterable[ServiceLimit]:
    """Read the headers of services with several limits, each with a name: those of OpenAI and Anthropic.

    Their reset is when the limit is full again, and it fills up steadily.
    """
    for field in fields:
        match = _NAMED.fullmatch(field)
        remaining = None if match is None else _number(fields[field])
        if match is None or remaining is None:
            continue
        limit = _number(fields.get(field.replace("remaining", "limit")))
        reset = _reset(fields.get(field.replace("remaining", "reset")), now)
        missing = 0 if limit is None else limit - remaining
        next_after = None if reset is None or missing <= 0 else reset / missing
        yield ServiceLimit(match[1] or match[2], math.floor(remaining), reset, None, next_after)


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


def _retry_after(fields: Mapping[str, str], now: float) -> float | None:
    milliseconds = _number(fields.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    text = fields.get("retry-after")
    seconds = _number(text)
    if seconds is not None:
        return seconds
    moment = _date(text)
    return None if moment is None else max(0.0, moment - now)


def _reset(text: str | None, now: float) -> float | None:
    """Read a number of seconds, a duration, or a moment: a timestamp, or seconds or milliseconds since the epoch."""
    number = _number(text)
    if number is not None:
        if number <= _AN_EPOCH:
            return number
        return max(0.0, (number / 1000 if number > _IN_MILLISECONDS else number) - now)
    first = "" if text is None else text.partition(",")[0].strip()
    parts = _DURATION.findall(first)
    if parts and "".join(map("".join, parts)) == first:
        return sum(float(count) * _UNITS[unit] for count, unit in parts)
    moment = _timestamp(first)
    return None if moment is None else max(0.0, moment - now)


def _timestamp(text: str) -> float | None:
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        return None
    from datetime import datetime  # only when there is one to read

    zone = "+00:00" if match[3] in "Zz" else match[3]
    try:
        return datetime.fromisoformat(f"{match[1].upper()}{zone}").timestamp() + float(match[2] or 0)
    except (ValueError, OverflowError):
        return None


def _date(text: str | None) -> float | None:
    if text is None:
        return None
    from email.utils import parsedate_to_datetime  # only when there is a date to read: it takes milliseconds to import

    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
