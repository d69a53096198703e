"""A semaphore that is safe with signals: a threading.Semaphore may lose a permit or stay locked for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from ratekeeper.clock import stopwatch
from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores.redis.redis_errors import LATE

CHECK_AGAIN = 0.05  # seconds after which a sleeping thread checks whether a signal prevented its wake-up

_Result = TypeVar("_Result")


class SignalSafeSemaphore:
    """Lets a few threads in at a time; the others wait until one leaves."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.RLock()  # a signal handler may call in the middle of a call of its own thread
        self._inside: set[object] = set()
        self._room = threading.Lock()  # unlocked: there may be room

    def call(self, ends_ns: int, function: Callable[..., _Result], *args: Any) -> _Result:
        """Call `function` as soon as there is room; raise StoreUnavailable if there is none in time."""
        permit = object()
        try:
            self._enter(permit, ends_ns)
            return function(*args)
        finally:
            self._inside.discard(permit)  # one C call, which no signal interrupts
            self._wake_one()

    def _enter(self, permit: object, ends_ns: int) -> None:
        while not self._enters(permit):
            left_ns = ends_ns - stopwatch()
            if left_ns <= 0:
                raise StoreUnavailable("Redis did not answer in time", away=False, reason=LATE)
            self._room.acquire(timeout=min(left_ns / 1e9, CHECK_AGAIN))
        self._wake_one()  # if two threads left at once, one wake-up may have been lost

    def _enters(self, permit: object) -> bool:
        with self._lock:
            if len(self._inside) < self._most:
                self._inside.add(permit)
            return permit in self._inside

    def _wake_one(self) -> None:
        with suppress(RuntimeError):  # it is unlocked already
            self._room.release()
