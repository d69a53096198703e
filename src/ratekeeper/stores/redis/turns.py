"""Turns: how many threads may do something at a time, whatever signals interrupt them.

A threading.Semaphore that a signal interrupts may lose a permit, or stay locked for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from ratekeeper.clock import stopwatch
from ratekeeper.errors import StoreUnavailable

LOOK_AFTER = 0.05  # seconds until a sleeper sees for itself whether it was forgotten

_Result = TypeVar("_Result")


class Turns:
    """Lets a few threads in at a time; the others wait until one of those leaves."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._inside: set[object] = set()
        self._bell = threading.Lock()  # free: there may be room

    def take(self, ends_ns: int, action: Callable[..., _Result], *args: Any) -> _Result:
        """Call `action` as soon as there is room; StoreUnavailable when there is none in time."""
        turn = object()
        try:
            self._wait(turn, ends_ns)
            return action(*args)
        finally:
            self._inside.discard(turn)  # one call of C code, which no signal interrupts
            self._ring()

    def _wait(self, turn: object, ends_ns: int) -> None:
        while not self._enters(turn):
            left_ns = ends_ns - stopwatch()
            if left_ns <= 0:
                raise StoreUnavailable("Redis did not answer in time", away=False)
            self._bell.acquire(timeout=min(left_ns / 1e9, LOOK_AFTER))
        self._ring()  # of two who left at once, one may not have been heard

    def _enters(self, turn: object) -> bool:
        with self._lock:
            if len(self._inside) < self._most:
                self._inside.add(turn)
            return turn in self._inside

    def _ring(self) -> None:
        with suppress(RuntimeError):  # it rings already
            self._bell.release()
