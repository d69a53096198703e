"""The nodes of a cluster, for threads: batches for each node, and requests that need several nodes."""

from __future__ import annotations

from collections.abc import Sequence

from ratekeeper import flows
from ratekeeper.clock import stopwatch
from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores.protocol import Demand, Outcome
from ratekeeper.stores.redis import split
from ratekeeper.stores.redis.redis_errors import Result
from ratekeeper.stores.redis.servers import NoteResults, Servers
from ratekeeper.stores.redis.thread_batches import ThreadBatches
from ratekeeper.stores.redis.thread_connections import ThreadConnections
from ratekeeper.stores.redis.urls import NodeAddress

_KEPT = 0.1  # share of a request's time reserved for giving back what was taken if a later part fails


class ThreadNodes:
    """The nodes of a cluster, for threads."""

    def __init__(self, servers: Servers, connections: ThreadConnections, note_results: NoteResults) -> None:
        self._servers = servers
        self._connections = connections
        self._note_results = note_results
        self._batches: dict[NodeAddress | None, ThreadBatches] = {}

    def execute(self, demands: Sequence[Demand], ends_ns: int) -> Outcome:
        """Have a request decided by the nodes that have its keys."""
        sent_ns = stopwatch()
        outcome = flows.run(split.decide(demands, _ThreadAsking(self, ends_ns, sent_ns)))
        if outcome.times_us:  # it had several parts, which were reported separately
            self._note_results((demands,), (outcome,), sent_ns)
        return outcome

    def find(self, ends_ns: int) -> None:
        """Make sure that it is known which node has which slot."""
        if not self._servers.topology.is_known:
            self._connections.find_nodes(ends_ns)

    def batches_for(self, demands: Sequence[Demand]) -> ThreadBatches:
        """Return the batches of the node that has these keys."""
        node = self._servers.node_of(demands)
        batches = self._batches.get(node)
        if batches is None:
            for gone in [known for known in list(self._batches) if not self._servers.topology.knows(known)]:
                self._batches.pop(gone, None)
            made = ThreadBatches(self._connections, self._servers.breaker_of(node), self._note_results)
            batches = self._batches.setdefault(node, made)
        return batches


class _ThreadAsking:
    """Asks the nodes on behalf of one thread's request."""

    def __init__(self, nodes: ThreadNodes, ends_ns: int, asked_ns: int) -> None:
        self._nodes = nodes
        self._ends_ns = ends_ns
        self._asked_ns = asked_ns

    def find(self) -> None:
        self._nodes.find(self._ends_ns)

    def ask(self, demands: Sequence[Demand]) -> Outcome:
        return self._nodes.batches_for(demands).execute(demands, self._ends_ns, self._asked_ns)

    def ask_all(self, requests: Sequence[Sequence[Demand]]) -> list[Result]:
        hits = any(demand.operation == "hit" for demands in requests for demand in demands)
        kept_ns = int(_KEPT * (self._ends_ns - self._asked_ns)) if hits else 0
        return [self._result(demands, self._ends_ns - kept_ns) for demands in requests]

    def give_back(self, requests: Sequence[Sequence[Demand]]) -> list[Result]:
        return [self._result(demands, self._ends_ns) for demands in requests]

    def to_its_end(self, flow: flows.Flow[Outcome]) -> Outcome:
        return flows.run(flow)

    def _result(self, demands: Sequence[Demand], ends_ns: int) -> Result:
        try:
            return self._nodes.batches_for(demands).execute(demands, ends_ns, self._asked_ns)
        except StoreUnavailable as error:
            return error
