"""How commands find the server that answers them: flows that ask, follow where a slot has moved, and ask again.

Nothing is sent twice but what a server said it did not execute: an unknown script, a slot that is elsewhere, a server
out of reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ratekeeper.errors import StoreUnavailable
from ratekeeper.flows import Flow
from ratekeeper.stores.redis import script
from ratekeeper.stores.redis.redis_errors import NOT_EXECUTED, Unanswered, Unsent, meaning_of
from ratekeeper.stores.redis.topology import Command, Exchange, Topology
from ratekeeper.stores.redis.urls import NodeAddress

_MOST_HOPS = 8  # a slot that moves while it is asked for moves once or twice


class Bundle:
    """Commands that go to one server together, and their replies."""

    __slots__ = ("asking", "commands", "replies", "slot")

    def __init__(self, slot: int | None, commands: Sequence[Command]) -> None:
        self.slot = slot
        self.commands = commands
        self.asking = False  # whether the server holds the slot only half
        self.replies: list[Any] = []

    def to_send(self) -> list[Command]:
        """Return the commands, as the server wants them."""
        if not self.asking:
            return list(self.commands)
        return [part for command in self.commands for part in ((b"ASKING",), command)]

    def take(self, replies: Sequence[Any]) -> Any:
        """Keep the replies to the commands; return the one that says that the server did not execute them, if any."""
        self.replies = list(replies[1::2] if self.asking else replies)
        return next((reply for reply in self.replies if meaning_of(reply) in NOT_EXECUTED), None)


_ByNode = dict[NodeAddress | None, list[Bundle]]


def send(topology: Topology, bundles: Sequence[Bundle], exchange: Exchange) -> Flow[None]:
    """Send bundles to where they belong until each has its replies; what goes wrong is the reply."""
    if not topology.is_known:
        yield from topology.discover(exchange)
    waiting = _by_node(topology, bundles)
    for _ in range(_MOST_HOPS):
        again: _ByNode = {}
        for node, group in waiting.items():
            try:
                yield from _send_to(topology, node, group, exchange, again)
            except Unsent as error:
                yield from _look_elsewhere(topology, node, group, error.__cause__, exchange, again=again)
            except Unanswered as error:
                topology.suspect(node)
                for bundle in group:
                    bundle.replies = [error.__cause__]
        if not again:
            return
        waiting = again


def _send_to(
    topology: Topology, node: NodeAddress | None, group: Sequence[Bundle], exchange: Exchange, again: _ByNode
) -> Flow[None]:
    """Send bundles to one server; what it did not execute goes there, or elsewhere, again."""
    commands = [bundle.to_send() for bundle in group]
    replies = yield exchange(node, [command for part in commands for command in part])
    begin = 0
    demoted: list[Bundle] = []
    for bundle, sent in zip(group, commands, strict=True):
        refusal = bundle.take(replies[begin : begin + len(sent)])
        begin += len(sent)
        if meaning_of(refusal) == "read-only":
            demoted.append(bundle)
        elif refusal is not None:
            _redirect(topology, node, bundle, refusal, again)
        elif meaning_of(bundle.replies[0]) == "down":
            topology.suspect(node)
    if demoted:
        yield from _look_elsewhere(topology, node, demoted, demoted[0].replies[0], exchange, again=again)


def _by_node(topology: Topology, bundles: Sequence[Bundle]) -> _ByNode:
    groups: _ByNode = {}
    for bundle in bundles:
        node = topology.node_of(bundle.slot)
        if node is None and topology.may_move:  # somebody found just now that it is not where it was
            bundle.replies = [StoreUnavailable("no server is known that has the key", away=False)]
        else:
            groups.setdefault(node, []).append(bundle)
    return groups


def _look_elsewhere(
    topology: Topology,
    node: NodeAddress | None,
    group: Sequence[Bundle],
    error: BaseException | None,
    exchange: Exchange,
    *,
    again: _ByNode,
) -> Flow[None]:
    """Find out where the slots of a server have gone that is out of reach, or no master any more."""
    topology.suspect(node)
    with suppress(StoreUnavailable):  # nobody else knows either
        yield from topology.discover(exchange)
    for bundle in group:
        other = topology.node_of(bundle.slot)
        if other is None or other == node:
            bundle.replies = [error]
        else:
            again.setdefault(other, []).append(bundle)


def _redirect(topology: Any, node: NodeAddress | None, bundle: Bundle, refusal: Any, again: _ByNode) -> None:
    meaning = meaning_of(refusal)
    if meaning == "no script":
        target = node
        if target not in again:  # the first brings the script along for those behind it
            bundle.commands = [script.in_full(command) for command in bundle.commands]
    elif not topology.has_slots:
        said = f"the key is at {refusal.host}:{refusal.port}, and Redis a node of a cluster: use redis+cluster://"
        bundle.replies = [StoreUnavailable(said, away=False, answered=True)]
        return
    else:
        target = topology.named(refusal.host, int(refusal.port), node)
        bundle.asking = meaning == "ask"
        if not bundle.asking:
            topology.moved(refusal.slot_id, target)
    again.setdefault(target, []).append(bundle)
