"""Limiter and AsyncLimiter: what an application holds. One shared core decides; the two shells differ in the await."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from ratekeeper import arguments, keys, lines, stores, waiting
from ratekeeper.algorithms import Rule
from ratekeeper.clock import Clock, SteeredClock, stopwatch
from ratekeeper.decision import Decision, combine, from_answer
from ratekeeper.errors import InvalidRule, RateLimited
from ratekeeper.rates import show
from ratekeeper.resilience import Guard, OnError
from ratekeeper.rules import Rules, named
from ratekeeper.stores import AsyncRedisStore, MemoryStore, RedisStore, Store
from ratekeeper.stores.port import Binding, Demand, Inspection, Key, Operation, Outcome

Keys = Key | Mapping[str, Key]
Costs = int | Mapping[str, int]
Hook = Callable[[Keys, Decision], object]
_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

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
        self.execute: Callable[..., Any]
        self.inspect: Callable[[Sequence[Demand]], Any] = store.inspect
        if isinstance(store, MemoryStore):
            self.execute, self.snapshot = store.execute, store.snapshot
            # One rule, nothing switched off and nobody to tell: the store's own shortest way to a decision.
            if len(bindings) == 1 and enabled and on_decision is None:
                self.at_once = store.hitter(bindings[0], self.hit_in_memory)
        elif guard is not None:
            self.is_awaited = isinstance(store, AsyncRedisStore)
            self.execute = guard.execute_async if self.is_awaited else guard.execute
            self.snapshot = guard.snapshot

    def timer_at(self, now_us: int) -> int:
        """Return what the timer showed when the store's clock showed this, which was just now."""
        return self.timer() if self.clock is None else now_us * 1000

    def demands(self, key: Keys, cost: Costs = 1) -> list[Demand]:
        """Check a call's keys and costs, and pair them with the rules."""
        if len(self.bindings) == 1 and type(key) is str and type(cost) is int and cost > 0:  # nearly always
            return [Demand(self.bindings[0], keys.check(key), cost)]
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


class _Shell:
    """The constructor of both limiters."""

    _remote: type[RedisStore | AsyncRedisStore]

    def __init__(
        self,
        rules: Rules,
        store: str | Store = "memory://",
        *,
        clock: Clock | None = None,
        prefix: str = "ratekeeper",
        on_error: OnError = "local",
        deadline: float = 0.1,
        enabled: bool = True,
        on_decision: Hook | None = None,
    ) -> None:
        arguments.check_options(clock, prefix, on_error, deadline, on_decision)
        bindings = tuple(Binding(name, rule, (prefix, rule.algorithm, name)) for name, rule in named(rules).items())
        self._owns_store = isinstance(store, str)
        if isinstance(store, str):
            store = stores.from_url(store, for_asyncio=self._remote.for_asyncio)
        if not isinstance(store, MemoryStore | self._remote):
            raise TypeError(
                f"store must be a URL such as 'memory://', a MemoryStore or, for {type(self).__name__}, "
                f"{self._remote.__name__}, not {show(store)}"
            )
        for binding in bindings:
            store.bind(binding, clock)
        guard = None if isinstance(store, MemoryStore) else Guard(store, bindings, on_error, deadline, clock)
        self._core = Core(bindings, store, clock, enabled=enabled, on_decision=on_decision, guard=guard)
        self._set_up()

    def _set_up(self) -> None:
        """Finish the construction."""

    @property
    def rules(self) -> dict[str, Rule]:
        """The rules, by name."""
        return {binding.name: binding.rule for binding in self._core.bindings}

    @property
    def store(self) -> Store:
        """The store, to share it with another limiter or to read its counters."""
        return self._core.store

    def __repr__(self) -> str:
        rules = {name: rule.text for name, rule in self.rules.items()}
        return f"{type(self).__name__}({rules}, store={self.store})"


