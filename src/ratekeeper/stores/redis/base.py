"""What both Redis stores share: everything that needs no waiting."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any

from ratekeeper import forks
from ratekeeper.algorithms.rule import Rule
from ratekeeper.clock import Clock, stopwatch
from ratekeeper.errors import InvalidRule, StoreUnavailable
from ratekeeper.rates import show
from ratekeeper.stores.breaker import Breaker
from ratekeeper.stores.protocol import Binding, Demand, Inspection, Outcome, QuickHit, Snapshot, outcome_at
from ratekeeper.stores.redis import connect, urls, wire
from ratekeeper.stores.redis.denials import Denials
from ratekeeper.stores.redis.exchange import (
    FOR_ONE,
    NOT_EXECUTED,
    OF_A_SLOT,
    Address,
    Command,
    Flow,
    Send,
    Torn,
    Unit,
    by_hash,
    converse,
    meaning_of,
)
from ratekeeper.stores.redis.wire import Request, Result

MOST_IN_FLIGHT = 2
MOST_IN_A_CALL = 128
FAIR_NS = 20_000_000  # a call that had less time than this left does not tell whether Redis is away

_log = logging.getLogger("ratekeeper")
_POLICY: Command = (b"INFO", b"memory")


class Base:
    """Redis servers, by URL or as an existing redis-py client or pool connects to them."""

    may_be_away = True

    def __init__(self, source: Any, *, for_asyncio: bool, remember_denials: bool) -> None:
        self.denials = Denials() if remember_denials else None
        self.topology = connect.topology_of(source, for_asyncio=for_asyncio)
        self._refusal, self.troubles = connect.errors()
        self._shown = urls.safe(source) if isinstance(source, str) else f"<{type(source).__name__}>"
        self._wires: dict[int, wire.Wire] = {}
        self._bound: dict[int, Binding] = {}  # keeps what the ids of the wires stand for
        self._clock: Clock | None = None
        self.took_ns = 0  # how long the latest answer took
        self.breaker = Breaker(repr(self))
        self.node_breakers: dict[Address, Breaker] = {}
        self._known_policies: set[Address | None] = set()  # the servers whose policy has been looked at
        forks.renew_in_child(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._shown})"

    @property
    def is_away(self) -> bool:
        """Whether the store, or a node of the cluster, does not answer at the moment."""
        if not self.topology.has_slots:
            return self.breaker.is_open
        if not self.topology.is_known and self.breaker.is_open:
            return True
        return any(breaker.is_open and self.topology.holds(node) for node, breaker in list(self.node_breakers.items()))

    def _refuse_if_away(self, demands: Sequence[Demand]) -> None:
        """Raise if a server that has one of these keys is taken to be away."""
        nodes = (
            {self.topology.address(wire.slot_of(demand.key)) for demand in demands}
            if self.topology.has_slots
            else {None}
        )
        if any(self.breaker_of(node).is_open for node in nodes):
            raise StoreUnavailable("Redis is away", away=False)

    def breaker_of(self, address: Address | None) -> Breaker:
        """Return what keeps callers away from a server; one that is no node of a cluster is the whole store."""
        if address is None:
            return self.breaker
        breaker = self.node_breakers.get(address)
        if breaker is None:
            for gone in [known for known in list(self.node_breakers) if not self.topology.knows(known)]:
                self.node_breakers.pop(gone, None)
            name = f"{self!r} node {address.host}:{address.port}"
            breaker = self.node_breakers.setdefault(address, Breaker(name))
        return breaker

    def bind(self, binding: Binding, clock: Clock | None) -> None:
        """Prepare for a limiter's rule and its clock. All limiters of one store share one clock."""
        if self._wires and clock != self._clock:
            raise InvalidRule(
                f"clock {show(clock)} differs from this store's, {show(self._clock)}; use one clock a store"
            )
        self._clock = clock
        if self.denials is not None:
            self.denials.timer = clock or stopwatch
        self._bound[id(binding)] = binding
        self._wires[id(binding)] = wire.wire_of(binding)

    def unbind(self, bindings: Sequence[Binding]) -> None:
        """Forget a limiter's rules."""
        for binding in bindings:
            self._bound.pop(id(binding), None)
            self._wires.pop(id(binding), None)

    def quick_hit(self, binding: Binding) -> QuickHit | None:  # noqa: ARG002 - the way to a server is never that short
        """Return nothing: the way to a server is never that short."""
        return None

    def after_fork(self) -> None:
        """Begin again with nothing under way: the other threads do not exist, and the sockets are the parent's."""
        for breaker in (self.breaker, *self.node_breakers.values()):
            breaker.after_fork()
        if self.denials is not None:
            self.denials.after_fork()

    def _now(self) -> int | None:
        """Return the injected clock's time in microseconds; None: the server's own counts."""
        if self._clock is None:
            return None
        now = self._clock() // 1000
        if now < 0:
            raise InvalidRule(f"clock shows {now} us, which is before 1970; Redis stores need a time since then")
        return now

    def _decide(self, requests: Sequence[Request], sent_ns: int) -> Flow:
        """Have requests decided, in one call a slot; return what came of each."""
        results: list[Result] = [Torn("", away=False)] * len(requests)
        groups = self._by_slot(requests)
        while groups:
            units = [Unit(slot, [self._call([requests[at] for at in places])]) for slot, places in groups]
            yield from converse(self.topology, units)
            again: list[tuple[int | None, list[int]]] = []
            for (slot, places), unit in zip(groups, units, strict=True):
                reply = unit.replies[0]
                if not isinstance(reply, Exception):
                    outcomes = self._outcomes(reply, [requests[at] for at in places], sent_ns)
                    for at, outcome in zip(places, outcomes, strict=True):
                        results[at] = outcome
                elif len(places) > 1 and meaning_of(reply) in FOR_ONE:  # before anything was written: each by itself
                    again += [(slot, [at]) for at in places]
                else:
                    for at in places:
                        results[at] = unavailable(reply)
            groups = again
        return results

    def _with_policy(self, send: Send) -> Sequence[Command]:
        """Return what to send: to a server that is new to us, the question behind it whether it forgets usage."""
        if send.address in self._known_policies or (send.address and send.address.is_sentinel):
            return send.commands
        return (*send.commands, _POLICY)

    def _judged(self, send: Send, replies: list[Any]) -> list[Any]:
        """Return the replies to what was to be sent; warn, once, if the server may forget usage."""
        if len(replies) == len(send.commands):
            return replies
        *replies, said = replies
        policy = re.search(rb"maxmemory_policy:(\S+)", said) if isinstance(said, bytes) else None
        if policy is not None and policy[1] != b"noeviction" and send.address not in self._known_policies:
            _log.warning(
                "%r%s may evict keys (maxmemory-policy %s), and evicted usage is forgotten; use noeviction",
                self,
                f" node {send.address.host}:{send.address.port}" if send.address else "",
                policy[1].decode(),
            )
        self._known_policies.add(send.address)
        return replies

    def _node_of(self, request: Request) -> Address | None:
        """Return which node of the cluster a request of one slot goes to."""
        return self.topology.address(wire.slot_of(request[0].key))

    def _at_once(self, reply: Any, requests: Sequence[Request], sent_ns: int) -> list[Outcome] | None:
        """Return what a call to the only server there is decided; None: nothing yet, `_decide` has to see to it."""
        if type(reply) is list:
            return self._outcomes(reply, requests, sent_ns)
        meaning = meaning_of(reply)
        if meaning in NOT_EXECUTED or (meaning in FOR_ONE and len(requests) > 1):
            return None
        raise unavailable(reply if isinstance(reply, Exception) else _strange(reply))

    def _by_slot(self, requests: Sequence[Request]) -> list[tuple[int | None, list[int]]]:
        """Return the positions of the requests that one call can decide."""
        if not self.topology.has_slots:
            return [(None, list(range(len(requests))))]
        groups: dict[int, list[int]] = {}
        for at, request in enumerate(requests):
            groups.setdefault(wire.slot_of(request[0].key), []).append(at)
        return list(groups.items())

    def _outcomes(self, reply: Any, requests: Sequence[Request], sent_ns: int) -> list[Outcome]:
        """Return what a call's reply says."""
        self.took_ns = stopwatch() - sent_ns
        try:
            outcomes = wire.decode(reply, requests)
        except (TypeError, ValueError, IndexError) as error:
            raise _strange(reply) from error
        if self.denials is not None:
            holds = not self.denials.is_empty
            for request, outcome in zip(requests, outcomes, strict=True):
                if holds or outcome.steady_us or request[0].operation != "hit" or len(request) > 1:
                    self._note(request, outcome, sent_ns)
                    holds = True
        return outcomes

    def _note(self, request: Request, outcome: Outcome, sent_ns: int) -> None:
        if self.denials is not None:
            since = sent_ns if self._clock is None else outcome.now_us * 1000
            self.denials.note(request, outcome, since)

    def doubt(self, demands: Sequence[Demand]) -> None:
        """Drop the denials that a change ends if it was executed, though nobody heard of it."""
        if self.denials is not None and any(demand.operation not in ("hit", "peek") for demand in demands):
            self.denials.note(demands, outcome_at(0, ()), 0)

    def _call(self, requests: Sequence[Request]) -> Command:
        """Return the command that decides these requests, by the script's hash."""
        try:
            return by_hash(*wire.encode(self._now(), requests, self._wires))
        except KeyError:  # a limiter has gone while a request of it was on its way
            wires = {id(each.binding): wire.wire_of(each.binding) for one in requests for each in one}
            return by_hash(*wire.encode(self._now(), requests, wires))

    def _look(self, demands: Sequence[Demand]) -> list[Unit]:
        """Return the commands that show how keys are stored."""
        units = []
        for demand in demands:
            name = self._name(demand)
            is_list = demand.binding.rule.stored_as == "list"
            commands: list[Command] = [
                (b"LRANGE", name, b"0", b"-1") if is_list else (b"GET", name),
                (b"TIME",),
                (b"PTTL", name),
                (b"MEMORY", b"USAGE", name, b"SAMPLES", b"0"),
            ]
            units.append(Unit(wire.slot_of(demand.key) if self.topology.has_slots else None, commands))
        return units

    def _seen(self, demands: Sequence[Demand], units: Sequence[Unit]) -> list[Inspection]:
        """Make inspections of what `_look` saw."""
        inspections = []
        for demand, unit in zip(demands, units, strict=True):
            value, now, ttl_ms, size = self._checked(unit)
            rule, name = demand.binding.rule, self._name(demand).decode("utf-8", "backslashreplace")
            words = dict(rule.words(_state(rule, value) if value else None, now))
            ttl = ttl_ms / 1000 if value else None
            size = size if value and isinstance(size, int) else 0
            inspections.append(Inspection(rule.text, words, value or None, ttl, size, now / 1e6, name))
        return inspections

    def _states(self, demands: Sequence[Demand], units: Sequence[Unit]) -> Snapshot:
        """Make a snapshot of what `_look` saw."""
        seen = [self._checked(unit) for unit in units]
        states = [
            _state(demand.binding.rule, value) if value else None
            for demand, (value, *_) in zip(demands, seen, strict=True)
        ]
        return Snapshot(max(now for _, now, *_ in seen), [demand.binding.rule for demand in demands], states)

    def _checked(self, unit: Unit) -> tuple[Any, int, int, Any]:
        for reply in unit.replies[:3]:  # that it may not tell its memory is fine
            if isinstance(reply, Exception):
                raise unavailable(reply)
        value, time, ttl_ms, size = unit.replies
        return value, self._time_of(time), ttl_ms, size

    def _name(self, demand: Demand) -> bytes:
        return wire.key_name(self._wires[id(demand.binding)], demand.key)

    def _time_of(self, reply: Sequence[bytes]) -> int:
        now = self._now()
        return int(reply[0]) * 1_000_000 + int(reply[1]) if now is None else now


