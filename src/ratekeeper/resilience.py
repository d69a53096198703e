"""What happens while the store is away: every decision comes within its deadline, by `on_error`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from ratekeeper.clock import Clock, stopwatch
from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores import AsyncRedisStore, MemoryStore, RedisStore
from ratekeeper.stores.breaker import PROBE_US
from ratekeeper.stores.port import Binding, Charge, Demand, Operation, Outcome

OnError = Literal["local", "open", "closed", "raise"]


class Guard:
    """Stands between one limiter and a store that may be away."""

    def __init__(
        self,
        store: RedisStore | AsyncRedisStore,
        bindings: Sequence[Binding],
        on_error: OnError,
        deadline: float,
        clock: Clock | None,
    ) -> None:
        self._store: Any = store
        self._breaker = store.breaker
        self._on_error = on_error
        self._deadline = deadline
        self._local = MemoryStore()
        for binding in bindings:
            self._local.bind(binding, clock)

    def execute(self, operation: Operation, demands: Sequence[Demand], charge: Charge | None = None) -> Outcome:
        """Let the store decide, or what stands in for it."""
        if operation == "hit" and (denied := self._store.recall(demands)) is not None:
            return denied  # type: ignore[no-any-return]
        error = self._known_to_be_away(charge)
        if error is None:
            try:
                ends_ns = stopwatch() + int(self._deadline * 1e9)
                outcome: Outcome = self._store.execute(operation, demands, charge, ends_ns)
            except StoreUnavailable as caught:
                error = caught
            else:
                self._breaker.succeeded()
                return outcome
        return self._stand_in(error, operation, demands, charge)

    async def execute_async(
        self, operation: Operation, demands: Sequence[Demand], charge: Charge | None = None
    ) -> Outcome:
        """Let the store decide, or what stands in for it."""
        if operation == "hit" and (denied := self._store.recall(demands)) is not None:
            return denied  # type: ignore[no-any-return]
        error = self._known_to_be_away(charge)
        if error is None:
            try:
                outcome: Outcome = await self._store.execute(operation, demands, charge, self._deadline)
            except StoreUnavailable as caught:
                error = caught
            else:
                self._breaker.succeeded()
                return outcome
        return self._stand_in(error, operation, demands, charge)

    def snapshot(self, demands: Sequence[Demand]) -> tuple[int, list[Any]]:
        """Return the time and the states that a forecast starts from."""
        try:
            if not self._breaker.is_open:
                seen: tuple[int, list[Any]] = self._store.snapshot(demands, stopwatch() + int(self._deadline * 1e9))
                return seen
        except StoreUnavailable as error:
            self._note(error)
        return self._local.snapshot(demands)

    async def snapshot_async(self, demands: Sequence[Demand]) -> tuple[int, list[Any]]:
        """Return the time and the states that a forecast starts from."""
        try:
            if not self._breaker.is_open:
                seen: tuple[int, list[Any]] = await self._store.snapshot(demands, self._deadline)
                return seen
        except StoreUnavailable as error:
            self._note(error)
        return self._local.snapshot(demands)

    def _known_to_be_away(self, charge: Charge | None) -> StoreUnavailable | None:
        if charge is not None and charge.degraded:
            return StoreUnavailable("what is given back was not taken from Redis", away=False)
        return None if self._breaker.admits() else StoreUnavailable("Redis is away", away=False)

    def _note(self, error: StoreUnavailable) -> None:
        if error.away:
            self._breaker.failed(error)
        if self._on_error == "raise":
            raise error

    def _stand_in(
        self, error: StoreUnavailable, operation: Operation, demands: Sequence[Demand], charge: Charge | None
    ) -> Outcome:
        self._note(error)
        if operation == "give_back" and charge is not None and not charge.degraded:
            operation = "peek"  # it was taken from Redis, where it expires
        if self._on_error != "local":
            operation = "peek"
        outcome = self._local.execute(operation, demands, charge)
        if self._on_error == "open":
            outcome = Outcome(outcome.now_us, [(True, demand.binding.rule.limit, 0, 0, 0) for demand in demands])
        elif self._on_error == "closed":
            outcome = Outcome(outcome.now_us, [(False, 0, PROBE_US, 0, 0) for _ in demands])
        return outcome._replace(degraded=True)
