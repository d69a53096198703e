"""Limiter and AsyncLimiter: what an application holds. One shared core decides; the two shells differ in the await."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from fractions import Fraction
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from ratekeeper import arguments, lines, stores, waiting
from ratekeeper.algorithms import Rule
from ratekeeper.clock import Clock
from ratekeeper.core import Core, Costs, Hook, Keys
from ratekeeper.decision import Decision
from ratekeeper.errors import RateLimited, StoreUnavailable
from ratekeeper.rates import show
from ratekeeper.resilience import Guard, OnError
from ratekeeper.rules import Rules, named, share_of
from ratekeeper.stores import AsyncRedisStore, MemoryStore, RedisStore, Store
from ratekeeper.stores.port import Binding, Demand, Inspection, Operation

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


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
        local_share: float | Fraction = 1,
        lease: float | None = None,
    ) -> None:
        arguments.check_options(clock, prefix, on_error, deadline, on_decision)
        bindings = tuple(Binding(name, rule, (prefix, rule.algorithm, name)) for name, rule in named(rules).items())
        share = arguments.check_share(local_share)
        lease = arguments.check_lease(lease, [binding.rule for binding in bindings])
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
        shares = {binding: binding._replace(rule=share_of(binding.rule, share)) for binding in bindings}
        guard = None if isinstance(store, MemoryStore) else Guard(store, shares, on_error, deadline, clock)
        self._core = Core(bindings, store, clock, enabled=enabled, on_decision=on_decision, guard=guard, lease=lease)
        weakref.finalize(self._core, store.unbind, bindings).atexit = False
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

    `clock` returns integer nanoseconds, in place of the store's own clock. `prefix` begins every stored key: limiters
    with different ones never share usage. `on_error` says what a decision is while the store cannot answer ("local",
    "open", "closed", "raise"), and `deadline` bounds a decision, in seconds. `enabled=False` admits everything and does
    not touch the store. `on_decision(key, decision)` hears of every hit and wait; what it raises is logged.

    On Redis: `local_share` is the part of the limits, rounded up, that this process enforces with `on_error="local"`,
    such as 1/8 for one of eight. `lease`, in seconds, lets it take a slice of a hot key ahead and spend it unasked.

    A limiter that made its store from a URL closes it: with `close()`, or at the end of a `with` block.
    """

    _remote = RedisStore

    def _set_up(self) -> None:
        at_once = self._core.at_once
        if at_once is not None and type(self).hit is Limiter.hit:
            self.hit = at_once  # type: ignore[method-assign]  # a tenth of a decision's time is the call around it

    def hit(self, key: Keys, cost: Costs = 1) -> Decision:
        """Consume `cost` if the rules admit it, whole or not at all."""
        core = self._core
        decision = self._execute("hit", core.demands(key, cost))
        return decision if core.on_decision is None else core.tell(key, decision)

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
        at_once = waiting.unhindered(core, key, cost, demands)
        if at_once is not None:
            return at_once
        core.give_back_leases(demands)
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
        """Give back what leases have left, and close the store if this limiter made it."""
        core = self._core
        core.give_back_leases()
        if self._owns_store:
            core.store.close()

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
        return core.conclude(demands, core.decide(operation, demands))


class AsyncLimiter(_Shell):
    """A `Limiter` whose methods are awaited."""

    _remote = AsyncRedisStore

    async def hit(self, key: Keys, cost: Costs = 1) -> Decision:
        """Consume `cost` if the rules admit it, whole or not at all."""
        core = self._core
        if core.at_once is not None:
            return core.at_once(key, cost)
        demands = core.demands(key, cost)
        if core.asked is not None and core.enabled:  # as `_execute` does, without the coroutines around it
            try:
                outcome = core.recall(demands) or await core.asked.ask("hit", demands)
            except StoreUnavailable as error:
                outcome = core.asked.instead(error, "hit", demands)
            decision = core.conclude(demands, outcome)
        else:
            decision = await self._execute("hit", demands)
        return decision if core.on_decision is None else core.tell(key, decision)

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
        at_once = waiting.unhindered(core, key, cost, demands)
        if at_once is not None:
            return at_once
        await core.give_back_leases_async(demands)
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
        """Give back what leases have left, and close the store if this limiter made it."""
        core = self._core
        await core.give_back_leases_async()
        if self._owns_store:
            await core.answer(core.store.close())

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
        result = core.decide(operation, demands)
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