class Limiter(_Shell):
    """Decides who may go on.

        >>> limiter = Limiter("fixed-window 2/minute")
        >>> [limiter.hit("user:42").allowed for _ in range(3)]
        [True, True, False]

    `rules` is one rule, a text, or a mapping of names to these; `store` is a URL or a store object. `key` is a str,
    bytes or int or a tuple of these, or a mapping with one for each rule; `cost` is an int, or a mapping as well.
    """

    _remote = RedisStore

    def _set_up(self) -> None:
        at_once = self._core.at_once
        if at_once is not None and type(self).hit is Limiter.hit:
            self.hit = at_once  # type: ignore[method-assign]  # a tenth of a decision's time is the call around it

    def hit(self, key: Keys, cost: Costs = 1) -> Decision:
        """Consume `cost` if the rules admit it, whole or not at all."""
        core = self._core
        return core.tell(key, self._execute("hit", core.demands(key, cost)))

    def peek(self, key: Keys, cost: Costs = 1) -> Decision:
        """Say whether `cost` would be admitted now, and how the key stands; changes nothing, creates nothing."""
        return self._execute("peek", self._core.demands(key, cost))

    def charge(self, key: Keys, cost: Costs = 1) -> Decision:
        """Consume without asking, when the real cost was higher than estimated; returns how the key stands then."""
        return self._execute("charge", self._core.demands(key, cost))

    def refund(self, key: Keys, cost: Costs = 1) -> Decision:
        """Give back, at most what is in use now; returns how the key stands then."""
        demands = self._core.demands(key, cost)
        decision = self._execute("refund", demands)
        self._core.lines.nudge(demands)
        return decision

    def reset(self, key: Keys) -> None:
        """Forget the key."""
        demands = self._core.demands(key)
        self._execute("reset", demands)
        self._core.lines.nudge(demands)

    def inspect(self, key: Keys) -> dict[str, Inspection]:
        """Show, for each rule by name, how the key is stored: the state in words, the raw value, TTL and bytes."""
        demands = self._core.demands(key)
        return _by_rule(demands, self._core.inspect(demands))

    def wait(self, key: Keys, cost: Costs = 1, timeout: float | None = None) -> Decision:
        """Sleep until admitted, through a shaping delay too; RateLimited at once when `timeout` cannot be met."""
        core = self._core
        demands = core.demands(key, cost)
        timeout = waiting.check_timeout(timeout)
        if not core.enabled:
            return core.tell(key, core.switched_off(demands))
        waiter = lines.Waiter()
        with core.telling_refusal(key):
            decision = waiting.run(core, waiting.wait(core, demands, timeout, waiter), waiter)
        return core.tell(key, decision)

    @contextmanager
    def slot(self, key: Keys, cost: Costs = 1, timeout: float | None = None) -> Iterator[Decision]:
        """Wait, as a context manager."""
        yield self.wait(key, cost, timeout)

    def limited(
        self, key: Keys | Callable[..., Keys], cost: Costs | Callable[..., Costs] = 1
    ) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result]]:
        """Make a function hit first and raise RateLimited when denied; `key` and `cost` may come of its arguments."""

        def decorate(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
            if inspect.iscoroutinefunction(function):
                raise TypeError(f"{_title(function)} is a coroutine function; limit it with an AsyncLimiter")

            @functools.wraps(function)
            def call(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
                _admit(self.hit(_made(key, args, kwargs), _made(cost, args, kwargs)))
                return function(*args, **kwargs)

            return call

        return decorate

    def close(self) -> None:
        """Close the store, if this limiter made it."""
        if self._owns_store:
            self._core.store.close()

    def __enter__(self) -> Limiter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _execute(self, operation: Operation, demands: Sequence[Demand]) -> Decision:
        core = self._core
        if not core.enabled:
            return core.switched_off(demands)
        return core.conclude(demands, core.execute(operation, demands))


class AsyncLimiter(_Shell):
    """A `Limiter` whose methods are awaited."""

    _remote = AsyncRedisStore

    async def hit(self, key: Keys, cost: Costs = 1) -> Decision:
        """Consume `cost` if the rules admit it, whole or not at all."""
        core = self._core
        if core.at_once is not None:
            return core.at_once(key, cost)
        return core.tell(key, await self._execute("hit", core.demands(key, cost)))

    async def peek(self, key: Keys, cost: Costs = 1) -> Decision:
        """Say whether `cost` would be admitted now, and how the key stands; changes nothing, creates nothing."""
        return await self._execute("peek", self._core.demands(key, cost))

    async def charge(self, key: Keys, cost: Costs = 1) -> Decision:
        """Consume without asking, when the real cost was higher than estimated; returns how the key stands then."""
        return await self._execute("charge", self._core.demands(key, cost))

    async def refund(self, key: Keys, cost: Costs = 1) -> Decision:
        """Give back, at most what is in use now; returns how the key stands then."""
        demands = self._core.demands(key, cost)
        decision = await self._execute("refund", demands)
        self._core.lines.nudge(demands)
        return decision

    async def reset(self, key: Keys) -> None:
        """Forget the key."""
        demands = self._core.demands(key)
        await self._execute("reset", demands)
        self._core.lines.nudge(demands)

    async def inspect(self, key: Keys) -> dict[str, Inspection]:
        """Show, for each rule by name, how the key is stored: the state in words, the raw value, TTL and bytes."""
        demands = self._core.demands(key)
        return _by_rule(demands, await self._core.answer(self._core.inspect(demands)))

    async def wait(self, key: Keys, cost: Costs = 1, timeout: float | None = None) -> Decision:
        """Sleep until admitted, through a shaping delay too; RateLimited at once when `timeout` cannot be met."""
        core = self._core
        demands = core.demands(key, cost)
        timeout = waiting.check_timeout(timeout)
        if not core.enabled:
            return core.tell(key, core.switched_off(demands))
        waiter = lines.AsyncWaiter()
        with core.telling_refusal(key):
            decision = await waiting.run_async(core, waiting.wait(core, demands, timeout, waiter), waiter)
        return core.tell(key, decision)

    @asynccontextmanager
    async def slot(self, key: Keys, cost: Costs = 1, timeout: float | None = None) -> AsyncIterator[Decision]:
        """Wait, as a context manager."""
        yield await self.wait(key, cost, timeout)

    def limited(
        self, key: Keys | Callable[..., Keys], cost: Costs | Callable[..., Costs] = 1
    ) -> Callable[[Callable[_Parameters, Awaitable[_Result]]], Callable[_Parameters, Awaitable[_Result]]]:
        """Make a function hit first and raise RateLimited when denied; `key` and `cost` may come of its arguments."""

        def decorate(function: Callable[_Parameters, Awaitable[_Result]]) -> Callable[_Parameters, Awaitable[_Result]]:
            if not inspect.iscoroutinefunction(function):
                raise TypeError(f"{_title(function)} is not a coroutine function; limit it with a Limiter")

            @functools.wraps(function)
            async def call(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
                _admit(await self.hit(_made(key, args, kwargs), _made(cost, args, kwargs)))
                return await function(*args, **kwargs)

            return call

        return decorate

    async def close(self) -> None:
        """Close the store, if this limiter made it."""
        if self._owns_store:
            await self._core.answer(self._core.store.close())

    async def __aenter__(self) -> AsyncLimiter:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _execute(self, operation: Operation, demands: Sequence[Demand]) -> Decision:
        core = self._core
        if not core.enabled:
            return core.switched_off(demands)
        result = core.execute(operation, demands)
        return core.conclude(demands, await result if core.is_awaited else result)


def _by_rule(demands: Sequence[Demand], inspections: Sequence[Inspection]) -> dict[str, Inspection]:
    return {demand.binding.name: seen for demand, seen in zip(demands, inspections, strict=True)}


def _made(value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return value(*args, **kwargs) if callable(value) else value


def _admit(decision: Decision) -> None:
    if not decision.allowed:
        raise RateLimited(decision)


def _title(function: Any) -> str:
    return getattr(function, "__qualname__", None) or show(function)
