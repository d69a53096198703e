"""Limiter and AsyncLimiter: what applications use. They share all code that does not wait and differ only in the await.

A decision goes down one stack of layers and comes up again: the limiter checks the arguments and makes the `Decision`;
leases (with `lease`) spend a slice taken ahead; the fallback (for stores that may be away) keeps the deadline; the
store decides.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from ratekeeper import arguments, decorators, flows, queues, stores, waiting
from ratekeeper.algorithms.rule import Rule
from ratekeeper.clock import Clock, stopwatch
from ratekeeper.decision import Decision
from ratekeeper.errors import RateLimited
from ratekeeper.fallback import Fallback, OnError, ReentrantCalls
from ratekeeper.leases import Leases
from ratekeeper.notices import Notices
from ratekeeper.reservations import AsyncReservation, Reservation
from ratekeeper.rules import Rules, share_of
from ratekeeper.ruleset import Costs, Keys, Ruleset, StoredBy
from ratekeeper.stores.protocol import Demand, Inspection, Layer, Operation, Outcome, Store

if TYPE_CHECKING:
    from fractions import Fraction

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_FREES = ("refund", "reset")  # operations that may let a waiter be admitted
Hook = Callable[[Keys, Decision], object]
_log = logging.getLogger("ratekeeper")


def _no_quick_hit(key: Keys, cost: Costs) -> None:
    """Make no decision: the store has no shortcut past the layers."""


class _Limiter:
    """What both limiters share: everything that does not wait."""

    _for_asyncio: bool
    _run_flow: Callable[[flows.Flow[Any]], Any]

    def __init__(
        self,
        rules: Rules,
        store: str | Store = "memory://",
        *,
        clock: Clock | None = None,
        prefix: str = "ratekeeper",
        group: str | None = None,
        on_error: OnError = "local",
        deadline: float = 0.1,
        enabled: bool = True,
        on_decision: Hook | None = None,
        local_share: float | Fraction = 1,
        lease: float | None = None,
        notices: Notices | None = None,
        stored_by: StoredBy = "name",
    ) -> None:
        arguments.check_options(
            clock=clock, prefix=prefix, group=group, on_error=on_error, deadline=deadline, on_decision=on_decision
        )
        arguments.check_stored_by(stored_by)
        self._ruleset = Ruleset(rules, prefix, group, stored_by)
        bindings = self._ruleset.bindings
        share = arguments.check_share(local_share)
        lease = arguments.check_lease(lease, [binding.rule for binding in bindings])
        self._owns_store = isinstance(store, str)
        store = stores.store_of(store, for_asyncio=self._for_asyncio)
        self._store_layer = store.for_asyncio() if self._for_asyncio else store.for_threads()
        self._store = store
        self._enabled = enabled
        self._notices = notices or Notices()
        self._on_decision = on_decision
        self._below: Layer
        shares = {binding: binding._replace(rule=share_of(binding.rule, share)) for binding in bindings}
        unbind = weakref.finalize(self._ruleset, store.unbind, bindings)
        unbind.atexit = False
        try:
            for binding in bindings:
                store.bind(binding, clock)
            options: Any = {"on_error": on_error, "deadline": deadline, "clock": clock, "notices": self._notices}
            fallback = partial(Fallback, self._store_layer, store, shares=shares, run=self._run_flow, **options)
            self._below = fallback() if store.may_be_away else ReentrantCalls(self._store_layer, fallback)
            self._layer: Layer = self._below
            self._leases: Leases | None = None
            if lease is not None and store.may_be_away:
                self._layer = self._leases = Leases(self._below, lease, deadline, clock or stopwatch, self._run_flow)
            self._queues = queues.queues_of(store)
            below = self._below if store.may_be_away else self._store_layer
            self._waiting = waiting.Waiting(self._ruleset, below, self._queues, clock, self._leases)
            is_plain = enabled and on_decision is None and self._leases is None and len(bindings) == 1
            self._quick_hit = (store.quick_hit(bindings[0]) if is_plain else None) or _no_quick_hit
        except BaseException:  # no limiter, so its rules are not in force
            unbind()
            raise

    @property
    def rules(self) -> dict[str, Rule]:
        """The rules, by name."""
        return self._ruleset.rules

    @property
    def store(self) -> Store:
        """The store, to share it with another limiter or to read its counters."""
        return self._store

    @property
    def enabled(self) -> bool:
        """Whether the rules are enforced."""
        return self._enabled

    @property
    def notices(self) -> Notices:
        """Counters of the decisions that did not follow the rules in the store, and why."""
        return self._notices

    @property
    def timer(self) -> Clock:
        """The clock that times waits: the one that was passed if it is moved by hand, otherwise a monotonic one."""
        return self._waiting.timer

    def __repr__(self) -> str:
        rules = {name: rule.text for name, rule in self.rules.items()}
        return f"{type(self).__name__}({rules}, store={self.store})"

    def _tell(self, key: Keys, decision: Decision) -> Decision:
        """Pass a decision to the hook; log what the hook raises."""
        if self._on_decision is not None:
            try:
                self._on_decision(key, decision)
            except Exception:  # noqa: BLE001
                _log.exception("on_decision raised an exception; the decision is unaffected")
        return decision

    def _switched_off(self, demands: list[Demand]) -> Decision:
        self._notices.note("unlimited", "enabled=False admits everything; set enabled=True to enforce the rules")
        return self._ruleset.switched_off(demands)

    def _taken(self, key: Keys, demands: list[Demand], outcome: Outcome | None) -> Decision:
        """Make the decision on a hit (no outcome: the store was not asked), and pass it to the hook."""
        return self._tell(
            key, self._switched_off(demands) if outcome is None else self._ruleset.decision(demands, outcome)
        )


class Limiter(_Limiter):
    """Decides whether requests are admitted.

        >>> limiter = Limiter("fixed-window 2/minute")
        >>> [limiter.hit("user:42").allowed for _ in range(3)]
        [True, True, False]

    `rules` is one rule, a text, or a mapping of names to these; `store` is a URL or a store object. `key` is a str,
    bytes or int, a tuple of these, or a mapping with a key for each rule; `cost` is an int, or a mapping as well.

    `clock` returns integer nanoseconds and replaces the store's own clock. `prefix` begins every stored key: limiters
    on one store share the usage of equal rules if their prefixes are equal, and share nothing otherwise. `on_error`
    determines decisions while the store cannot answer ("local", "open", "closed", "raise"), and `deadline` bounds the
    time of a decision, in seconds. `enabled=False` admits everything without the store. `on_decision(key, decision)`
    is called for every hit and wait; its errors are logged. `notices` counts and logs the decisions that did not
    follow the rules in the store; limiters may share one.

    For a store that may be away: `local_share` is the part of the limits, rounded up, that this process enforces with
    `on_error="local"`, such as 1/8 for one of eight processes. `lease`, in seconds, lets the process take a slice of a
    hot key's capacity ahead and spend it without asking the store.

    For rules that come from clients: `stored_by="text"` stores a rule by its text, so that its name cannot reach the
    usage of another rule (equal rules with the same key are then charged together). By default it is stored by its
    name, so that a changed rule takes over the usage. A full memory store divides its room among the rules, and counts
    all limiters of one `group` as one rule.

    A limiter that made its store from a URL closes it: with `close()`, or at the end of a `with` block.
    """

    _for_asyncio = False
    _run_flow = staticmethod(flows.run)

    def hit(self, key: Keys, cost: Costs = 1) -> Decision:
        """Consume `cost` if the rules admit it, whole or not at all."""
        decision = self._quick_hit(key, cost)
        if decision is not None:
            return decision
        demands = self._ruleset.demands("hit", key, cost)
        if not self._enabled:
            return self._taken(key, demands, None)
        decision = self._ruleset.decision(demands, cast("Outcome", self._layer.execute(demands)))
        return decision if self._on_decision is None else self._tell(key, decision)

    def peek(self, key: Keys, cost: Costs = 1) -> Decision:
        """Return whether `cost` would be admitted now, and the state of the key; change and create nothing."""
        return self._execute("peek", key, cost)

    def charge(self, key: Keys, cost: Costs = 1) -> Decision:
        """Consume unconditionally, if the real cost was higher than estimated; return the key's state afterwards."""
        return self._execute("charge", key, cost)

    def refund(self, key: Keys, cost: Costs = 1) -> Decision:
        """Give back at most the current usage; return the key's state afterwards."""
        return self._execute("refund", key, cost)

    def reset(self, key: Keys) -> None:
        """Forget the key."""
        self._execute("reset", key)

    def take(self, key: Keys, cost: Costs = 1) -> Reservation:
        """Hit, and return a reservation that can be given back or corrected to the real cost."""
        demands = self._ruleset.demands("hit", key, cost)
        outcome = cast("Outcome", self._layer.execute(demands)) if self._enabled else None
        decision = self._taken(key, demands, outcome)
        return Reservation(self._ruleset, self._layer, self._queues, key, decision, demands, outcome)

    def inspect(self, key: Keys) -> dict[str, Inspection]:
        """Show how each rule, by name, stores the key: the state in words, the raw value, TTL and bytes."""
        demands = self._ruleset.demands("peek", key)
        return self._ruleset.inspections(demands, self._store_layer.inspect(demands))

    def wait(self, key: Keys, cost: Costs = 1, timeout: float | None = None) -> Decision:
        """Sleep until admitted and through a shaping delay; raise RateLimited at once if `timeout` cannot be met."""
        timeout = waiting.check_timeout(timeout)
        if self._waiting.is_free:
            decision = self._quick_hit(key, cost)
            if decision:
                return decision
        demands = self._ruleset.demands("hit", key, cost)
        decision, _ = self._wait(key, demands, timeout)
        return decision

    def wait_and_take(self, key: Keys, cost: Costs = 1, timeout: float | None = None) -> Reservation:
        """Wait as `wait` does, and return a reservation that can be given back or corrected."""
        demands = self._ruleset.demands("hit", key, cost)
        timeout = waiting.check_timeout(timeout)
        decision, outcome = self._wait(key, demands, timeout)
        return Reservation(self._ruleset, self._layer, self._queues, key, decision, demands, outcome)

    @contextmanager
    def slot(self, key: Keys, cost: Costs = 1, timeout: float | None = None) -> Iterator[Decision]:
        """Wait, as a context manager."""
        yield self.wait(key, cost, timeout)

    def limited(
        self, key: Keys | Callable[..., Keys], cost: Costs | Callable[..., Costs] = 1
    ) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result]]:
        """Make a function hit first, or raise RateLimited; `key` and `cost` may be computed from its arguments."""
        return decorators.limited(self.hit, key, cost)

    def close(self) -> None:
        """Give back the unused units of leases, and close the store if this limiter made it."""
        if self._leases is not None:
            flows.run(self._leases.end_all())
        if self._owns_store:
            self._store_layer.close()

    def __enter__(self) -> Limiter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # Written again in `AsyncLimiter`: as a flow it would be entered again each time that the waiter wakes.
    def _wait(self, key: Keys, demands: list[Demand], timeout: float | None) -> tuple[Decision, Outcome | None]:
        if not self._enabled:
            return self._taken(key, demands, None), None
        try:
            flow = self._waiting.wait(demands, timeout, queues.Waiter(self.timer))
            decision, outcome = flows.run(flow)
        except RateLimited as error:
            self._tell(key, error.decision)
            raise
        return decision if self._on_decision is None else self._tell(key, decision), outcome

    def _execute(self, operation: Operation, key: Keys, cost: Costs = 1) -> Decision:
        demands = self._ruleset.demands(operation, key, cost)
        if not self._enabled:
            return self._switched_off(demands)
        outcome = self._layer.execute(demands)
        if operation in _FREES:
            self._queues.nudge(demands)
        return self._ruleset.decision(demands, cast("Outcome", outcome))


