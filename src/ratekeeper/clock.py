"""The clocks. Nothing else in the package reads the time."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], int]
"""Returns integer nanoseconds since the epoch, like ``time.time_ns``.

A clock that is moved by hand also has `subscribe`, as `testing.ManualClock` does: waiters sleep until it moves.
"""

wall_clock: Clock = time.time_ns
stopwatch: Clock = time.monotonic_ns


def no_time(shown: object) -> TypeError:
    """Return the error for a clock that does not show an int.

    A float that is not a number is neither before nor after any time, so every decision would be admitted.
    """
    return TypeError(f"clock must return integer nanoseconds, not {repr(shown)[:80]}")
