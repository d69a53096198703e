"""What both limiters share: the rules, the store, and everything that needs no waiting."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from ratekeeper import arguments, keys, lines
from ratekeeper.clock import Clock, SteeredClock, stopwatch
from ratekeeper.decision import Decision, combine, from_answer
from ratekeeper.errors import InvalidRule, RateLimited, StoreUnavailable
from ratekeeper.leases import Leases
from ratekeeper.rates import show
from ratekeeper.resilience import Guard
from ratekeeper.stores import AsyncRedisStore, MemoryStore, Store
from ratekeeper.stores.port import Binding, Demand, Key, Outcome, Recall, recall_nothing

Keys = Key | Mapping[str, Key]
Costs = int | Mapping[str, int]
Hook = Callable[[Keys, Decision], object]
_log = logging.getLogger("ratekeeper")


class Core:
    """What both limiters share: the rules, the store, and everything that needs no waiting."""

    def __init__(
        self,
        bindings: tuple[Binding, ...],
        store: Store,
        clock: Clock | None,
        *,
        enabled: bool,
        on_decision: Hook | None,
        guard: Guard | None,
        lease: float | None = None,
    ) -> None:
        self.bindings = bindings
        self.store = store
        self.clock = clock
        self.enabled = enabled
        self.on_decision = on_decision
        self.timer = clock or stopwatch  # how long to wait is not a matter of the wall clock, which may step
        self.steered = clock if isinstance(clock, SteeredClock) else None
        self.shapes = any(binding.rule.shapes for binding in bindings)
        self.lines = lines.lines_of(store)
        self.at_once: Callable[..., Decision] | None = None
        self.is_awaited = False
        self.asked: Guard | None = None  # who is awaited, without leases: `hit` asks without the coroutines around it
        self.leases: Leases | None = None
        self.recall: Recall = recall_nothing  # finds denials that `decide` does not look for
        self.execute: Callable[..., Any]
        self.snapshot: Callable[[Sequence[Demand]], Any]
        self.inspect: Callable[[Sequence[Demand]], Any] = store.inspect
        if isinstance(store, MemoryStore):
            self.execute, self.snapshot = store.execute, store.snapshot
            # One rule, nothing switched off and nobody to tell: the store's own shortest way to a decision.
            if len(bindings) == 1 and enabled and on_decision is None:
                self.at_once = store.hitter(bindings[0], self.hit_in_memory)
        elif guard is not None:
            self.is_awaited = isinstance(store, AsyncRedisStore)
            self.execute = guard.execute_async if self.is_awaited else guard.execute
            self.snapshot = guard.snapshot_async if self.is_awaited else guard.snapshot
        self.decide: Callable[..., Any] = self.execute  # for whoever does not wait
        if guard is not None and self.is_awaited and lease is None:  # otherwise what was leased comes first
            self.recall, self.decide, self.asked = guard.recall, guard.ask_async, guard
        if lease is not None and guard is not None:
            self.leases = Leases(self.execute, guard.recall, lease, guard.deadline, clock)
            self.decide = self.leases.execute_async if self.is_awaited else self.leases.execute

    def give_back_leases(self, demands: Sequence[Demand] = ()) -> None:
        """Give back what leases have left: those of these keys, or all."""
        for call in self._lease_calls(demands):
            with suppress(StoreUnavailable):  # then it expires
                self.execute(*call)

    async def give_back_leases_async(self, demands: Sequence[Demand] = ()) -> None:
        """Give back what leases have left: those of these keys, or all."""
        for call in self._lease_calls(demands):
            with suppress(StoreUnavailable):
                await self.execute(*call)

    def _lease_calls(self, demands: Sequence[Demand]) -> list[Any]:
        if self.leases is None:
            return []
        return (
            [call for demand in demands for call in self.leases.backs(demand.key)] if demands else self.leases.backs()
        )

    def timer_at(self, now_us: int) -> int:
        """Return what the timer showed when the store's clock showed this, which was just now."""
        return self.timer() if self.clock is None else now_us * 1000

    def demands(self, key: Keys, cost: Costs = 1) -> list[Demand]:
        """Check a call's keys and costs, and pair them with the rules."""
        if len(self.bindings) == 1 and type(key) is str and type(cost) is int and cost > 0:  # nearly always
            return [tuple.__new__(Demand, (self.bindings[0], keys.check(key), cost))]  # in a third of the usual time
        names = [binding.name for binding in self.bindings]
        key_of = arguments.by_name("key", key, names, keys.check)
        cost_of = arguments.by_name("cost", cost, names, arguments.check_cost)
        if isinstance(key, Mapping) and len(key_of) < len(names):
            missing = next(name for name in names if name not in key_of)
            raise InvalidRule(f"key {show(key)} has none for rule {missing!r}; a mapping of keys names every rule")
        demands = [
            Demand(binding, key_of[binding.name], cost_of.get(binding.name, 1))
            for binding in self.bindings
            if cost_of.get(binding.name, 1)
        ]
        if not demands:
            raise InvalidRule(f"cost {show(cost)} leaves every rule out")
        return demands

    def conclude(self, demands: Sequence[Demand], outcome: Outcome) -> Decision:
        """Make one decision of the answers to a request's demands."""
        if len(self.bindings) == 1:
            binding = self.bindings[0]
            decision = from_answer(binding.name, binding.rule.limit, outcome.answers[0])
        else:
            decision = combine(
                [
                    from_answer(demand.binding.name, demand.binding.rule.limit, answer)
                    for demand, answer in zip(demands, outcome.answers, strict=True)
                ]
            )
        return decision._replace(degraded=True) if outcome.degraded else decision

    def switched_off(self, demands: Sequence[Demand]) -> Decision:
        """Admit everything, as on untouched keys."""
        return self.conclude(demands, Outcome(0, [(True, demand.binding.rule.limit, 0, 0, 0) for demand in demands]))

    def tell(self, key: Keys, decision: Decision) -> Decision:
        """Pass a decision to the hook, whose trouble is not the caller's."""
        if self.on_decision is not None:
            try:
                self.on_decision(key, decision)
            except Exception:  # noqa: BLE001
                _log.exception("on_decision raised; the decision stands")
        return decision

    @contextmanager
    def telling_refusal(self, key: Keys) -> Iterator[None]:
        """Tell the hook of a wait that ends in RateLimited."""
        try:
            yield
        except RateLimited as error:
            self.tell(key, error.decision)
            raise

    def hit_in_memory(self, key: Keys, cost: Costs) -> Decision:
        demands = self.demands(key, cost)
        return self.conclude(demands, self.execute("hit", demands))

    async def answer(self, result: Any) -> Any:
        """Await what a store returned, if it is to be awaited."""
        return await result if inspect.isawaitable(result) else result
