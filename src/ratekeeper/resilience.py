"""What happens while the store is away: every decision comes within its deadline, by `on_error`."""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Sequence
from typing import Any, Literal

from ratekeeper.clock import Clock, stopwatch
from ratekeeper.decision import Answer
from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores import AsyncRedisStore, RedisStore
from ratekeeper.stores.breaker import PROBE_US
from ratekeeper.stores.port import Binding, Charge, Demand, Operation, Outcome

OnError = Literal["local", "open", "closed", "raise"]


class Guard:
    """Stands between one limiter and a store that may be away."""

    def __init__(
        self,
        store: RedisStore | AsyncRedisStore,
        shares: dict[Binding, Binding],
        on_error: OnError,
        deadline: float,
        clock: Clock | None,
    ) -> None:
        self._store: Any = store
        store.expect_calls_of(deadline)
        self.recall = store.recall
        self._on_error = on_error
        self.deadline = deadline
        self._local = store.local
        self._shares = {id(binding): share for binding, share in shares.items()}  # what this process enforces
        for binding in self._shares.values():
            self._local.bind(binding, clock)
        weakref.finalize(self, self._local.unbind, tuple(self._shares.values())).atexit = False

    def execute(
        self,
        operation: Operation,
        demands: Sequence[Demand],
        charge: Charge | None = None,
        seconds: float | None = None,
    ) -> Outcome:
        """Let the store decide, or what stands in for it."""
        known = self._known(operation, demands, charge)
        if known is not None:
            return known
        try:
            ends_ns = stopwatch() + int((seconds or self.deadline) * 1e9)
            return self._store.execute(operation, demands, charge, ends_ns)  # type: ignore[no-any-return]
        except StoreUnavailable as error:
            return self.instead(error, operation, demands, charge)

    async def execute_async(
        self,
        operation: Operation,
        demands: Sequence[Demand],
        charge: Charge | None = None,
        seconds: float | None = None,
    ) -> Outcome:
        """Let the store decide, or what stands in for it."""
        known = self._known(operation, demands, charge)
        return known or await self.ask_async(operation, demands, charge, seconds)

    async def ask_async(
        self,
        operation: Operation,
        demands: Sequence[Demand],
        charge: Charge | None = None,
        seconds: float | None = None,
    ) -> Outcome:
        """Let the store decide, or what stands in for it, whatever is known."""
        try:
            return await self.ask(operation, demands, charge, seconds)
        except StoreUnavailable as error:
            return self.instead(error, operation, demands, charge)

    def ask(
        self,
        operation: Operation,
        demands: Sequence[Demand],
        charge: Charge | None = None,
        seconds: float | None = None,
    ) -> Awaitable[Outcome]:
        """Let the store decide, whatever is known; StoreUnavailable when it cannot."""
        return self._store.execute(operation, demands, charge, seconds or self.deadline)  # type: ignore[no-any-return]

    def instead(
        self, error: StoreUnavailable, operation: Operation, demands: Sequence[Demand], charge: Charge | None = None
    ) -> Outcome:
        """Decide without the store, which raised this, or raise it again."""
        self._store.doubt(operation, demands)
        if self._on_error == "raise":
            raise error
        return self._stand_in(operation, demands, charge)

    def snapshot(self, demands: Sequence[Demand]) -> tuple[int, list[Any]]:
        """Return the time and the states that a forecast starts from."""
        try:
            ends_ns = stopwatch() + int(self.deadline * 1e9)
            return self._store.snapshot(demands, ends_ns)  # type: ignore[no-any-return]
        except StoreUnavailable:
            if self._on_error == "raise":
                raise
            return self._local.snapshot(demands)

    async def snapshot_async(self, demands: Sequence[Demand]) -> tuple[int, list[Any]]:
        """Return the time and the states that a forecast starts from."""
        try:
            return await self._store.snapshot(demands, self.deadline)  # type: ignore[no-any-return]
        except StoreUnavailable:
            if self._on_error == "raise":
                raise
            return self._local.snapshot(demands)

    def _known(self, operation: Operation, demands: Sequence[Demand], charge: Charge | None) -> Outcome | None:
        """Return what needs no server: a denial that still holds, or a give-back of what no server was charged."""
        if operation == "hit":
            return self.recall(demands)
        return self._stand_in(operation, demands, charge) if charge is not None and charge.degraded else None

    def _stand_in(self, operation: Operation, demands: Sequence[Demand], charge: Charge | None) -> Outcome:
        if operation == "give_back" and charge is not None and not charge.degraded:
            operation = "peek"  # it was taken from Redis, where it expires
        if self._on_error != "local":
            operation = "peek"
        shares = [demand._replace(binding=self._shares[id(demand.binding)]) for demand in demands]
        outcome = self._local.execute(operation, shares, charge)
        if self._on_error == "local":
            answers = [_at_least_later(demand, answer) for demand, answer in zip(demands, outcome.answers, strict=True)]
            outcome = outcome._replace(answers=answers)
        elif self._on_error == "open":
            outcome = Outcome(outcome.now_us, [(True, demand.binding.rule.limit, 0, 0, 0) for demand in demands])
        elif self._on_error == "closed":
            outcome = Outcome(outcome.now_us, [(False, 0, PROBE_US, 0, 0) for _ in demands])
        return outcome._replace(degraded=True)


def _at_least_later(demand: Demand, answer: Answer) -> Answer:
    """What does not fit into this process's share may fit once the store is back."""
    if answer[2] is None and demand.cost <= demand.binding.rule.limit:
        return (*answer[:2], PROBE_US, *answer[3:])
    return answer
