"""A semaphore that signals cannot harm: a threading.Semaphore may lose a permit, or stay locked for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from ratekeeper.clock import stopwatch
from ratekeeper.errors import StoreUnavailable

CHECK_AGAIN = 0.05  # seconds until a thread that sleeps looks whether a signal kept the other from waking it

_Result = TypeVar("_Result")


class SignalSafeSemaphore:
    """Lets a few threads in at a time; the others wait until one of those leaves."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._inside: set[object] = set()
        self._room = threading.Lock()  # free: there may be room

    def call(self, ends_ns: int, function: Callable[..., _Result], *args: Any) -> _Result:
        """Call `function` as soon as there is room; StoreUnavailable when there is none in time."""
        permit = object()
        try:
            self._enter(permit, ends_ns)
            return function(*args)
        finally:
            self._inside.discard(permit)  # one call of C code, which no signal interrupts
            self._wake_one()

    def _enter(self, permit: object, ends_ns: int) -> None:
        while not self._enters(permit):
            left_ns = ends_ns - stopwatch()
            if left_ns <= 0:
                raise StoreUnavailable("Redis did not answer in time", away=False)
            self._room.acquire(timeout=min(left_ns / 1e9, CHECK_AGAIN))
        self._wake_one()  # of two who left at once, one may not have been heard

    def _enters(self, permit: object) -> bool:
        with self._lock:
            if len(self._inside) < self._most:
                self._inside.add(permit)
            return permit in self._inside

    def _wake_one(self) -> None:
        with suppress(RuntimeError):  # it is free already
            self._room.release()
