"""What all connections of a store share: how to reach the servers, what to send, and which servers are away."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from typing import Any

from ratekeeper.clock import stopwatch
from ratekeeper.errors import StoreUnavailable, damaged_key
from ratekeeper.flows import Flow
from ratekeeper.stores.breaker import Breaker
from ratekeeper.stores.calls import Calls
from ratekeeper.stores.protocol import Demand
from ratekeeper.stores.redis import redis_client, script
from ratekeeper.stores.redis.redis_errors import (
    FOR_ONE,
    LATE,
    NOT_EXECUTED,
    REFUSES_WRITES,
    Result,
    Torn,
    damaged_in,
    meaning_of,
    no_decision,
    refuses_login,
    unavailable,
)
from ratekeeper.stores.redis.routing import Bundle, Link, send
from ratekeeper.stores.redis.topology import Command
from ratekeeper.stores.redis.urls import NodeAddress, is_sentinel
from ratekeeper.stores.redis.wire import NOTHING, Codec, decode, slot_of

_LONG_NS = 1_000_000_000
MAX_AT_ONCE = 2  # exchanges of one kind in flight with a server
NoteResults = Callable[[Sequence[Sequence[Demand]], Sequence[Result], int], None]
"""Called with requests that were sent, their results, and when they were sent."""

_log = logging.getLogger("ratekeeper")
_POLICY: Command = (b"INFO", b"memory")
_NO_REQUEST: Command = (*script.CALL, b"0", NOTHING)


class Servers:
    """The servers of one store."""

    def __init__(self, source: Any, shown: str, *, for_asyncio: bool) -> None:
        self.topology = redis_client.topology_of(source, for_asyncio=for_asyncio)
        self.refusal, self.troubles = redis_client.errors()
        self.codec = Codec()
        self.calls = Calls()
        self.breaker = Breaker(shown)
        self.node_breakers: dict[NodeAddress, Breaker] = {}
        self.checked: set[NodeAddress | None] = set()  # servers that need not be asked anything but decisions
        self.tls_contexts: dict[bool, Any] = {}  # for connections to sentinels, and for all others
        self._refusing: set[NodeAddress | None] = set()  # servers that refused to write
        self._took_ns: dict[NodeAddress | None, int] = {}  # how long the latest welcome took: one exchange
        self._shown = shown

    @property
    def are_away(self) -> bool:
        """Whether the server, or a node of the cluster, is currently not answering."""
        if not self.topology.has_slots:
            return self.breaker.is_open
        if not self.topology.is_known and self.breaker.is_open:
            return True
        return any(breaker.is_open and self.topology.holds(node) for node, breaker in list(self.node_breakers.items()))

    def breaker_of(self, node: NodeAddress | None) -> Breaker:
        """Return the breaker of a node; without a node, that of the whole store."""
        if node is None:
            return self.breaker
        breaker = self.node_breakers.get(node)
        if breaker is None:
            for gone in [known for known in list(self.node_breakers) if not self.topology.knows(known)]:
                self.node_breakers.pop(gone, None)
            name = f"{self._shown} node {node.host}:{node.port}"
            breaker = self.node_breakers.setdefault(node, Breaker(name))
        return breaker

    def after_fork(self) -> None:
        """Reset the breakers."""
        for breaker in (self.breaker, *self.node_breakers.values()):
            breaker.after_fork()

    def ready(self, node: NodeAddress | None) -> None:
        """Let the next caller ask a server that was away: a connection is ready, and no caller has waited for it."""
        self.breaker_of(node if self.topology.has_slots else None).ask_again()

    def leave_for_others(self, node: NodeAddress | None, ends_ns: int) -> None:
        """Raise if a new connection comes too late for a caller: an unfinished exchange would close it again."""
        if self._took_ns.get(node, 0) > ends_ns - stopwatch():
            self.ready(node)
            raise StoreUnavailable("a connection to Redis was ready too late for a decision", away=False, reason=LATE)

    def welcome(self, node: NodeAddress | None, exchange: Callable[[Sequence[Command]], Any]) -> Flow[None]:
        """Make sure that the server of a new connection knows the script, so that a decision is a single exchange."""
        if is_sentinel(node):
            return
        sent_ns = stopwatch()
        (reply,) = yield exchange([_NO_REQUEST])
        self._took_ns[node] = stopwatch() - sent_ns
        if meaning_of(reply) == "no script":
            yield exchange([script.in_full(_NO_REQUEST)])
        elif refuses_login(reply):
            raise reply

    def refuse_if_away(self, demands: Sequence[Demand]) -> None:
        """Raise StoreUnavailable if a server with one of these keys is considered away."""
        has_slots = self.topology.has_slots
        nodes = {self.topology.node_of(slot_of(each.key)) for each in demands} if has_slots else {None}
        for breaker in map(self.breaker_of, nodes):
            if breaker.is_open:
                raise breaker.refusal()

    def node_of(self, request: Sequence[Demand]) -> NodeAddress | None:
        """Return the node for a request whose keys are in one slot."""
        return self.topology.node_of(slot_of(request[0].key))

    def with_question(self, node: NodeAddress | None, commands: Sequence[Command]) -> Sequence[Command]:
        """Return the commands for a server that is not in `checked`, followed by what to ask it."""
        if is_sentinel(node):
            return commands
        if node not in self._refusing:
            return (*commands, _POLICY)
        names = [command[3] for command in commands if command[0] in (b"EVALSHA", b"EVAL")]
        return (*commands, (b"SET", names[0] + b"?", b"", b"XX")) if names else commands  # a write that changes nothing

    def without_question(self, node: NodeAddress | None, replies: list[Any]) -> list[Any]:
        """Return the replies without the one to the question; the same for all if the server still refuses to write."""
        *replies, said = replies
        if node not in self._refusing:
            self._check_policy(node, said)
        elif meaning_of(said) in REFUSES_WRITES:
            return [said] * len(replies)
        elif not isinstance(said, Exception):
            self._refusing.discard(node)
            self.checked.add(node)
        return replies

    def _note_refusal(self, node: NodeAddress | None, meaning: str) -> None:
        if meaning in REFUSES_WRITES:  # a peek or a denial would not show that it writes again
            self._refusing.add(node)
            self.checked.discard(node)

    def _check_policy(self, node: NodeAddress | None, said: Any) -> None:
        """Warn once if a server may evict usage."""
        policy = re.search(rb"maxmemory_policy:(\S+)", said) if isinstance(said, bytes) else None
        if policy is not None and policy[1] != b"noeviction" and node not in self.checked:
            _log.warning(
                "%s%s may evict keys (maxmemory-policy %s), and evicted usage is forgotten; use noeviction",
                self._shown,
                f" node {node.host}:{node.port}" if node else "",
                policy[1].decode(),
            )
        self.checked.add(node)

    def results_of(self, reply: Any, requests: Sequence[Sequence[Demand]]) -> Sequence[Result] | None:
        """Return the results of a call to a standalone server; None if it must be made again, or in parts."""
        if type(reply) is list:
            return decode(reply, requests)
        meaning = meaning_of(reply)
        if meaning in NOT_EXECUTED or (meaning in FOR_ONE and len(requests) > 1):
            return None
        unreadable = self._unreadable(reply, requests)
        if unreadable:
            return list(unreadable.values())
        self._note_refusal(None, meaning)
        raise unavailable(reply if isinstance(reply, Exception) else no_decision(reply))

    def decide(self, requests: Sequence[Sequence[Demand]], link: Link) -> Flow[Sequence[Result]]:
        """Have requests decided with one call per slot, wherever it is now; return the result of each."""
        results: list[Result] = [Torn("", away=False)] * len(requests)
        groups = self._by_slot(requests)
        while groups:
            bundles = [
                Bundle(slot, [self.codec.command([requests[at] for at in positions])]) for slot, positions in groups
            ]
            yield from send(self.topology, bundles, link)
            again: list[tuple[int | None, list[int]]] = []
            for (slot, positions), bundle in zip(groups, bundles, strict=True):
                reply = bundle.replies[0]
                if not isinstance(reply, Exception):
                    outcomes = self.results_of(reply, [requests[at] for at in positions]) or ()
                    for at, outcome in zip(positions, outcomes, strict=True):
                        results[at] = outcome
                elif errors := self._unreadable(reply, [requests[at] for at in positions]):
                    for number, error in errors.items():
                        results[positions[number]] = error
                    rest = [at for number, at in enumerate(positions) if number not in errors]
                    again += [(slot, rest)] if rest else []  # nothing was written: ask again for all others
                elif len(positions) > 1 and meaning_of(reply) in FOR_ONE:  # nothing was written: retry each by itself
                    again += [(slot, [at]) for at in positions]
                else:
                    self._note_refusal(self.topology.node_of(slot), meaning_of(reply))
                    for at in positions:
                        results[at] = unavailable(reply)
            groups = again
        return results

    def _unreadable(self, reply: Any, requests: Sequence[Sequence[Demand]]) -> dict[int, StoreUnavailable]:
        """Return an error for each request, by its position, that needs a key which the script could not read."""
        numbers = damaged_in(reply)
        if not numbers:
            return {}
        names = self.codec.command(requests)[3:]
        unreadable = {names[number - 1] for number in numbers}
        errors: dict[int, StoreUnavailable] = {}
        for at, demands in enumerate(requests):
            for demand in demands:
                if demand.operation != "reset" and self.codec.name(demand) in unreadable:
                    errors.setdefault(at, damaged_key(demand.binding.name, demand.binding.rule.algorithm))
        return errors

    def _by_slot(self, requests: Sequence[Sequence[Demand]]) -> list[tuple[int | None, list[int]]]:
        """Return, for each call, its slot and the positions of its requests."""
        if not self.topology.has_slots:
            return [(None, list(range(len(requests))))]
        groups: dict[int, list[int]] = {}
        for at, request in enumerate(requests):
            groups.setdefault(slot_of(request[0].key), []).append(at)
        return list(groups.items())


class Within:
    """The link of a flow with a deadline, over the connections of threads or of an event loop."""

    def __init__(self, ends_ns: int, connections: Any) -> None:
        self._ends_ns = ends_ns
        self._connections = connections

    def exchange(self, node: NodeAddress | None, commands: Sequence[Command]) -> Any:
        """Exchange commands with a server."""
        return self._connections.exchange(node, commands, self._ends_ns)

    def find(self) -> Any:
        """Find out which server has which role, beside decisions."""
        return self._connections.find(self._ends_ns)


def time_for_each(ends_ns: int) -> int:
    """Return how long a search may ask each server: as long as its caller has, or half of that if it is long."""
    left_ns = ends_ns - stopwatch()
    return max(left_ns // 2, min(left_ns, _LONG_NS))
