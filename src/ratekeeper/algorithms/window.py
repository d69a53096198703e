"""What the rules with a window share: a limit, its window, and the text for both."""

from __future__ import annotations

from collections.abc import Collection

from ratekeeper import rates
from ratekeeper.algorithms.rule import Field, Rule


class Windowed(Rule):
    """At most `limit` units in a `window`, as the algorithm defines it."""

    __slots__ = ("limit", "window", "window_us")

    fields = (
        Field("limit", "count", "Limit", "maxRequests"),
        Field("window", "window", "Window", "windowSeconds"),
    )

    window: rates.Window

    def __init__(self, limit: int, window: rates.Window) -> None:
        self._set(limit=rates.limit(limit), window_us=rates.window_us(window))
        self._set(window=rates.seconds(self.window_us))

    @classmethod
    def of(cls, count: int, period_us: int, burst: int | None = None, mode: str = "") -> Rule:
        from fractions import Fraction

        return cls(count, Fraction(period_us, rates.SECOND_US))

    @classmethod
    def decisive(cls, rules: Collection[Rule]) -> Collection[Rule]:
        by_window: dict[int, Rule] = {}
        for rule in rules:
            known = by_window.setdefault(rule.window_us, rule)
            if rule.limit < known.limit:
                by_window[rule.window_us] = rule
        return list(by_window.values())

    @property
    def text(self) -> str:
        return f"{self.algorithm} {self.limit}/{rates.duration_text(self.window_us)}"
