"""MemoryStore: keeps all state in this process, without a server."""

from __future__ import annotations

import math
import sys
from array import array
from collections import deque
from collections.abc import Sequence
from typing import Any

from ratekeeper import keys
from ratekeeper.clock import Clock, no_time, wall_clock
from ratekeeper.decision import NO_LAYERS, Decision
from ratekeeper.errors import InvalidRule
from ratekeeper.rates import show
from ratekeeper.stores.deciding import carry_out
from ratekeeper.stores.eviction import EvictionQueue
from ratekeeper.stores.protocol import (
    Binding,
    CallObserver,
    Demand,
    Inspection,
    Outcome,
    QuickHit,
    SharedValue,
    Snapshot,
    StoreFigures,
    begins_with,
)
from ratekeeper.stores.spinlock import SpinLock

_new = tuple.__new__  # a named tuple's own constructor takes twice as long


class MemoryStore:
    """Keeps up to `max_keys` keys in memory, safe for any number of threads and event loops.

    Keys that have become equal to untouched ones are forgotten automatically. A full store gives each rule, or each
    `group` of rules, an equal part of its room. It drops expired keys, or evicts the key that has used the smallest
    share of its limit, of those whose rules have more than their part and, if it has its part, of the new key's own
    rule; among equals, the one that expires first.
    """

    may_be_away = False
    is_per_loop = False

    def __init__(self, max_keys: int = 1_000_000) -> None:
        if isinstance(max_keys, bool) or not isinstance(max_keys, int):
            raise TypeError(f"max_keys must be an int of at least 1, not {show(max_keys)}")
        if max_keys < 1:
            raise InvalidRule(f"max_keys must be at least 1, not {max_keys}")
        self._lock = SpinLock()
        self._eviction = EvictionQueue(max_keys)
        self._tables = self._eviction.tables
        self._clock: Clock = wall_clock
        self._shared: dict[str, bytes] = {}
        self._ended: deque[Sequence[Binding]] = deque()  # the rules of limiters that no longer exist

    def __repr__(self) -> str:
        return f"MemoryStore(max_keys={self.max_keys}, size={self.size}, evictions={self.evictions})"

    @property
    def max_keys(self) -> int:
        """The most keys that the store holds; a request for several rules has one key for each.

        A rule that has keys and no limiter any more counts as eight keys.
        """
        return self._eviction.max_keys

    @property
    def size(self) -> int:
        """The number of keys in use now."""
        return sum(len(table.states) for table in list(self._tables.values()))

    @property
    def evictions(self) -> int:
        """The number of keys that were evicted before they expired, because the store was full."""
        return self._eviction.evictions

    def figures(self) -> StoreFigures:
        """Return how the store stands now."""
        return StoreFigures(True, self.size, self.evictions)

    def observe_calls(self, observer: CallObserver) -> None:
        """Do nothing: there is no server to call."""

    def for_threads(self) -> MemoryStore:
        return self

    def for_asyncio(self) -> MemoryStore:
        return self

    def bind(self, binding: Binding, clock: Clock | None) -> None:
        """Prepare for a limiter's rule and its clock. All limiters of one store share one clock."""
        self._lock.call(self._bind, binding, clock or wall_clock)

    def unbind(self, bindings: Sequence[Binding]) -> None:
        """Note that a limiter no longer exists. This may run inside the lock, so the next `bind` handles it."""
        self._ended.append(bindings)

    def agrees_on(self, clock: Clock | None) -> bool:
        """Tell whether a limiter with this clock can be bound."""
        return not self._tables or (clock or wall_clock) == self._clock

    def execute(self, demands: Sequence[Demand], ends_ns: int | None = None) -> Outcome:  # noqa: ARG002 - it is quick
        """Decide or change all demands at one instant; all or nothing."""
        free = self._lock.free
        try:
            del free[0]  # as in SpinLock.call, without the call
        except KeyError:
            return self._lock.call(self._execute, demands)
        try:
            has_lock = True  # noqa: F841 - as there
            return self._execute(demands)
        finally:
            free[0] = True

    def inspect(self, demands: Sequence[Demand]) -> list[Inspection]:
        """Show how each demand's key is stored."""
        return self._lock.call(self._inspect, demands)

    def snapshot(self, demands: Sequence[Demand], ends_ns: int | None = None) -> Snapshot:  # noqa: ARG002 - as above
        """Return the time and a copy of the state of each demand's key."""
        return self._lock.call(self._snapshot, demands)

    def forget(self, bindings: Sequence[Binding]) -> None:
        """Forget every key of these rules, at one instant."""
        self._lock.call(self._forget, bindings)

    def read_shared(self, name: str, most: int | None = None) -> SharedValue:
        """Return a shared value, or its first `most` bytes."""
        return SharedValue(self._shared.get(name, b"")[:most], self._now_ns() // 1000)

    def replace_shared(self, name: str, before: bytes, content: bytes) -> bool:
        """Replace a shared value that begins with `before`; tell whether it did."""
        return self._lock.call(self._replace_shared, name, before, content)

    def close(self) -> None:
        """Forget everything."""
        self._lock.call(self._close)

    def quick_hit(self, binding: Binding) -> QuickHit:
        """Return a fast path to hit one rule with a str key and an int cost: `execute` with its calls inlined."""
        free = self._lock.free
        eviction = self._eviction
        clock = wall_clock if self._clock is wall_clock else self._now_ns
        table = self._tables[binding.space]
        states = table.states
        get = states.get
        decide = binding.rule.decide
        limit = binding.rule.limit
        name = binding.name
        one = 1

        def hit(key: Any, cost: Any) -> Decision | None:
            if key.__class__ is not str or (cost is not one and (cost.__class__ is not int or cost < 1)):
                return None
            try:
                del free[0]  # as in SpinLock.call, without the call
            except KeyError:
                return None
            try:
                has_lock = True
                before = get(key)
                if before is None:
                    keys.check(key)  # stored keys have been checked already
                now = clock() // 1000
                state, allowed, remaining, retry_after, reset_after, delay = decide(before, now, cost, True)
                if state is not before:
                    if before is None:
                        eviction.add(table, key, state, now)
                    else:
                        states[key] = state
                if now >= eviction.due:
                    eviction.collect(now)
            finally:
                free[0] = True
                has_lock = False  # noqa: F841 - as there
            return _new(
                Decision,
                (
                    allowed,
                    limit,
                    remaining,
                    0.0 if allowed else math.inf if retry_after is None else retry_after / 1e6,
                    reset_after / 1e6,
                    delay / 1e6 if delay else 0.0,
                    name,
                    NO_LAYERS,
                    False,
                    (),
                ),
            )

        return hit

    def _bind(self, binding: Binding, clock: Clock) -> None:
        if not self.agrees_on(clock):
            raise InvalidRule(
                f"clock {show(clock)} differs from this store's, {show(self._clock)}; use one clock per store"
            )
        self._clock = clock
        while self._ended:
            for ended in self._ended[0]:
                self._eviction.unbind(ended)
            del self._ended[0]  # last: an interruption before this does it again
        self._eviction.bind(binding)

    def _execute(self, demands: Sequence[Demand]) -> Outcome:
        now = self._now_ns() // 1000
        answers = carry_out(demands, now, self._state, self._write)
        if now >= self._eviction.due:
            self._eviction.collect(now, len(demands))
        return _new(Outcome, (now, answers, False, 0, ()))

    def _inspect(self, demands: Sequence[Demand]) -> list[Inspection]:
        now = self._now_ns() // 1000
        return [self._inspection(demand, now) for demand in demands]

    def _snapshot(self, demands: Sequence[Demand]) -> Snapshot:
        states = [self._state(demand) for demand in demands]
        rules = [demand.binding.rule for demand in demands]
        return Snapshot(
            self._now_ns() // 1000, rules, [state[:] if isinstance(state, array) else state for state in states]
        )

    def _forget(self, bindings: Sequence[Binding]) -> None:
        for binding in bindings:
            self._eviction.forget(self._tables[binding.space])

    def _replace_shared(self, name: str, before: bytes, content: bytes) -> bool:
        replaces = begins_with(self._shared.get(name, b""), before)
        if replaces:
            self._shared[name] = content
        return replaces

    def _close(self) -> None:
        self._eviction.clear()
        self._shared.clear()

    def _now_ns(self) -> int:
        now_ns = self._clock()
        if not isinstance(now_ns, int):
            raise no_time(now_ns)
        return now_ns

    def _state(self, demand: Demand) -> Any:
        return self._tables[demand.binding.space].states.get(demand.key)

    def _write(self, demand: Demand, before: Any, state: Any, now: int) -> None:
        table, key = self._tables[demand.binding.space], demand.key
        if before is None:
            self._eviction.add(table, key, state, now)
        elif not state:
            self._eviction.empty(table, key)
        elif state is not before:
            table.states[key] = state

    def _inspection(self, demand: Demand, now: int) -> Inspection:
        rule = demand.binding.rule
        state = self._state(demand)
        ttl = rule.expires_at(state) - now if state else 0
        if ttl <= 0:
            return Inspection(rule.text, dict(rule.words(None, now)), None, None, 0, now / 1e6)
        parts = state if isinstance(state, tuple) else ()
        size = sys.getsizeof(demand.key) + sys.getsizeof(state) + sum(map(sys.getsizeof, parts))
        raw = state if isinstance(state, int) else tuple(state)
        return Inspection(rule.text, dict(rule.words(state, now)), raw, ttl / 1e6, size, now / 1e6)
