"""RedisStore: decisions from threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ratekeeper import flows
from ratekeeper.clock import stopwatch
from ratekeeper.stores.protocol import Demand, Outcome
from ratekeeper.stores.redis.base_store import PATIENCE_NS, BaseRedisStore
from ratekeeper.stores.redis.routing import Bundle
from ratekeeper.stores.redis.thread_batches import ThreadBatches
from ratekeeper.stores.redis.thread_connections import ThreadConnections
from ratekeeper.stores.redis.thread_nodes import ThreadNodes


class RedisStore(BaseRedisStore):
    """Keeps state on Redis servers, for threads. A connection is set up in a thread that ends with that."""

    is_per_loop = False
    _run_flow = staticmethod(flows.run)

    def __init__(self, source: Any, *, remember_denials: bool = True) -> None:
        super().__init__(source, for_asyncio=False, remember_denials=remember_denials)
        self._begin()

    def _begin(self) -> None:
        self._connections = ThreadConnections(self._servers)
        self._below: ThreadBatches | ThreadNodes
        if self._servers.topology.has_slots:
            self._below = ThreadNodes(self._servers, self._connections, self._note_results)
        else:
            self._below = ThreadBatches(self._connections, self._servers.breaker, self._note_results)

    def for_threads(self) -> RedisStore:
        return self

    def for_asyncio(self) -> RedisStore:
        raise TypeError(f"{self!r} would block the event loop; an AsyncLimiter needs an AsyncRedisStore")

    def after_fork(self) -> None:
        super().after_fork()
        self._begin()

    def execute(self, demands: Sequence[Demand], ends_ns: int | None = None) -> Outcome:
        """Decide or change all demands at one instant; raise StoreUnavailable if no answer comes in time."""
        if self.denials is not None and self.denials.held:
            known = self.denials.recall(demands)
            if known is not None:
                return known
        return self._below.execute(demands, stopwatch() + PATIENCE_NS if ends_ns is None else ends_ns)

    def close(self) -> None:
        """Close the connections; the next decision opens new ones."""
        self._connections.close()

    def _ask(self, bundles: Sequence[Bundle], ends_ns: int) -> None:
        self._connections.ask(bundles, ends_ns)
