"""Counts of decisions, second by second, for the live chart."""

from __future__ import annotations

from collections import deque
from typing import Any

from ratekeeper.clock import Clock, stopwatch
from ratekeeper.decision import Decision

SECONDS = 120  # how far back the history goes
_SECOND_NS = 1_000_000_000


class Live:
    """Counts the decisions of each kind."""

    def __init__(self, clock: Clock = stopwatch) -> None:
        self._clock = clock
        self.admitted = 0
        self.denied = 0
        self.degraded = 0
        self._second = self._clock() // _SECOND_NS
        self._before = (0, 0, 0)  # the totals when this second began
        self._history: deque[tuple[int, int, int]] = deque([(0, 0, 0)] * SECONDS, maxlen=SECONDS)

    def count(self, decision: Decision) -> None:
        """Count the decision on a hit."""
        now = self._clock() // _SECOND_NS
        if now != self._second:
            self._turn(now)
        if decision.allowed:
            self.admitted += 1
        else:
            self.denied += 1
        if decision.degraded:
            self.degraded += 1

    def report(self) -> dict[str, Any]:
        """Return the totals, and the same counts for each of the latest whole seconds, the newest last."""
        now = self._clock() // _SECOND_NS
        if now != self._second:
            self._turn(now)
        return {
            "admitted": self.admitted,
            "denied": self.denied,
            "degraded": self.degraded,
            "seconds": [
                {"admitted": admitted, "denied": denied, "degraded": degraded}
                for admitted, denied, degraded in self._history
            ],
        }

    def _turn(self, now: int) -> None:
        """Begin a new second; seconds without decisions are recorded as well."""
        totals = (self.admitted, self.denied, self.degraded)
        ended = tuple(total - before for total, before in zip(totals, self._before, strict=True))
        self._history.append((ended[0], ended[1], ended[2]))
        idle = min(now - self._second - 1, SECONDS)
        self._history.extend([(0, 0, 0)] * idle)
        self._before, self._second = totals, now
