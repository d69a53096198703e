"""What an event loop keeps for callers that sleep in it: it keeps them alive, and shows when it was closed.

A loop has only weak references to its tasks, so a task that just waits to be woken by another one would be
garbage-collected. A loop that is closed wakes none of its callers and notifies nobody, but it drops its timers: an
object that only a timer refers to is then finalized.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

_FOR_EVER = 10**9  # seconds: 30 years

_sleepers: weakref.WeakKeyDictionary[Any, weakref.ref[set[object]]] = weakref.WeakKeyDictionary()


def watch(loop: asyncio.AbstractEventLoop, closed: Callable[[weakref.ref[Any]], None]) -> None:
    """Call `closed` with a reference to this loop once it is closed."""
    if loop in _sleepers:
        return
    sleepers: set[object] = set()
    _sleepers[loop] = weakref.ref(sleepers)
    loop.call_later(_FOR_EVER, sleepers.clear)  # the only strong reference
    weakref.finalize(sleepers, closed, weakref.ref(loop)).atexit = False


def keep(loop: asyncio.AbstractEventLoop, sleeper: object) -> None:
    """Keep a sleeper alive as long as the loop may wake it."""
    sleepers = _of(loop)
    if sleepers is not None:
        sleepers.add(sleeper)


def release(loop: asyncio.AbstractEventLoop, sleeper: object) -> None:
    """Undo `keep`."""
    sleepers = _of(loop)
    if sleepers is not None:
        sleepers.discard(sleeper)


def _of(loop: asyncio.AbstractEventLoop) -> set[object] | None:
    known = _sleepers.get(loop)  # None if the loop is being garbage-collected
    return None if known is None else known()
