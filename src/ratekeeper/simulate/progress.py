"""The progress of a simulation, shown on a terminal if it takes longer than a second."""

from __future__ import annotations

from types import TracebackType
from typing import TextIO

from ratekeeper.clock import Clock, stopwatch

_PATIENCE_NS = 1_000_000_000


class Progress:
    """Counts what is done of `total` and shows the percentage on a terminal, from the second second on.

    As a context manager it wipes its line at the end. A stream that is no terminal gets nothing.
    """

    def __init__(self, total: int, stream: TextIO, clock: Clock = stopwatch) -> None:
        self._total = total
        self._stream = stream
        self._clock = clock
        self._began = clock()
        self._done = 0
        self._shown = ""

    def __call__(self, done: int) -> None:
        """Count `done` more."""
        self._done += done
        if self._stream.isatty() and self._clock() - self._began > _PATIENCE_NS:
            self._show(f"simulating: {100 * self._done // self._total} %")

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            self._show("")

    def _show(self, text: str) -> None:
        if text != self._shown:
            self._stream.write(f"\r{text.ljust(len(self._shown))}{'' if text else chr(13)}")
            self._stream.flush()
            self._shown = text
