"""What an event loop holds for those who sleep in it: it keeps them alive, and tells when it was closed.

A loop holds tasks weakly, so a task that only waits to be woken by another one would be garbage. And a loop that was
closed wakes nobody, and says so to nobody. But it drops its timers, and what only a timer holds then ends.
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


def let_go(loop: asyncio.AbstractEventLoop, sleeper: object) -> None:
    """End what `keep` began."""
    sleepers = _of(loop)
    if sleepers is not None:
        sleepers.discard(sleeper)


def _of(loop: asyncio.AbstractEventLoop) -> set[object] | None:
    known = _sleepers.get(loop)  # nothing if the loop is being garbage-collected
    return None if known is None else known()