def tells(error: BaseException | None, asked_ns: float, sent_ns: float, ends_ns: float, took_ns: float) -> bool:
    """Tell whether a call that failed tells that Redis is away, and not only that it had waited in our queue.

    One that ran out of time had twice the time that the latest answer took, or nearly all of its own.
    """
    if error is not None and "Timeout" not in type(error).__name__:
        took_ns = 0  # another error takes no time to tell
    return ends_ns - sent_ns >= min(max(FAIR_NS, 2 * took_ns), 0.9 * (ends_ns - asked_ns))


def _state(rule: Rule, value: Any) -> Any:
    return rule.load(value if isinstance(value, list) else wire.numbers_in(value))


def unavailable(error: BaseException) -> StoreUnavailable:
    """Say why Redis did not decide. Each caller gets an error of its own: they are raised in different places."""
    if isinstance(error, StoreUnavailable):
        again = type(error)(str(error), away=error.away, answered=error.answered)
        again.__cause__ = error.__cause__ or error
        return again
    text = str(error)
    if "unauthenticated" in text:  # how Redis refuses a command that is long, before it looks at what it is
        text += "; it asks for a password"
    meaning = meaning_of(error)
    kind = Torn if meaning == "torn" else StoreUnavailable
    answered = meaning in (*FOR_ONE, *OF_A_SLOT)
    made = kind(f"Redis did not decide: {type(error).__name__}: {text}", away=not answered, answered=answered)
    made.__cause__ = error
    return made


def interrupted() -> StoreUnavailable:
    """Say that nobody knows what came of a call."""
    return StoreUnavailable("the call to Redis was interrupted", away=False)


def _strange(reply: object) -> StoreUnavailable:
    return StoreUnavailable(f"Redis answered what is no decision: {show(reply)}")
