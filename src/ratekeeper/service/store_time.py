"""The time on the store's clock, so that all processes on a store agree when an override ends."""

from __future__ import annotations

from ratekeeper.clock import stopwatch, wall_clock


class StoreTime:
    """A clock, in nanoseconds, that goes by what the store said last, and by this machine's own time until it says so.

    A step of this machine's clock does not change it.
    """

    def __init__(self) -> None:
        self._ahead_ns = wall_clock() - stopwatch()

    def __call__(self) -> int:
        return stopwatch() + self._ahead_ns

    def learn(self, now_us: int) -> None:
        """Take over what the store has just said."""
        self._ahead_ns = now_us * 1_000 - stopwatch()
