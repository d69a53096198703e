"""Where time comes from. Nothing else in the package reads a clock or decides how to sleep."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, runtime_checkable

Clock = Callable[[], int]
"""Returns integer nanoseconds since the epoch, like ``time.time_ns``."""

wall_clock: Clock = time.time_ns
stopwatch: Clock = time.monotonic_ns


@runtime_checkable
class SteeredClock(Protocol):
    """A clock that somebody moves by hand: it tells its subscribers when it has moved, so nobody has to poll it."""

    def __call__(self) -> int: ...

    def subscribe(self, moved: Callable[[], None]) -> Callable[[], None]:
        """Call `moved` after every move; returns what ends the subscription."""
        ...
