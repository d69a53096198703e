"""A limiter together with the headers that report its decisions."""

from __future__ import annotations

from typing import Any

from ratekeeper.http.headers import Headers, HeaderWriter


class HttpLimiter:
    """A limiter, sync or async, and the writer of the headers for its decisions."""

    __slots__ = ("limiter", "rules", "shapes", "writer")

    def __init__(self, limiter: Any, headers: Headers) -> None:
        self.limiter = limiter
        self.rules = limiter.rules
        self.shapes = any(rule.shapes for rule in self.rules.values())
        self.writer = HeaderWriter(self.rules, headers)
