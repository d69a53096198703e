"""Sliding window counter: this window's count, plus the last one's weighted by how much of it is still in view."""

from __future__ import annotations

from collections.abc import Mapping

from ratekeeper import rates
from ratekeeper.algorithms.rule import EMPTY, Step, Variant
from ratekeeper.algorithms.window import Windowed

State = tuple[int, int, int]  # start of the window in microseconds, count, count of the window before


class SlidingWindowCounter(Windowed):
    """At most `limit` units in a sliding window, estimated from two counts. Cheap and close; the default of `parse`."""

    __slots__ = ("latest",)

    algorithm = "sliding-window-counter"
    short_name = "sc"
    script = "sliding_window_counter"
    state_size = 3
    changes_states = False
    variants = (
        Variant(
            "Sliding window counter",
            "Two counts: this window's, and the last one's weighted by how much of it is still in view.",
            picture="two-windows",
            suits={"delay": "no", "bursts": "no", "exact": "no", "memory": "yes"},
            reason="Two counts per key come close to the log, without the double burst of a fixed window. "
            "The usual choice.",
        ),
    )

    latest: list[int]

    def __init__(self, limit: int, window: rates.Window) -> None:
        super().__init__(limit, window)
        self._set(latest=[0])

    @property
    def span_us(self) -> int:
        return 2 * self.window_us

    def spendable_us(self, reset_after_us: int) -> int:
        return reset_after_us - self.window_us  # until the window ends

    def _usage_at(self, state: State | None, now: int) -> State:
        """Return the start of the window in which a decision at `now` is made, its count and the last window's."""
        window = self.window_us
        start = rates.shared(now - now % window, self.latest)
        if state:
            stored, count, before = state
            if start <= stored < start + 2 * window:  # the next window: the clock stepped back, so decide at its start
                return stored - stored % window, count, before
            if start - window <= stored < start:
                return start, 0, count
        return start, 0, 0

    def _retry_after(self, start: int, count: int, before: int, now: int, cost: int) -> int:
        """Return the time until floor(count + before * weight / window) + cost <= limit."""
        window = self.window_us
        room = self.limit - cost - count
        if room >= 0:  # the window before fades enough during this one; the largest weight that leaves room:
            return start + window - ((room + 1) * window - 1) // before - now
        room = self.limit - cost  # otherwise this window fades enough during the next one
        return start + 2 * window - ((room + 1) * window - 1) // count - now

    def _reset_after(self, count: int, before: int, elapsed: int) -> int:
        if count:
            return 2 * self.window_us - elapsed
        return self.window_us - elapsed if before else 0

    def decide(self, state: State | None, now: int, cost: int, consume: bool) -> Step:
        limit = self.limit
        window = self.window_us
        elapsed = now % window
        start = now - elapsed
        count = before = 0
        if state:
            stored, count, before = state
            if stored == start:
                start = stored  # the same number: reusing the object saves an allocation and a cache miss
            else:
                start, count, before = self._usage_at(state, now)
                elapsed = now - start
        else:
            start = rates.shared(start, self.latest)
        used = count
        if before:
            used += before * (window - elapsed if elapsed > 0 else window) // window
        if used + cost > limit:
            retry_after = None if cost > limit else self._retry_after(start, count, before, now, cost)
            return state, False, max(0, limit - used), retry_after, self._reset_after(count, before, elapsed), 0
        if consume:
            state = (start, count + cost, before)
            return state, True, limit - used - cost, 0, 2 * window - elapsed, 0
        return state, True, limit - used, 0, self._reset_after(count, before, elapsed), 0

    def charge(self, state: State | None, now: int, cost: int) -> State:
        start, count, before = self._usage_at(state, now)
        return start, min(count + cost, rates.MAX_USAGE), before

    def refund(self, state: State | None, now: int, cost: int) -> State | tuple[()]:
        start, count, before = self._usage_at(state, now)
        count = max(0, count - cost)
        return (start, count, before) if count or before else EMPTY

    def give_back(
        self, state: State | None, now: int, cost: int, charged_at: int, ends_at: int
    ) -> State | tuple[()] | None:
        """Refund what was charged at `charged_at`, if its window is still the current one."""
        start = self._usage_at(state, now)[0]
        return self.refund(state, now, cost) if charged_at - charged_at % self.window_us == start else state

    def expires_at(self, state: State) -> int:
        start, count, _ = state
        return start - start % self.window_us + (2 if count else 1) * self.window_us

    def share(self, state: State, now: int) -> float:
        start, count, before = self._usage_at(state, now)
        return (count + before * min(1.0, 1 - (now - start) / self.window_us)) / self.limit

    def words(self, state: State | None, now: int) -> Mapping[str, object]:
        start, count, before = self._usage_at(state, now)
        weight = self.window_us - max(0, now - start)
        return {
            "window_start": rates.seconds(start),
            "window_end": rates.seconds(start + self.window_us),
            "count": count,
            "before": before,
            "weight": weight / self.window_us,
            "estimate": count + before * weight / self.window_us,
        }
