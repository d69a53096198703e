"""A limiter together with the headers that report its decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ratekeeper.algorithms import Rule
from ratekeeper.http.headers import Headers, HeaderWriter


class HttpLimiter:
    """A limiter, sync or async, and the writer of the headers for its decisions."""

    __slots__ = ("enforced", "limiter", "rules", "shapes", "unlimited", "would_block", "writer")

    def __init__(self, limiter: Any, headers: Headers) -> None:
        self.limiter = limiter
        self.rules: Mapping[str, Rule] = {} if limiter is None else limiter.rules
        self.unlimited: tuple[str, ...] = ()
        """The names of the rules that limit nothing, and were left out."""
        self.would_block: Sequence[str] = ()
        """The names of the rules that would deny everything, but are only tried out."""
        shadow = () if limiter is None else limiter.shadow
        self.enforced = {name: rule for name, rule in self.rules.items() if name not in shadow}
        """The rules that are not only tried out."""
        self.shapes = any(rule.shapes for rule in self.enforced.values())
        self.writer = HeaderWriter(self.enforced, headers)

    def without_unlimited(self, by_name: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a mapping of keys or costs without those of the rules that were left out."""
        if not self.unlimited:
            return by_name
        return {name: value for name, value in by_name.items() if name not in self.unlimited}


class DecidingLimiter(NamedTuple):
    """A limiter by policy, and the writer of the headers for one decision of it."""

    limiter: Any
    writer: HeaderWriter


BLOCKED = HttpLimiter(None, Headers.off())
"""Denies everything."""
