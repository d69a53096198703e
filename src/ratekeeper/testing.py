"""Helpers for testing code that uses ratekeeper.

>>> from ratekeeper import FixedWindow, Limiter
>>> clock = ManualClock()
>>> limiter = Limiter(FixedWindow(limit=1, window=60), clock=clock)
>>> limiter.hit("a").allowed, limiter.hit("a").allowed
(True, False)
>>> clock.advance(60)
>>> limiter.hit("a").allowed
True
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from fractions import Fraction

__all__ = ["ManualClock"]

Seconds = int | float | Fraction | timedelta


class ManualClock:
    """A clock that only moves when told to, exact to the microsecond; waiters wake when it moves."""

    def __init__(self, start: Seconds = 1_700_000_000) -> None:
        self._now_us = _microseconds(start)
        self._lock = threading.RLock()
        self._subscribers: dict[object, Callable[[], None]] = {}

    def __call__(self) -> int:
        """Return the time in integer nanoseconds since the epoch."""
        return self._now_us * 1_000

    def __repr__(self) -> str:
        return f"ManualClock({self._now_us / 1_000_000!r})"

    def advance(self, seconds: Seconds) -> None:
        """Move the clock forward by this much (a negative amount moves it back)."""
        with self._lock:
            self._now_us += _microseconds(seconds)
        self._tell()

    def set(self, seconds: Seconds) -> None:
        """Set the clock to this many seconds since the epoch."""
        with self._lock:
            self._now_us = _microseconds(seconds)
        self._tell()

    def subscribe(self, moved: Callable[[], None]) -> Callable[[], None]:
        """Call `moved` after every move; return a function that ends the subscription."""
        token = object()
        with self._lock:
            self._subscribers[token] = moved

        def unsubscribe() -> None:
            with self._lock:
                self._subscribers.pop(token, None)

        return unsubscribe

    def _tell(self) -> None:
        with self._lock:
            subscribers = list(self._subscribers.values())
        for moved in subscribers:
            moved()


def _microseconds(seconds: Seconds) -> int:
    if isinstance(seconds, timedelta):
        return seconds // timedelta(microseconds=1)
    return round(seconds * 1_000_000)
