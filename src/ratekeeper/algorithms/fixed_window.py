"""Fixed window: count the units in each window of the clock, starting from zero in each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ratekeeper import rates
from ratekeeper.algorithms.rule import EMPTY, Step, Variant
from ratekeeper.algorithms.window import Windowed

if TYPE_CHECKING:
    from collections.abc import Sequence

State = tuple[int, int, int]  # start of the window in microseconds, count, length of the window that it was counted in


class FixedWindow(Windowed):
    """At most `limit` units in each window of the clock. Cheap, but up to twice the limit can pass at a boundary."""

    __slots__ = ("latest",)

    algorithm = "fixed-window"
    short_name = "fw"
    script = "fixed_window"
    state_size = 3
    changes_states = False
    variants = (
        Variant(
            "Fixed window",
            "Count the requests in each window of the clock. A new window starts from zero.",
            picture="window",
            suits={"delay": "no", "bursts": "no", "exact": "no", "memory": "no"},
            reason="The simplest to explain: a count that starts again with each window of the clock. "
            "Up to twice the limit can pass at a boundary.",
        ),
    )

    latest: list[int]

    def __init__(self, limit: int, window: rates.Window) -> None:
        super().__init__(limit, window)
        self._set(latest=[0])

    def spendable_us(self, reset_after_us: int) -> int:
        return reset_after_us  # until the window ends

    def load(self, value: Sequence[int]) -> State:
        start, count = value
        return start, count, 0  # Redis does not store the length of the window

    def _usage_at(self, state: State | None, now: int) -> tuple[int, int]:
        """Return the start of the window in which a decision at `now` is made, and its count."""
        window = self.window_us
        start = rates.shared(now - now % window, self.latest)
        if state:
            stored = state[0] - state[0] % window
            if start <= stored <= start + window:  # the next window: the clock stepped back, so decide at its start
                return stored, state[1]
        return start, 0

    def decide(self, state: State | None, now: int, cost: int, consume: bool) -> Step:
        limit = self.limit
        window = self.window_us
        if state:
            start, count, counted_in = state
            elapsed = now - start
            if counted_in != window or not 0 <= elapsed < window:  # rare; `_usage_at` handles every case
                start, count = self._usage_at(state, now)
                elapsed = now - start
        else:
            count = 0
            elapsed = now % window
            start = rates.shared(now - elapsed, self.latest)
        total = count + cost
        if total > limit:
            retry_after = window - elapsed if cost <= limit else None
            return state, False, max(0, limit - count), retry_after, window - elapsed if count else 0, 0
        if consume:
            return (start, total, window), True, limit - total, 0, window - elapsed, 0
        return state, True, limit - count, 0, window - elapsed if count else 0, 0

    def charge(self, state: State | None, now: int, cost: int) -> State:
        start, count = self._usage_at(state, now)
        return start, min(count + cost, rates.MAX_USAGE), self.window_us

    def refund(self, state: State | None, now: int, cost: int) -> State | tuple[()]:
        start, count = self._usage_at(state, now)
        return (start, count - cost, self.window_us) if count > cost else EMPTY

    def give_back(
        self, state: State | None, now: int, cost: int, charged_at: int, ends_at: int
    ) -> State | tuple[()] | None:
        """Refund what was charged at `charged_at`, if its window is still the current one."""
        start, _ = self._usage_at(state, now)
        return self.refund(state, now, cost) if charged_at - charged_at % self.window_us == start else state

    def expires_at(self, state: State) -> int:
        return state[0] - state[0] % self.window_us + self.window_us

    def share(self, state: State, now: int) -> float:
        return self._usage_at(state, now)[1] / self.limit

    def words(self, state: State | None, now: int) -> Mapping[str, object]:
        start, count = self._usage_at(state, now)
        return {
            "window_start": rates.seconds(start),
            "window_end": rates.seconds(start + self.window_us),
            "count": count,
        }
