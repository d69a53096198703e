"""Which server holds a key: the only one, the master that sentinels name, or the cluster's node with its slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores.redis.exchange import Address, Flow, Send, Unanswered

_SLOTS = 16_384
_SHARE = 0.5  # of the time that is left for one server that may know; the others want some as well


class Standalone:
    """One server."""

    may_move = False  # whether a key may be on another server than it was
    has_slots = False
    is_known = True

    def __init__(self, arguments: dict[str, Any]) -> None:
        self._arguments = arguments

    def address(self, slot: int | None) -> Address | None:  # noqa: ARG002 - the same for all
        """Return where a slot is."""
        return None

    def arguments(self, address: Address | None) -> dict[str, Any]:  # noqa: ARG002 - the same for all
        """Return how to connect."""
        return self._arguments

    def knows(self, address: Address | None) -> bool:
        """Tell whether connections to a server may be needed again."""
        return address is None

    def suspect(self, address: Address | None) -> None:
        """Note that a server did not answer as the one that it was taken for."""

    def discover(self) -> Flow:
        """Find out which server is where."""
        yield from ()


class Sentinel(Standalone):
    """A master under a name; when it fails, the sentinels agree on another."""

    may_move = True

    def __init__(
        self, arguments: dict[str, Any], sentinel_arguments: dict[str, Any], sentinels: Sequence[Address], name: str
    ) -> None:
        super().__init__(arguments)
        self._sentinel_arguments = sentinel_arguments
        self._sentinels = list(sentinels)
        self._name = name
        self._master: Address | None = None

    @property
    def is_known(self) -> bool:  # type: ignore[override]
        return self._master is not None

    def address(self, slot: int | None) -> Address | None:  # noqa: ARG002
        return self._master

    def arguments(self, address: Address | None) -> dict[str, Any]:
        return _connecting(self._sentinel_arguments if address and address.is_sentinel else self._arguments, address)

    def knows(self, address: Address | None) -> bool:
        return address == self._master

    def suspect(self, address: Address | None) -> None:
        if address == self._master:
            self._master = None

    def discover(self) -> Flow:
        question = (b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", self._name.encode())
        last: object = None
        for sentinel in list(self._sentinels):
            try:
                (reply,) = yield Send(sentinel, [question], _SHARE)
            except Unanswered as error:
                last = error.__cause__
                continue
            if isinstance(reply, list) and len(reply) == 2:
                self._master = Address(reply[0].decode(), int(reply[1]))
                self._sentinels.remove(sentinel)
                self._sentinels.insert(0, sentinel)  # the next question goes to the one that answered
                return
            last = reply or f"it knows no master {self._name!r}"
        raise StoreUnavailable(f"no sentinel named the master {self._name!r}; the last one asked: {last}")


class Cluster(Standalone):
    """Nodes that have a part of the slots each."""

    may_move = True
    has_slots = True

    def __init__(self, arguments: dict[str, Any], seeds: Sequence[Address]) -> None:
        super().__init__(arguments)
        self._seeds = list(seeds)
        self._table: list[Address | None] = [None] * _SLOTS
        self._nodes: list[Address] = []
        self.is_known = False  # whether the table can be relied on

    def address(self, slot: int | None) -> Address | None:
        known = self._table[slot] if slot is not None else None
        return known or (*self._nodes, *self._seeds)[0]  # any node tells where a slot is

    def arguments(self, address: Address | None) -> dict[str, Any]:
        return _connecting(self._arguments, address)

    def knows(self, address: Address | None) -> bool:
        return address in self._nodes or address in self._seeds

    def suspect(self, address: Address | None) -> None:
        self.is_known = False
        if address in self._nodes:  # to be asked last
            self._nodes.remove(address)
            self._nodes.append(address)

    def moved(self, slot: int, address: Address) -> None:
        """Note where a slot is now."""
        self._table[slot] = address
        if address not in self._nodes:
            self._nodes.insert(0, address)

    def discover(self) -> Flow:
        last: object = None
        for node in dict.fromkeys((*self._nodes, *self._seeds)):
            try:
                (reply,) = yield Send(node, [(b"CLUSTER", b"SLOTS")], _SHARE)
            except Unanswered as error:
                last = error.__cause__
                continue
            if isinstance(reply, list) and reply:
                self._learn(reply, node)
                return
            last = reply or "it has no slots"
        raise StoreUnavailable(f"no node of the cluster told which has which slot; the last one asked: {last}")

    def _learn(self, ranges: Sequence[Any], told_by: Address) -> None:
        table: list[Address | None] = [None] * _SLOTS
        nodes: dict[Address, None] = {}
        for first, last, *servers in ranges:
            addresses = [Address((host or told_by.host.encode()).decode(), port) for host, port, *_ in servers]
            table[first : last + 1] = [addresses[0]] * (last + 1 - first)
            nodes.update(dict.fromkeys(addresses))
        self._table = table
        self._nodes = sorted(nodes, key=lambda node: node != told_by)
        self.is_known = True


Topology = Standalone


def _connecting(arguments: dict[str, Any], address: Address | None) -> dict[str, Any]:
    return arguments if address is None else arguments | {"host": address.host, "port": address.port}
