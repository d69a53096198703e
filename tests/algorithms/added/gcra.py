"""GCRA: the state of a key is the time at which it will be untouched; each unit postpones it by the same interval."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ratekeeper import rates
from ratekeeper.algorithms.rule import EMPTY, Step, Variant
from ratekeeper.algorithms.window import Windowed

State = tuple[
    int, int, int
]  # that time in whole microseconds, a fraction of one more, and the limit that is its denominator


class Gcra(Windowed):
    """At most `limit` units at once, and `limit` in each `window` in the long run."""

    __slots__ = ()

    algorithm = "gcra"
    aliases = ("cell-rate",)
    short_name = "gc"
    script = "gcra"
    state_size = 3
    variants = (Variant("GCRA", "One moment a key: when it will be untouched. Each request puts it off."),)

    def restore(self, value: Any) -> State:
        whole, part, limit = super().restore(value)
        if limit < 1:
            raise ValueError(f"{part} parts by {limit} are no moment")
        return whole, part, limit

    def _usage_at(self, state: State | None, now: int) -> int:
        """Return the time from which a decision at `now` starts, in `limit`-ths of a microsecond."""
        if not state:
            return now * self.limit
        whole, part, limit = state
        part = -(-part * self.limit // limit)  # written with another limit under the same name; rounded up
        return max(whole * self.limit + part, now * self.limit)

    def decide(self, state: State | None, now: int, cost: int, consume: bool) -> Step:
        limit, window = self.limit, self.window_us
        due = self._usage_at(state, now)
        left = ((now + window) * limit - due) // window
        reset_after = -((now * limit - due) // limit)
        if cost > left:
            retry_after = None if cost > limit else -(((now + window) * limit - due - cost * window) // limit)
            return state, False, max(0, left), retry_after, reset_after, 0
        if consume:
            due += cost * window
            return self._state(due), True, left - cost, 0, -((now * limit - due) // limit), 0
        return state, True, left, 0, reset_after, 0

    def charge(self, state: State | None, now: int, cost: int) -> State:
        due = self._usage_at(state, now) + cost * self.window_us
        return self._state(min(due, (now + rates.MAX_DRAIN_US) * self.limit))

    def _lower(self, state: State | None, now: int, amount: int) -> State | tuple[()]:
        due = self._usage_at(state, now) - amount
        return self._state(due) if due > now * self.limit else EMPTY

    def refund(self, state: State | None, now: int, cost: int) -> State | tuple[()]:
        return self._lower(state, now, cost * self.window_us)

    def give_back(
        self, state: State | None, now: int, cost: int, charged_at: int, ends_at: int
    ) -> State | tuple[()] | None:
        if charged_at > now:
            return state
        return self._lower(state, now, max(0, cost * self.window_us - (now - charged_at) * self.limit))

    def expires_at(self, state: State) -> int:
        whole, part, _ = state
        return whole + (part > 0)

    def share(self, state: State, now: int) -> float:
        return (self._usage_at(state, now) - now * self.limit) / (self.window_us * self.limit)

    def words(self, state: State | None, now: int) -> Mapping[str, object]:
        return {"untouched_at": self._usage_at(state, now) / self.limit / rates.SECOND_US}

    def _state(self, due: int) -> State:
        whole, part = divmod(due, self.limit)
        return whole, part, self.limit
