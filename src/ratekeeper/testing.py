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
from collections.abc import Callable, Sequence
from datetime import timedelta
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ratekeeper.limiter import AsyncLimiter

    fresh_limits: Callable[[], None]

__all__ = ["ManualClock", "reset_limiters"]  # not `fresh_limits`, which needs pytest

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


def reset_limiters() -> None:
    """Forget what all limiters of this process have counted, those of integrations, too; see `Limiter.reset_all`.

    Limiters that are switched off are left alone. A store that does not answer raises `StoreUnavailable`.
    """
    from ratekeeper.base_limiter import limiters_in_use
    from ratekeeper.limiter import AsyncLimiter, Limiter

    enabled = [limiter for limiter in limiters_in_use() if limiter.enabled]
    for limiter in enabled:
        if isinstance(limiter, Limiter):
            limiter.reset_all()
    awaited = [limiter for limiter in enabled if isinstance(limiter, AsyncLimiter)]
    if awaited:
        import asyncio
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(1) as thread:  # this thread may have an event loop already
            thread.submit(asyncio.run, _reset(awaited)).result()


async def _reset(limiters: Sequence[AsyncLimiter]) -> None:
    for limiter in limiters:
        try:
            await limiter.reset_all()
        finally:
            if limiter.store.is_per_loop:
                await limiter.store.close()


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Make the fixture `fresh_limits` when it is imported: only then is pytest needed."""
        if name != "fresh_limits":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import pytest

        @pytest.fixture
        def fresh_limits() -> None:
            """Forget what all limiters of this process have counted, before the test begins."""
            reset_limiters()

        return fresh_limits
