"""The nodes of a cluster, for event loops: batches for each node, and requests that need several nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

from ratekeeper import flows
from ratekeeper.clock import stopwatch
from ratekeeper.stores.protocol import Demand, Outcome
from ratekeeper.stores.redis import split
from ratekeeper.stores.redis.asyncio_batches import AsyncioBatches
from ratekeeper.stores.redis.asyncio_connections import AsyncioConnections
from ratekeeper.stores.redis.redis_errors import Result
from ratekeeper.stores.redis.servers import NoteResults, Servers
from ratekeeper.stores.redis.urls import NodeAddress


class AsyncioNodes:
    """The nodes of a cluster, for one event loop."""

    def __init__(self, servers: Servers, connections: AsyncioConnections, note_results: NoteResults) -> None:
        self._servers = servers
        self._connections = connections
        self._note_results = note_results
        self._batches: dict[NodeAddress | None, AsyncioBatches] = {}
        self._under_way: set[asyncio.Task[Outcome]] = set()  # tasks that must not stop halfway

    async def execute(self, demands: Sequence[Demand], ends_ns: int) -> Outcome:
        """Have a request decided by the nodes that have its keys."""
        return await flows.run_async(split.decide(demands, _TaskAsking(self, demands, ends_ns, stopwatch())))

    async def find(self, ends_ns: int) -> None:
        """Make sure that it is known which node has which slot."""
        if not self._servers.topology.is_known:
            await self._connections.find_nodes(ends_ns)

    def batches_for(self, demands: Sequence[Demand]) -> AsyncioBatches:
        """Return the batches of the node that has these keys."""
        node = self._servers.node_of(demands)
        batches = self._batches.get(node)
        if batches is None:
            for gone in [known for known in self._batches if not self._servers.topology.knows(known)]:
                del self._batches[gone]
            breaker = self._servers.breaker_of(node)
            batches = self._batches[node] = AsyncioBatches(self._connections, breaker, self._note_results)
        return batches

    async def to_its_end(self, demands: Sequence[Demand], flow: flows.Flow[Outcome], sent_ns: int) -> Outcome:
        """Run a flow to its end, even if the caller is cancelled."""

        async def run() -> Outcome:
            outcome = await flows.run_async(flow)
            self._note_results((demands,), (outcome,), sent_ns)
            return outcome

        task = asyncio.get_running_loop().create_task(run())
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Outcome]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # retrieve it, or asyncio logs a warning if the caller is gone

    async def close(self) -> None:
        """Wait for tasks that must not stop halfway, and give up the rest."""
        if self._under_way:
            await asyncio.wait(self._under_way)
        for batches in self._batches.values():
            await batches.close()


class _TaskAsking:
    """Asks the nodes on behalf of one task's request."""

    def __init__(self, nodes: AsyncioNodes, demands: Sequence[Demand], ends_ns: int, asked_ns: int) -> None:
        self._nodes = nodes
        self._demands = demands
        self._ends_ns = ends_ns
        self._asked_ns = asked_ns

    def find(self) -> Awaitable[None]:
        return self._nodes.find(self._ends_ns)

    def ask(self, demands: Sequence[Demand]) -> Awaitable[Outcome]:
        return self._nodes.batches_for(demands).execute(demands, self._ends_ns, self._asked_ns)

    def ask_all(self, requests: Sequence[Sequence[Demand]]) -> Awaitable[list[Result | BaseException]]:
        return asyncio.gather(*map(self.ask, requests), return_exceptions=True)

    async def give_back(self, requests: Sequence[Sequence[Demand]]) -> None:
        now = stopwatch()
        ends_ns = now + self._ends_ns - self._asked_ns  # it continues after the caller's time is up
        calls = [self._nodes.batches_for(demands).execute(demands, ends_ns, now) for demands in requests]
        giving_back = asyncio.gather(*calls, return_exceptions=True)
        await asyncio.wait([giving_back], timeout=(self._ends_ns - stopwatch()) / 1e9)

    def to_its_end(self, flow: flows.Flow[Outcome]) -> Awaitable[Outcome]:
        return self._nodes.to_its_end(self._demands, flow, self._asked_ns)
