"""A lock for critical sections of about a microsecond."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

from ratekeeper import forks
from ratekeeper.errors import StoreUnavailable

_Result = TypeVar("_Result")

_TRIES = 2  # before a caller looks whether it waits for its own thread
_SPINS = 200


class SpinLock:
    """Lets one thread in at a time; a thread that finds it taken yields the processor and tries again.

    A ``threading.Lock`` costs several times as much as the section that it guards here, and once threads queue for it,
    every section costs a thread switch. Deleting the only item of a dict either succeeds or raises, as one atomic
    operation with or without the GIL. Signal handlers run at calls and jumps back, never between the deletion and the
    ``try`` after it, nor before the assignment that frees the lock; so neither may be inside a call.

    A signal handler or a finalizer may need the lock while its own thread is inside, and would wait for ever. Recording
    which thread is inside would cost every section a call. Instead, each function that takes the lock has the local
    variables `free` and `has_lock`, which is true exactly while it has the lock. A caller that finds the lock taken
    looks for such a function further up its own stack.
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
                tries = pause(tries, free)
            else:
                break
        try:
            has_lock = True  # noqa: F841 - for `is_mine`
            return action(*args)
        finally:
            free[0] = True

    def after_fork(self) -> None:
        """Free the lock: a thread that was inside does not exist in the child."""
        self.free[0] = True


def pause(tries: int, free: dict[int, bool]) -> int:
    """Let the thread that is inside run, since it may have been preempted; raise StoreUnavailable if it is this one."""
    if tries == _TRIES and is_mine(free):
        raise interrupting()
    time.sleep(0 if tries < _SPINS else 0.0005)
    return tries + 1


def is_mine(free: dict[int, bool]) -> bool:
    """Return whether a function further up this thread's stack has the lock."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - third-party
    while frame is not None:
        names = frame.f_locals if "has_lock" in frame.f_code.co_varnames else {}
        if names.get("has_lock") and names["free"] is free:
            return True
        frame = frame.f_back
    return False


def interrupting() -> StoreUnavailable:
    """Return the error of a call in the middle of another one of its own thread."""
    return StoreUnavailable(
        "the store was called in the middle of another call of the same thread",
        away=False,
        reason="a signal handler or a finalizer called the store in the middle of another call of its own thread",
    )
