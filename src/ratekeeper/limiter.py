"""Limiter and AsyncLimiter: what applications use. They differ only in the await; `base_limiter` has the rest.

A decision goes down one stack of layers and comes up again: the limiter checks the arguments and makes the `Decision`;
leases (with `lease`) spend a slice taken ahead; the fallback (for stores that may be away) keeps the deadline; the
store decides.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import ParamSpec, TypeVar, cast

from ratekeeper import decorators, flows, queues, waiting
from ratekeeper.base_limiter import BaseLimiter
from ratekeeper.clock import stopwatch
from ratekeeper.decision import Decision
from ratekeeper.errors import RateLimited
from ratekeeper.reservations import AsyncReservation, Reservation
from ratekeeper.ruleset import Costs, Keys
from ratekeeper.stores.protocol import Demand, Inspection, Operation, Outcome

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_FREES = ("refund", "reset")  # operations that may let a waiter be admitted


class Limiter(BaseLimiter):
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

    With `shadow=True`, the rules are tried out: they decide and count, and deny nothing. With a list of names, those
    rules are. What they would have denied is in the decision's `shadow_denied`, counted in `notices`, and sometimes
    logged.

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
        quick_hit = self._quick_hit  # Python 3.11 takes longer to call an attribute than a variable
        decision = quick_hit(key, cost)
        if decision is not None:
            return decision
        began_ns = stopwatch() if self._tells else 0
        demands = self._ruleset.demands("hit", key, cost)
        if not self._enabled:
            return self._taken(key, demands, None, began_ns)
        decision = self._ruleset.decision(demands, cast("Outcome", self._layer.execute(demands)))
        return self._tell(key, demands, decision, began_ns) if self._tells else decision

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

    def reset_all(self) -> None:
        """Forget every key of these rules, for tests and operators; StoreUnavailable if the store does not answer.

        It takes time: on Redis it goes through all keys of the database, and in a file through all keys of these rules.
        """
        flows.run(self._reset_all())

    def take(self, key: Keys, cost: Costs = 1) -> Reservation:
        """Hit, and return a reservation that can be given back or corrected to the real cost."""
        began_ns = stopwatch()
        demands = self._ruleset.demands("hit", key, cost)
        outcome = cast("Outcome", self._layer.execute(demands)) if self._enabled else None
        decision = self._taken(key, demands, outcome, began_ns)
        return Reservation(self._ruleset, self._layer, self._queues, key, decision, demands, outcome)

    def inspect(self, key: Keys) -> dict[str, Inspection]:
        """Show how each rule, by name, stores the key: the state in words, the raw value, TTL and bytes."""
        demands = self._ruleset.demands("peek", key)
        return self._ruleset.inspections(demands, self._store_layer.inspect(demands))

    def wait(self, key: Keys, cost: Costs = 1, timeout: float | None = None) -> Decision:
        """Sleep until admitted and through a shaping delay; raise RateLimited at once if `timeout` cannot be met."""
        timeout = waiting.check_timeout(timeout)
        if self._waiting.is_free:
            quick_hit = self._quick_wait
            decision = quick_hit(key, cost)
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
        self,
        key: Keys | Callable[..., Keys],
        cost: Costs | Callable[..., Costs] = 1,
        timeout: float | None = 0,
    ) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result]]:
        """Make a function hit first, or raise RateLimited; `key` and `cost` may be computed from its arguments.

        With a `timeout` other than 0, it waits first, as `wait` does; None waits as long as it takes.
        """
        timeout = waiting.check_timeout(timeout)
        return decorators.limited(self.hit if timeout == 0 else partial(self.wait, timeout=timeout), key, cost)

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
        began_ns = stopwatch()
        if not self._enabled:
            return self._taken(key, demands, None, began_ns), None
        try:
            flow = self._waiting.wait(demands, timeout, queues.Waiter(self._waiting.timer))
            decision, outcome = flows.run(flow)
        except RateLimited as error:
            self._tell(key, demands, error.decision, began_ns, "wait")
            raise
        return self._tell(key, demands, decision, began_ns, "wait") if self._tells else decision, outcome

    def _execute(self, operation: Operation, key: Keys, cost: Costs = 1) -> Decision:
        demands = self._ruleset.demands(operation, key, cost)
        if not self._enabled:
            return self._switched_off(demands)
        outcome = self._layer.execute(demands)
        if operation in _FREES:
            self._queues.nudge(demands)
        return self._ruleset.decision(demands, cast("Outcome", outcome))


class AsyncLimiter(BaseLimiter):
    """A `Limiter` whose methods are awaited."""

    _for_asyncio = True
    _run_flow = staticmethod(flows.run_async)

    async def hit(self, key: Keys, cost: Costs = 1) -> Decision:
        """Consume `cost` if the rules admit it, whole or not at all."""
        quick_hit = self._quick_hit
        decision = quick_hit(key, cost)
        if decision is not None:
            return decision
        began_ns = stopwatch() if self._tells else 0
        demands = self._ruleset.demands("hit", key, cost)
        if not self._enabled:
            return self._taken(key, demands, None, began_ns)
        outcome = self._layer.execute(demands)
        if not isinstance(outcome, Outcome):
            outcome = await outcome
        decision = self._ruleset.decision(demands, outcome)
        return self._tell(key, demands, decision, began_ns) if self._tells else decision

    def start_hit(self, key: Keys, cost: Costs = 1) -> Decision | Awaitable[Decision]:
        """Hit, as `hit` does, without waiting: return the decision if the store makes it at once, or an awaitable.

        Many hits can be started in a row; a store that is asked over the network then gets them together.
        """
        quick_hit = self._quick_hit
        decision = quick_hit(key, cost)
        if decision is not None:
            return decision
        began_ns = stopwatch() if self._tells else 0
        demands = self._ruleset.demands("hit", key, cost)
        if not self._enabled:
            return self._taken(key, demands, None, began_ns)
        outcome = self._layer.execute(demands)
        if not isinstance(outcome, Outcome):
            return self._ended(key, demands, outcome, began_ns)
        return self._taken(key, demands, outcome, began_ns)

    async def peek(self, key: Keys, cost: Costs = 1) -> Decision:
        """Return whether `cost` would be admitted now, and the state of the key; change and create nothing."""
        return await self.decide("peek", key, self.demands("peek", key, cost))

    async def charge(self, key: Keys, cost: Costs = 1) -> Decision:
        """Consume unconditionally, if the real cost was higher than estimated; return the key's state afterwards."""
        return await self.decide("charge", key, self.demands("charge", key, cost))

    async def refund(self, key: Keys, cost: Costs = 1) -> Decision:
        """Give back at most the current usage; return the key's state afterwards."""
        return await self.decide("refund", key, self.demands("refund", key, cost))

    async def reset(self, key: Keys) -> None:
        """Forget the key."""
        await self.decide("reset", key, self.demands("reset", key))

    async def reset_all(self) -> None:
        """Forget every key of these rules, as `Limiter.reset_all` does."""
        await flows.run_async(self._reset_all())

    async def take(self, key: Keys, cost: Costs = 1) -> AsyncReservation:
        """Hit, and return a reservation that can be given back or corrected to the real cost."""
        began_ns = stopwatch()
        demands = self._ruleset.demands("hit", key, cost)
        outcome = await flows.result(self._layer.execute(demands)) if self._enabled else None
        decision = self._taken(key, demands, outcome, began_ns)
        return AsyncReservation(self._ruleset, self._layer, self._queues, key, decision, demands, outcome)

    async def inspect(self, key: Keys) -> dict[str, Inspection]:
        """Show how each rule, by name, stores the key: the state in words, the raw value, TTL and bytes."""
        demands = self._ruleset.demands("peek", key)
        return self._ruleset.inspections(demands, await flows.result(self._store_layer.inspect(demands)))

    async def wait(self, key: Keys, cost: Costs = 1, timeout: float | None = None) -> Decision:
        """Sleep until admitted and through a shaping delay; raise RateLimited at once if `timeout` cannot be met."""
        timeout = waiting.check_timeout(timeout)
        if self._waiting.is_free:
            quick_hit = self._quick_wait
            decision = quick_hit(key, cost)
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
        self,
        key: Keys | Callable[..., Keys],
        cost: Costs | Callable[..., Costs] = 1,
        timeout: float | None = 0,
    ) -> Callable[[Callable[_Parameters, Awaitable[_Result]]], Callable[_Parameters, Awaitable[_Result]]]:
        """Make a coroutine function hit first, as `Limiter.limited` does."""
        timeout = waiting.check_timeout(timeout)
        return decorators.limited_async(self.hit if timeout == 0 else partial(self.wait, timeout=timeout), key, cost)

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

    def demands(self, operation: Operation, key: Keys, cost: Costs = 1) -> list[Demand]:
        """Return what an operation asks of the store, by the rules that are in force now; `decide` does it."""
        return self._ruleset.demands(operation, key, cost)

    async def decide(self, operation: Operation, key: Keys, demands: list[Demand]) -> Decision:
        """Do an operation on the store, as its `demands` say; return the decision, or the key's state afterwards."""
        began_ns = stopwatch() if self._tells else 0
        tells = self._tells and operation == "hit"
        if not self._enabled:
            return self._taken(key, demands, None, began_ns) if operation == "hit" else self._switched_off(demands)
        outcome = self._layer.execute(demands)
        if not isinstance(outcome, Outcome):
            outcome = await outcome
        if operation in _FREES:
            self._queues.nudge(demands)
        decision = self._ruleset.decision(demands, outcome)
        return self._tell(key, demands, decision, began_ns) if tells else decision

    async def _ended(self, key: Keys, demands: list[Demand], coming: Awaitable[Outcome], began_ns: int) -> Decision:
        return self._taken(key, demands, await coming, began_ns)

    async def _wait(self, key: Keys, demands: list[Demand], timeout: float | None) -> tuple[Decision, Outcome | None]:
        began_ns = stopwatch()
        if not self._enabled:
            return self._taken(key, demands, None, began_ns), None
        try:
            flow = self._waiting.wait(demands, timeout, queues.AsyncWaiter(self._waiting.timer))
            decision, outcome = await flows.run_async(flow)
        except RateLimited as error:
            self._tell(key, demands, error.decision, began_ns, "wait")
            raise
        return self._tell(key, demands, decision, began_ns, "wait") if self._tells else decision, outcome
