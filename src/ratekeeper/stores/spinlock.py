"""A lock for critical sections of about a microsecond."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from ratekeeper import forks

_Result = TypeVar("_Result")

_SPINS = 200


class SpinLock:
    """Lets one thread in at a time; a thread that finds it taken yields the processor and tries again.

    A ``threading.Lock`` costs several times as much as the section that it guards here, and once threads queue for it,
    every section costs a thread switch. Deleting the only item of a dict either succeeds or raises, as one atomic
    operation with or without the GIL. Signal handlers run at calls and jumps back, never between the deletion and the
    ``try`` after it, nor before the assignment that frees the lock; so neither may be inside a call.
    """

    __slots__ = ("__weakref__", "free")

    def __init__(self) -> None:
        self.free = {0: True}
        forks.renew_in_child(self)

    def call(self, action: Callable[..., _Result], *args: Any) -> _Result:
        """Call `action` while no other thread is inside."""
        free = self.free
        tries = 0
        while True:
            try:
                del free[0]
            except KeyError:
                tries = pause(tries)
            else:
                break
        try:
            return action(*args)
        finally:
            free[0] = True

    def after_fork(self) -> None:
        """Free the lock: a thread that was inside does not exist in the child."""
        self.free[0] = True


def pause(tries: int) -> int:
    """Let the thread that is inside run, since it may have been preempted."""
    time.sleep(0 if tries < _SPINS else 0.0005)
    return tries + 1
