"""What a process follows: it looks again and again for what others have changed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ratekeeper.errors import StoreUnavailable

_log = logging.getLogger("ratekeeper")

Look = Callable[[], Awaitable[object]]


class Following:
    """Looks at intervals, on the event loop that serves."""

    def __init__(self) -> None:
        self._looks: list[tuple[Look, float]] = []
        self.loop: asyncio.AbstractEventLoop | None = None
        """Where the looks are taken."""
        self._tasks: list[asyncio.Task[None]] = []

    def add(self, look: Look, pause: float) -> None:
        """Look with this pause in between, in seconds. A look may raise StoreUnavailable."""
        self._looks.append((look, pause))

    def begin(self) -> None:
        """Begin to look, unless that has begun on this event loop."""
        loop = asyncio.get_running_loop()
        if self.loop is not loop:
            self.loop = loop
            self._tasks = [loop.create_task(_repeat(look, pause)) for look, pause in self._looks]

    async def first(self, timeout: float) -> None:
        """Begin, and wait for a first look of each, as long as `timeout` seconds."""
        self.begin()
        firsts = [asyncio.ensure_future(_tried(look)) for look, _ in self._looks]
        if firsts:
            _, late = await asyncio.wait(firsts, timeout=timeout)
            for each in late:
                each.cancel()

    def end(self) -> None:
        """Look no more."""
        for task in self._tasks:
            task.cancel()
        self.loop, self._tasks = None, []


async def _repeat(look: Look, pause: float) -> None:
    is_told = False
    while True:
        await asyncio.sleep(pause)
        is_told = not await _tried(look, is_told)


async def _tried(look: Look, is_told: bool = True) -> bool:
    """Look; tell whether that worked. What failed is logged, unless `is_told`."""
    try:
        await look()
    except StoreUnavailable as error:
        if not is_told:
            _log.warning("cannot follow policies and overrides: %s; what is in force goes on", error)
        return False
    except Exception:  # noqa: BLE001 - the next look may work
        if not is_told:
            _log.exception("cannot follow policies and overrides; what is in force goes on")
        return False
    return True
