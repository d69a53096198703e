"""AsyncRedisStore: decisions from event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, NamedTuple

from ratekeeper import flows
from ratekeeper.clock import stopwatch
from ratekeeper.stores.protocol import Demand, Outcome
from ratekeeper.stores.redis.asyncio_batches import AsyncioBatches
from ratekeeper.stores.redis.asyncio_connections import AsyncioConnections
from ratekeeper.stores.redis.asyncio_nodes import AsyncioNodes
from ratekeeper.stores.redis.base_store import PATIENCE_NS, BaseRedisStore
from ratekeeper.stores.redis.routing import Bundle

_of_parents: list[Any] = []


class _OfLoop(NamedTuple):
    """The layers below the store for one event loop."""

    below: AsyncioBatches | AsyncioNodes
    connections: AsyncioConnections


class AsyncRedisStore(BaseRedisStore):
    """Keeps state on Redis servers, for event loops; each loop has connections of its own."""

    is_per_loop = True
    _run_flow = staticmethod(flows.run_async)

    def __init__(self, source: Any, *, remember_denials: bool = True) -> None:
        super().__init__(source, for_asyncio=True, remember_denials=remember_denials)
        self._loops: dict[asyncio.AbstractEventLoop, _OfLoop] = {}

    def for_threads(self) -> AsyncRedisStore:
        raise TypeError(f"{self!r} must be awaited; a Limiter needs a RedisStore")

    def for_asyncio(self) -> AsyncRedisStore:
        return self

    def after_fork(self) -> None:
        super().after_fork()
        _of_parents.append(self._loops)  # if garbage-collected, they would close the parent's sockets
        self._loops = {}

    def execute(self, demands: Sequence[Demand], ends_ns: int | None = None) -> Outcome | Awaitable[Outcome]:
        """Decide or change all demands at one instant; raise StoreUnavailable if no answer comes in time."""
        if self.denials is not None and self.denials.held:
            known = self.denials.recall(demands)
            if known is not None:
                return known
        below, _ = self._loops.get(asyncio.get_running_loop()) or self._of_loop()
        return below.execute(demands, stopwatch() + PATIENCE_NS if ends_ns is None else ends_ns)

    async def close(self) -> None:
        """Close this loop's connections; the next decision opens new ones."""
        below, connections = self._loops.pop(asyncio.get_running_loop(), (None, None))
        if below is not None:
            await below.close()
        if connections is not None:
            await connections.close()

    def _ask(self, bundles: Sequence[Bundle], ends_ns: int) -> Awaitable[None]:
        return self._of_loop().connections.ask(bundles, ends_ns)

    def _of_loop(self) -> _OfLoop:
        """Return the layers below the store for the running event loop."""
        loop = asyncio.get_running_loop()
        known = self._loops.get(loop)
        if known is None:
            for ended in [other for other in list(self._loops) if other.is_closed()]:
                self._loops.pop(ended, None)  # and its connections with it
            connections = AsyncioConnections(self._servers)
            below: AsyncioBatches | AsyncioNodes
            if self._servers.topology.has_slots:
                below = AsyncioNodes(self._servers, connections, self._note_results)
            else:
                below = AsyncioBatches(connections, self._servers.breaker, self._note_results)
            known = self._loops[loop] = _OfLoop(below, connections)
        return known