class AsyncLimiter(_Limiter):
    """A `Limiter` whose methods are awaited."""

    _for_asyncio = True
    _run_flow = staticmethod(flows.run_async)

    async def hit(self, key: Keys, cost: Costs = 1) -> Decision:
        """Consume `cost` if the rules admit it, whole or not at all."""
        decision = self._quick_hit(key, cost)
        if decision is not None:
            return decision
        demands = self._ruleset.demands("hit", key, cost)
        if not self._enabled:
            return self._taken(key, demands, None)
        outcome = self._layer.execute(demands)
        if not isinstance(outcome, Outcome):
            outcome = await outcome
        decision = self._ruleset.decision(demands, outcome)
        return decision if self._on_decision is None else self._tell(key, decision)

    async def peek(self, key: Keys, cost: Costs = 1) -> Decision:
        """Return whether `cost` would be admitted now, and the state of the key; change and create nothing."""
        return await self._execute("peek", key, cost)

    async def charge(self, key: Keys, cost: Costs = 1) -> Decision:
        """Consume unconditionally, if the real cost was higher than estimated; return the key's state afterwards."""
        return await self._execute("charge", key, cost)

    async def refund(self, key: Keys, cost: Costs = 1) -> Decision:
        """Give back at most the current usage; return the key's state afterwards."""
        return await self._execute("refund", key, cost)

    async def reset(self, key: Keys) -> None:
        """Forget the key."""
        await self._execute("reset", key)

    async def take(self, key: Keys, cost: Costs = 1) -> AsyncReservation:
        """Hit, and return a reservation that can be given back or corrected to the real cost."""
        demands = self._ruleset.demands("hit", key, cost)
        outcome = await flows.result(self._layer.execute(demands)) if self._enabled else None
        decision = self._taken(key, demands, outcome)
        return AsyncReservation(self._ruleset, self._layer, self._queues, key, decision, demands, outcome)

    async def inspect(self, key: Keys) -> dict[str, Inspection]:
        """Show how each rule, by name, stores the key: the state in words, the raw value, TTL and bytes."""
        demands = self._ruleset.demands("peek", key)
        return self._ruleset.inspections(demands, await flows.result(self._store_layer.inspect(demands)))

    async def wait(self, key: Keys, cost: Costs = 1, timeout: float | None = None) -> Decision:
        """Sleep until admitted and through a shaping delay; raise RateLimited at once if `timeout` cannot be met."""
        timeout = waiting.check_timeout(timeout)
        if self._waiting.is_free:
            decision = self._quick_hit(key, cost)
            if decision:
                return decision
        demands = self._ruleset.demands("hit", key, cost)
        decision, _ = await self._wait(key, demands, timeout)
        return decision

    async def wait_and_take(self, key: Keys, cost: Costs = 1, timeout: float | None = None) -> AsyncReservation:
        """Wait as `wait` does, and return a reservation that can be given back or corrected."""
        demands = self._ruleset.demands("hit", key, cost)
        timeout = waiting.check_timeout(timeout)
        decision, outcome = await self._wait(key, demands, timeout)
        return AsyncReservation(self._ruleset, self._layer, self._queues, key, decision, demands, outcome)

    @asynccontextmanager
    async def slot(self, key: Keys, cost: Costs = 1, timeout: float | None = None) -> AsyncIterator[Decision]:
        """Wait, as a context manager."""
        yield await self.wait(key, cost, timeout)

    def limited(
        self, key: Keys | Callable[..., Keys], cost: Costs | Callable[..., Costs] = 1
    ) -> Callable[[Callable[_Parameters, Awaitable[_Result]]], Callable[_Parameters, Awaitable[_Result]]]:
        """Make a function hit first, or raise RateLimited; `key` and `cost` may be computed from its arguments."""
        return decorators.limited_async(self.hit, key, cost)

    async def close(self) -> None:
        """Give back the unused units of leases, and close the store if this limiter made it."""
        if self._leases is not None:
            await flows.run_async(self._leases.end_all())
        if self._owns_store:
            await flows.result(self._store_layer.close())

    async def __aenter__(self) -> AsyncLimiter:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def _wait(self, key: Keys, demands: list[Demand], timeout: float | None) -> tuple[Decision, Outcome | None]:
        if not self._enabled:
            return self._taken(key, demands, None), None
        try:
            flow = self._waiting.wait(demands, timeout, queues.AsyncWaiter(self.timer))
            decision, outcome = await flows.run_async(flow)
        except RateLimited as error:
            self._tell(key, error.decision)
            raise
        return decision if self._on_decision is None else self._tell(key, decision), outcome

    async def _execute(self, operation: Operation, key: Keys, cost: Costs = 1) -> Decision:
        demands = self._ruleset.demands(operation, key, cost)
        if not self._enabled:
            return self._switched_off(demands)
        outcome = self._layer.execute(demands)
        if not isinstance(outcome, Outcome):
            outcome = await outcome
        if operation in _FREES:
            self._queues.nudge(demands)
        return self._ruleset.decision(demands, outcome)
