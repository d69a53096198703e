"""How commands reach the right server: flows that ask, follow a slot that has moved, and ask again.

A command is sent again only if it was certainly not executed: the script was unknown, the slot was elsewhere, or the
server could not be reached.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

from ratekeeper.errors import StoreUnavailable
from ratekeeper.flows import Flow
from ratekeeper.stores.redis import script
from ratekeeper.stores.redis.redis_errors import (
    NOT_EXECUTED,
    UNREACHABLE,
    Late,
    Unanswered,
    Unsent,
    meaning_of,
    redirection_of,
)
from ratekeeper.stores.redis.topology import Command, Topology
from ratekeeper.stores.redis.urls import NodeAddress

_MAX_HOPS = 8  # a slot rarely moves more than once or twice during a call


class Bundle:
    """Commands that go to one server together, and their replies: to the one with a slot, or to a node itself."""

    __slots__ = ("asking", "commands", "node", "replies", "slot")

    def __init__(self, slot: int | None, commands: Sequence[Command], node: NodeAddress | None = None) -> None:
        self.slot = slot
        self.node = node
        self.commands = commands
        self.asking = False  # whether the server is still importing the slot
        self.replies: list[Any] = []

    def to_send(self) -> list[Command]:
        """Return the commands in the form that the server expects."""
        if not self.asking:
            return list(self.commands)
        return [part for command in self.commands for part in ((b"ASKING",), command)]

    def take(self, replies: Sequence[Any]) -> Any:
        """Keep the replies; return the one that says that the commands were not executed, if any."""
        self.replies = list(replies[1::2] if self.asking else replies)
        return next((reply for reply in self.replies if meaning_of(reply) in NOT_EXECUTED), None)


class Link(Protocol):
    """How a flow asks the servers within its time; it yields what a method returns, which may have to be awaited."""

    def exchange(self, node: NodeAddress | None, commands: Sequence[Command]) -> Any:
        """Return the replies of a server, as an `Exchange` does."""

    def find(self) -> Any:
        """Find out which server has which role; raise StoreUnavailable if that is not known in time."""


_ByNode = dict[NodeAddress | None, list[Bundle]]


def send(topology: Topology, bundles: Sequence[Bundle], link: Link) -> Flow[None]:
    """Send bundles where they belong until each has its replies; a failure becomes the reply."""
    if any(topology.is_unsure_of(bundle.slot) for bundle in bundles):
        yield link.find()
    waiting = _by_node(topology, bundles)
    for _ in range(_MAX_HOPS):
        again: _ByNode = {}
        for node, group in waiting.items():
            try:
                yield from _send_to(topology, node, group, link, again)
            except Unsent as error:
                yield from _look_elsewhere(topology, node, group, error.__cause__, link, again=again)
            except Late as error:  # says nothing about the server
                for bundle in group:
                    bundle.replies = [error.__cause__]
            except Unanswered as error:
                topology.suspect(node)
                for bundle in group:
                    bundle.replies = [error.__cause__]
        if not again:
            return
        waiting = again


def _send_to(
    topology: Topology, node: NodeAddress | None, group: Sequence[Bundle], link: Link, again: _ByNode
) -> Flow[None]:
    """Send bundles to one server; those that it did not execute are put into `again`."""
    commands = [bundle.to_send() for bundle in group]
    replies = yield link.exchange(node, [command for part in commands for command in part])
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
        yield from _look_elsewhere(topology, node, demoted, demoted[0].replies[0], link, again=again)


def _by_node(topology: Topology, bundles: Sequence[Bundle]) -> _ByNode:
    groups: _ByNode = {}
    for bundle in bundles:
        node = bundle.node or topology.node_of(bundle.slot)
        if node is None and topology.may_move:  # another caller has just found that it is gone
            bundle.replies = [StoreUnavailable("no known server has the key", away=False, reason=UNREACHABLE)]
        else:
            groups.setdefault(node, []).append(bundle)
    return groups


def _look_elsewhere(
    topology: Topology,
    node: NodeAddress | None,
    group: Sequence[Bundle],
    error: BaseException | None,
    link: Link,
    *,
    again: _ByNode,
) -> Flow[None]:
    """Find out where the slots of a server are now that cannot be reached or is no longer a master."""
    topology.suspect(node)
    with suppress(StoreUnavailable):  # no other server knows either
        yield link.find()
    for bundle in group:
        other = bundle.node or topology.node_of(bundle.slot)
        if other is None or other == node:
            bundle.replies = [error]
        else:
            again.setdefault(other, []).append(bundle)


def _redirect(topology: Any, node: NodeAddress | None, bundle: Bundle, refusal: Any, again: _ByNode) -> None:
    meaning = meaning_of(refusal)
    if meaning == "no script":
        target = node
        if target not in again:  # the first one carries the script for those after it
            bundle.commands = [script.in_full(command) for command in bundle.commands]
    elif not topology.has_slots:
        _, host, port = redirection_of(refusal)
        said = f"the key is at {host}:{port}, another node of a cluster; use redis+cluster://"
        reason = "the server is a node of a cluster; use redis+cluster://"
        bundle.replies = [StoreUnavailable(said, away=False, answered=True, reason=reason)]
        return
    else:
        slot, host, port = redirection_of(refusal)
        target = topology.named(host, port, node)
        bundle.asking = meaning == "ask"
        if not bundle.asking:
            topology.moved(slot, target)
    again.setdefault(target, []).append(bundle)
