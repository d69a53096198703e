"""A lock for critical sections of about a microsecond."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

_Result = TypeVar("_Result")

_SPINS = 200
_gates: weakref.WeakSet[Gate] = weakref.WeakSet()


class Gate:
    """Lets one thread in at a time; whoever finds it shut yields the processor and tries again.

    A ``threading.Lock`` costs several times as much as the section that it guards here, and once threads queue up on it
    each section costs a switch of threads. Deleting the one item of a dict either works or raises, as one atomic
    operation with or without the interpreter's lock. Signal handlers run at calls and jumps back, never between the
    deletion and the ``try`` behind it nor before the assignment that opens the gate; so neither may be within a call.
    """

    __slots__ = ("__weakref__", "free")

    def __init__(self) -> None:
        self.free = {0: True}
        _gates.add(self)

    def alone(self, action: Callable[..., _Result], *args: Any) -> _Result:
        """Call `action` while nobody else is inside."""
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


def pause(tries: int) -> int:
    """Let whoever is inside run: its thread may have been preempted."""
    time.sleep(0 if tries < _SPINS else 0.0005)
    return tries + 1


def _open_all() -> None:
    """In a forked child the thread that was inside does not exist any more."""
    for gate in _gates:
        gate.free[0] = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_open_all)
