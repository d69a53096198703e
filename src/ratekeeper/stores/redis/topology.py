"""Which server holds a key: the only one, the master that sentinels name, or the cluster node with its slot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ratekeeper.errors import StoreUnavailable
from ratekeeper.flows import Flow
from ratekeeper.stores.redis.redis_errors import UNREACHABLE, Unanswered
from ratekeeper.stores.redis.urls import NodeAddress
from ratekeeper.stores.redis.wire import SLOTS

_TRIES = 3  # servers asked in one search; one that could not tell is asked last next time

Connecting = tuple[type[Any], dict[str, Any]]  # the class of connection and its arguments
Command = tuple[bytes, ...]


class Exchange(Protocol):
    """Sends commands to one server, once: a step of the flows that find the right server."""

    def __call__(self, node: NodeAddress | None, commands: Sequence[Command]) -> Any:
        """Return the replies, or an awaitable of them, or raise Unanswered.

        An error reply is returned, not raised. Without a `node`, the only server is asked.
        """


class Standalone:
    """One server."""

    may_move = False  # whether a key may move to another server
    has_slots = False
    is_known = True

    def __init__(self, connecting: Connecting) -> None:
        self._connecting = connecting

    def node_of(self, slot: int | None) -> NodeAddress | None:  # noqa: ARG002 - the same for all
        """Return the node of a slot; None if there is only one server, or if it is unknown."""
        return None

    @property
    def nodes(self) -> tuple[NodeAddress | None, ...]:
        """The servers that hold keys; None stands for the only one."""
        return (self.node_of(None),)

    def connection(self, address: NodeAddress | None) -> Connecting:  # noqa: ARG002 - the same for all
        """Return how to connect."""
        return self._connecting

    def knows(self, address: NodeAddress | None) -> bool:
        """Return whether connections to a server may still be needed."""
        return address is None

    def holds(self, address: NodeAddress | None) -> bool:  # noqa: ARG002 - the only one holds all keys
        """Return whether a server holds keys."""
        return True

    def is_unsure_of(self, slot: int | None) -> bool:  # noqa: ARG002 - there is only one server
        """Return whether a search must come before anything is sent to the node of a slot."""
        return False

    def suspect(self, address: NodeAddress | None) -> None:
        """Note that a server did not answer as expected, so that its role may have changed."""

    def discover(self, exchange: Exchange) -> Flow[None]:  # noqa: ARG002 - it is known
        """Find out which server has which role."""
        yield from ()


class Sentinel(Standalone):
    """A master with a name; when it fails, the sentinels agree on another."""

    may_move = True

    def __init__(
        self, connecting: Connecting, to_sentinels: Connecting, sentinels: Sequence[NodeAddress], name: str
    ) -> None:
        super().__init__(connecting)
        self._to_sentinels = to_sentinels
        self._sentinels = tuple(sentinels)
        self._name = name
        self._master: NodeAddress | None = None

    @property
    def is_known(self) -> bool:  # type: ignore[override]
        return self._master is not None

    def node_of(self, slot: int | None) -> NodeAddress | None:  # noqa: ARG002
        return self._master

    def connection(self, address: NodeAddress | None) -> Connecting:
        return _to(address, self._to_sentinels if address and address.is_sentinel else self._connecting)

    def knows(self, address: NodeAddress | None) -> bool:
        return address == self._master

    def is_unsure_of(self, slot: int | None) -> bool:  # noqa: ARG002
        return self._master is None

    def suspect(self, address: NodeAddress | None) -> None:
        if address == self._master:
            self._master = None
            self._sentinels = _as_second(self._sentinels)

    def discover(self, exchange: Exchange) -> Flow[None]:
        question = (b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", self._name.encode())
        last: object = None
        for sentinel in self._sentinels[:_TRIES]:
            try:
                (reply,) = yield exchange(sentinel, [question])
            except Unanswered as error:
                last = error.__cause__
            else:
                if isinstance(reply, list) and len(reply) == 2:
                    self._master = NodeAddress(reply[0].decode(), int(reply[1]))
                    return
                last = reply or f"it knows no master {self._name!r}"
            self._sentinels = _as_last(sentinel, self._sentinels)
        said = f"no sentinel knows the master {self._name!r}; last failure: {last}"
        raise StoreUnavailable(said, reason="no sentinel knows the master; check the sentinels and the master's name")


class Cluster(Standalone):
    """Nodes that each have some of the slots."""

    may_move = True
    has_slots = True

    def __init__(
        self,
        connecting: Connecting,
        seeds: Sequence[NodeAddress],
        remap: Callable[[tuple[str, int]], tuple[str, int]] | None = None,
    ) -> None:
        super().__init__(connecting)
        self._seeds = frozenset(seeds)
        self._to_ask = tuple(seeds)  # the nodes, then the seeds; one that could not tell is asked last
        self._remap = remap  # from the addresses that nodes announce to reachable ones
        self._table: list[NodeAddress | None] = [None] * SLOTS
        self._masters: frozenset[NodeAddress | None] = frozenset()
        self.is_known = False  # whether the table is reliable
        self._suspects: frozenset[NodeAddress | None] = frozenset((None,))

    def node_of(self, slot: int | None) -> NodeAddress | None:
        known = self._table[slot] if slot is not None else None
        return known or self._to_ask[0]  # any node knows where a slot is

    @property
    def nodes(self) -> tuple[NodeAddress | None, ...]:
        return tuple(node for node in self._masters if node is not None)

    def connection(self, address: NodeAddress | None) -> Connecting:
        return _to(address, self._connecting)

    def knows(self, address: NodeAddress | None) -> bool:
        return address in self._to_ask

    def holds(self, address: NodeAddress | None) -> bool:
        return address in self._masters

    def is_unsure_of(self, slot: int | None) -> bool:
        return not self.is_known and (slot is None or self._table[slot] in self._suspects)

    def suspect(self, address: NodeAddress | None) -> None:
        self._suspects |= {address}
        self._to_ask = _as_last(address, self._to_ask)
        if self.is_known:
            self._to_ask = _as_second(self._to_ask)
        self.is_known = False

    def named(self, host: str, port: int, told_by: NodeAddress) -> NodeAddress:
        """Return the address of a node, as announced by another."""
        host = host or told_by.host
        return NodeAddress(*self._remap((host, port))) if self._remap else NodeAddress(host, port)

    def moved(self, slot: int, address: NodeAddress) -> None:
        """Note where a slot is now."""
        self._table[slot] = address
        self._masters |= {address}
        if address not in self._to_ask:
            self._to_ask = (address, *self._to_ask)

    def discover(self, exchange: Exchange) -> Flow[None]:
        last: object = None
        for node in self._to_ask[:_TRIES]:
            try:
                (reply,) = yield exchange(node, [(b"CLUSTER", b"SLOTS")])
            except Unanswered as error:
                last = error.__cause__
            else:
                if isinstance(reply, list) and reply:
                    self._learn(reply, node)
                    return
                last = reply or "it has no slots"
            self._to_ask = _as_last(node, self._to_ask)
        said = f"no node of the cluster reported its slots; last failure: {last}"
        raise StoreUnavailable(
            said, reason="no node of the cluster reported its slots; check the nodes and CLUSTER INFO"
        )

    def _learn(self, ranges: Sequence[Any], told_by: NodeAddress) -> None:
        table: list[NodeAddress | None] = [None] * SLOTS
        nodes: dict[NodeAddress, None] = {}
        for first, last, *servers in ranges:
            addresses = [self.named((host or b"").decode(), port, told_by) for host, port, *_ in servers]
            table[first : last + 1] = [addresses[0]] * (last + 1 - first)
            nodes.update(dict.fromkeys(addresses))
        self._table = table
        self._masters = frozenset(table)
        self._suspects = frozenset((None,))
        known = (*nodes, *self._seeds)
        order = {node: at for at, node in enumerate((told_by, *self._to_ask))}
        self._to_ask = tuple(dict.fromkeys(sorted(known, key=lambda node: order.get(node, len(order)))))
        self.is_known = True


Topology = Standalone


def _to(address: NodeAddress | None, connecting: Connecting) -> Connecting:
    if address is None:
        raise StoreUnavailable("no known server has the key", away=False, reason=UNREACHABLE)
    kind, arguments = connecting
    return kind, arguments | {"host": address.host, "port": address.port}


def _as_last(address: NodeAddress | None, addresses: tuple[NodeAddress, ...]) -> tuple[NodeAddress, ...]:
    """Return the addresses with this one last."""
    return (*(each for each in addresses if each != address), *(each for each in addresses if each == address))


def _as_second(addresses: tuple[NodeAddress, ...]) -> tuple[NodeAddress, ...]:
    """Return the addresses with the first two swapped: the first gave a wrong answer and may be cut off."""
    return (*addresses[1:2], addresses[0], *addresses[2:])
