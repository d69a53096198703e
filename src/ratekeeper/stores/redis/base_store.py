"""What both Redis stores share: everything that does not wait."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any

from ratekeeper import forks
from ratekeeper.clock import Clock, stopwatch
from ratekeeper.errors import StoreUnavailable, damaged_key
from ratekeeper.flows import Flow
from ratekeeper.stores.names import head_of, shared_name
from ratekeeper.stores.protocol import (
    Binding,
    CallObserver,
    Demand,
    Inspection,
    QuickHit,
    SharedValue,
    Snapshot,
    StoreFigures,
)
from ratekeeper.stores.redis import script, wire
from ratekeeper.stores.redis.denials import Denials, forget_everywhere
from ratekeeper.stores.redis.redis_errors import Result, is_of_another_type, unavailable
from ratekeeper.stores.redis.routing import Bundle
from ratekeeper.stores.redis.servers import NoteResults, Servers
from ratekeeper.stores.redis.topology import Command
from ratekeeper.stores.redis.urls import NodeAddress
from ratekeeper.stores.safe_urls import safe

_log = logging.getLogger("ratekeeper")
_STEP = b"1000"  # keys that a server looks at in one step
PATIENCE_NS = 1_000_000_000  # for calls that are not decisions or have no deadline


class BaseRedisStore:
    """State on Redis servers, given by URL or by an existing redis-py client or pool."""

    may_be_away = True
    _run_flow: Callable[[Flow[Any]], Any]
    _ask: Callable[[Sequence[Bundle], int], Any]  # sends commands and reads the replies; event loops await it

    def __init__(self, source: Any, *, for_asyncio: bool, remember_denials: bool) -> None:
        self._shown = safe(source) if isinstance(source, str) else f"<{type(source).__name__}>"
        self.denials = Denials() if remember_denials else None
        self._note_results: NoteResults = _forget if self.denials is None else self.denials.note_results
        self._servers = Servers(source, repr(self), for_asyncio=for_asyncio)
        self.breaker = self._servers.breaker
        self.node_breakers = self._servers.node_breakers
        self._told_of_memory = False
        forks.renew_in_child(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._shown})"

    @property
    def is_away(self) -> bool:
        """Whether the store, or a node of the cluster, is currently not answering."""
        return self._servers.are_away

    def figures(self) -> StoreFigures:
        """Return how the store stands now."""
        return StoreFigures(not self.is_away, None, None, None if self.denials is None else self.denials.recalled)

    def observe_calls(self, observer: CallObserver) -> None:
        """Tell an observer of every batch of decisions that is sent from now on."""
        self._servers.calls.observe(observer)

    def bind(self, binding: Binding, clock: Clock | None) -> None:
        """Prepare for a limiter's rule and its clock. All limiters of one store share one clock."""
        self._servers.codec.bind(binding, clock)
        if self.denials is not None:
            self.denials.timer = clock or stopwatch

    def unbind(self, bindings: Sequence[Binding]) -> None:
        """Forget a limiter's rules."""
        self._servers.codec.unbind(bindings)

    def quick_hit(self, binding: Binding) -> QuickHit | None:
        """Return a fast path to a denial of one rule that is remembered."""
        return None if self.denials is None else self.denials.quick_hit(binding)

    def inspect(self, demands: Sequence[Demand]) -> Any:
        """Show how each demand's key is stored."""
        return self._run_flow(self._inspect(demands))

    def snapshot(self, demands: Sequence[Demand], ends_ns: int | None = None) -> Any:
        """Return the time and the state of each demand's key."""
        return self._run_flow(self._take_snapshot(demands, ends_ns))

    def forget(self, bindings: Sequence[Binding]) -> Any:
        """Forget every key of these rules, in steps between which the servers serve others."""
        return self._run_flow(self._forget(bindings))

    def read_shared(self, name: str, most: int | None = None) -> Any:
        """Return a shared value, or its first `most` bytes."""
        return self._run_flow(self._read_shared(name, most))

    def replace_shared(self, name: str, before: bytes, content: bytes) -> Any:
        """Replace a shared value that begins with `before`; tell whether it did."""
        return self._run_flow(self._replace_shared(name, before, content))

    def after_fork(self) -> None:
        """Start afresh: the parent's threads do not exist here, and the sockets belong to the parent."""
        self._servers.after_fork()
        if self.denials is not None:
            self.denials.after_fork()

    def _inspect(self, demands: Sequence[Demand]) -> Flow[list[Inspection]]:
        bundles = self._bundles(demands)
        yield self._ask(bundles, stopwatch() + PATIENCE_NS)
        return self._inspections(demands, bundles)

    def _take_snapshot(self, demands: Sequence[Demand], ends_ns: int | None) -> Flow[Snapshot]:
        self._servers.refuse_if_away(demands)
        bundles = self._bundles(demands)
        yield self._ask(bundles, stopwatch() + PATIENCE_NS if ends_ns is None else ends_ns)
        return self._snapshot(demands, bundles)

    def _forget(self, bindings: Sequence[Binding]) -> Flow[None]:
        heads = {head_of(binding) for binding in bindings}
        yield from self._replies([Bundle(None, [(b"TIME",)])])  # asked of any server, which finds out about all
        for node in self._servers.topology.nodes:
            yield from self._forget_on(node, heads)
        forget_everywhere(bindings)

    def _forget_on(self, node: NodeAddress | None, heads: Collection[bytes]) -> Flow[None]:
        """Delete the keys with these heads that a server holds, a few at a time."""
        pattern, cursor = wire.pattern_of(heads), b"0"
        while True:
            scan = Bundle(None, [(b"SCAN", cursor, b"MATCH", pattern, b"COUNT", _STEP)], node)
            ((cursor, found),) = yield from self._replies([scan])
            names = [name for name in found if name.partition(b"{")[0] + b"{" in heads]
            if self._servers.topology.has_slots:
                yield from self._replies([Bundle(wire.slot_of_name(name), [(b"DEL", name)]) for name in names])
            elif names:
                yield from self._replies([Bundle(None, [(b"DEL", *names)])])
            if cursor == b"0":
                return

    def _read_shared(self, name: str, most: int | None) -> Flow[SharedValue]:
        key = shared_name(name)
        commands: list[Command] = [
            (b"GET", key) if most is None else (b"GETRANGE", key, b"0", b"%d" % (most - 1)),
            (b"TIME",),
        ]
        content, (seconds, microseconds) = yield from self._shared_replies(key, commands)
        now = self._servers.codec.now_us()
        return SharedValue(content or b"", int(seconds) * 1_000_000 + int(microseconds) if now is None else now)

    def _replace_shared(self, name: str, before: bytes, content: bytes) -> Flow[bool]:
        key = shared_name(name)
        call = (*script.REPLACE, b"1", key, before, content)
        (replaced,) = yield from self._shared_replies(key, [call])
        return bool(replaced)

    def _shared_replies(self, key: bytes, commands: Sequence[Command]) -> Flow[list[Any]]:
        """Send commands about a shared value, unless its server is away, and return the replies."""
        servers, ends_ns = self._servers, stopwatch() + PATIENCE_NS
        slot = wire.slot_of_name(key) if servers.topology.has_slots else None
        breaker = servers.breaker_of(servers.topology.node_of(slot) if servers.topology.has_slots else None)
        if breaker.is_open and not breaker.admits(ends_ns):
            raise breaker.refusal()
        bundle = Bundle(slot, commands)
        yield self._ask([bundle], ends_ns)
        for reply in bundle.replies:
            if isinstance(reply, Exception):
                raise unavailable(reply)
        breaker.succeeded()
        return bundle.replies

    def _replies(self, bundles: Sequence[Bundle]) -> Flow[list[Any]]:
        """Send bundles of one command each, and return their replies."""
        yield self._ask(bundles, stopwatch() + PATIENCE_NS)
        replies = [bundle.replies[0] for bundle in bundles]
        for reply in replies:
            if isinstance(reply, Exception):
                raise unavailable(reply)
        return replies

    def _bundles(self, demands: Sequence[Demand]) -> list[Bundle]:
        """Return the commands that show how keys are stored."""
        bundles = []
        for demand in demands:
            name = self._servers.codec.name(demand)
            is_list = demand.binding.rule.stored_as == "list"
            commands: list[Command] = [
                (b"LRANGE", name, b"0", b"-1") if is_list else (b"GET", name),
                (b"TIME",),
                (b"PTTL", name),
                (b"MEMORY", b"USAGE", name, b"SAMPLES", b"0"),
            ]
            bundles.append(Bundle(wire.slot_of(demand.key) if self._servers.topology.has_slots else None, commands))
        return bundles

    def _inspections(self, demands: Sequence[Demand], bundles: Sequence[Bundle]) -> list[Inspection]:
        """Make inspections from the replies to `_bundles`."""
        inspections = []
        for demand, bundle in zip(demands, bundles, strict=True):
            value, now, ttl_ms, size = self._checked(demand, bundle)
            rule, name = demand.binding.rule, self._servers.codec.name(demand).decode("utf-8", "backslashreplace")
            words = dict(rule.words(_state(demand.binding, value), now))
            ttl = ttl_ms / 1000 if value else None
            if isinstance(size, Exception) and not self._told_of_memory:
                self._told_of_memory = True
                _log.warning("%r reports 0 bytes: %s; grant +memory|usage", self, size)
            size = size if value and isinstance(size, int) else 0
            inspections.append(Inspection(rule.text, words, value or None, ttl, size, now / 1e6, name))
        return inspections

    def _snapshot(self, demands: Sequence[Demand], bundles: Sequence[Bundle]) -> Snapshot:
        """Make a snapshot from the replies to `_bundles`."""
        seen = [self._checked(demand, bundle) for demand, bundle in zip(demands, bundles, strict=True)]
        states = [_state(demand.binding, value) for demand, (value, *_) in zip(demands, seen, strict=True)]
        return Snapshot(max(now for _, now, *_ in seen), [demand.binding.rule for demand in demands], states)

    def _checked(self, demand: Demand, bundle: Bundle) -> tuple[Any, int, int, Any]:
        for reply in bundle.replies[:3]:  # MEMORY USAGE may fail: some users may not call it
            if isinstance(reply, Exception):
                raise _damaged(demand.binding) if is_of_another_type(reply) else unavailable(reply)
        value, (seconds, microseconds), ttl_ms, size = bundle.replies
        now = self._servers.codec.now_us()
        return value, int(seconds) * 1_000_000 + int(microseconds) if now is None else now, ttl_ms, size


def _forget(requests: Sequence[Sequence[Demand]], results: Sequence[Result], sent_ns: int) -> None:
    """Remember nothing."""


def _state(binding: Binding, value: Any) -> Any:
    """Return the state that is stored as this value; None if nothing is."""
    if value is None or value == []:
        return None
    try:
        return binding.rule.load(value if isinstance(value, list) else wire.numbers_in(value))
    except ValueError as error:
        raise _damaged(binding) from error


def _damaged(binding: Binding) -> StoreUnavailable:
    return damaged_key(binding.name, binding.rule.algorithm)
