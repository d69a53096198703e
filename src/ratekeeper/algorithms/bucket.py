"""The arithmetic of both buckets: a level that rises with every unit and drains at a constant rate.

A token bucket and a leaky bucket are the same bucket seen from two sides: the tokens that are left are the capacity
minus the level. The rate is `units` every `period_us`, reduced. The level is counted in fractions of a unit, each 1 /
`period_us`, so that one microsecond drains exactly `units` of them and nothing is ever rounded.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

from ratekeeper import rates
from ratekeeper.algorithms.rule import EMPTY, Rule, Step

if TYPE_CHECKING:
    from fractions import Fraction

# A level, its time, and the period_us in which it was counted, in one integer: half the memory of a tuple of three, and
# faster to read. The lower bits are a stamp: the time, on a time line of its own for every period.
State = int
_STAMP = 120  # bits; the level is above them
_STAMP_MASK = (1 << _STAMP) - 1
_TIME_LINE = 60  # bits
_FAR = 1 << (_TIME_LINE - 1)  # microseconds: 18,000 years before and after 1970


class Bucket(Rule):
    """What the token bucket and the leaky bucket share."""

    __slots__ = ("capacity", "epoch", "full", "limit", "period_us", "shapes", "units", "window_us")

    script = "bucket"
    state_size = 3
    takes_burst = True
    changes_states = False

    rate_name: ClassVar[str]
    """The name of the field with the rate."""
    capacity: int
    units: int
    period_us: int
    full: int
    epoch: int

    def _set_up(self, capacity: int, rate: rates.Rate, *, shapes: bool = False) -> None:
        capacity = rates.limit(capacity, "capacity")
        per_second = rates.rate(rate, self.rate_name)
        units, period_us = rates.per_microsecond(per_second, capacity, self.rate_name)
        full = capacity * period_us
        self._set(capacity=capacity, units=units, period_us=period_us, full=full, shapes=shapes)
        self._set(limit=capacity, window_us=-(-full // units), epoch=period_us << _TIME_LINE)
        object.__setattr__(self, self.rate_name, per_second)

    @classmethod
    def of(cls, count: int, period_us: int, burst: int | None = None, mode: str = "") -> Rule:
        from fractions import Fraction

        more = {"mode": mode} if mode else {}
        return cls(count if burst is None else burst, Fraction(count * rates.SECOND_US, period_us), **more)

    @property
    def per_second(self) -> Fraction:
        from fractions import Fraction

        return Fraction(self.units * rates.SECOND_US, self.period_us)

    def scaled(self, share: Fraction) -> Rule:
        changes: dict[str, Any] = {
            "capacity": math.ceil(self.capacity * share),
            self.rate_name: self.per_second * share,
        }
        return self.__replace__(**changes)

    def with_headroom(self, share: Fraction) -> Rule:
        """Return a bucket with less room for bursts that also fills more slowly, for those that have no such room."""
        changes: dict[str, Any] = {
            "capacity": max(1, self.capacity - math.ceil(self.capacity * share)),
            self.rate_name: self.per_second / (1 + share),
        }
        return self.__replace__(**changes)

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        return self.capacity, self.units, self.period_us, int(self.shapes)

    def load(self, value: Sequence[int]) -> State:
        whole, part, at, period_us = value
        if not part < period_us <= rates.MAX_RATE_PART:
            raise ValueError(f"{part} in {period_us} is no level")
        return _packed(whole * period_us + part, at, period_us)

    def dump(self, state: State) -> str:
        level, at, period_us = _parts(state)
        return f"{level} {at} {period_us}"

    def restore(self, value: Any) -> State:
        level, at, period_us = super().restore(value)
        if level < 0 or abs(at) >= _FAR or not 0 < period_us <= rates.MAX_RATE_PART:
            raise ValueError(f"{level} {at} {period_us} is no level")
        return _packed(level, at, period_us)

    def _capped(self, level: int) -> int:
        """Return the level, or the ceiling of accumulated usage if that is lower."""
        return min(level, 2 * rates.MAX_DRAIN_US * self.units, rates.MAX_USAGE * self.period_us)

    def _usage_at(self, state: State | None, now: int) -> tuple[int, int]:
        """Return the level from which a decision at `now` starts, and the time at which it is made."""
        if not state:
            return 0, now
        level, at, period_us = _parts(state)
        if period_us != self.period_us:  # written at another rate under the same name; round a fraction of a unit up
            level = -(-level * self.period_us // period_us)
        level = self._capped(level)
        if at <= now:
            return max(0, level - (now - at) * self.units), now
        if (at - now) * self.units > self.full:
            return 0, now
        return level, at  # the clock stepped back: decide at the time of the state

    def decide(self, state: State | None, now: int, cost: int, consume: bool) -> Step:
        units = self.units
        period_us = self.period_us
        stamp = self.epoch + now
        level = lead = 0  # the lead is how far the time of the decision is ahead of a clock that stepped back
        if state:
            level = state >> _STAMP
            elapsed = stamp - (state & _STAMP_MASK)
            if 0 <= elapsed < _FAR and level <= self.full:  # the usual case; `_usage_at` handles the rest
                level -= elapsed if units == 1 else elapsed * units  # skipping the product saves a tenth of the step
                if level < 0:  # noqa: PLR1730 - max() takes much longer
                    level = 0
            else:
                level, at = self._usage_at(state, now)
                lead = at - now
        after = level + cost * period_us
        full = self.full
        if after > full:
            retry_after = None if cost > self.capacity else lead - (full - after) // units
            return state, False, max(0, (full - level) // period_us), retry_after, lead - -level // units, 0
        delay = lead - -level // units if self.shapes else 0
        if consume:
            reset_after = after if units == 1 else -(-after // units)
            if lead:  # rare; adding zero would cost time too
                reset_after += lead
                stamp += lead
            return after << _STAMP | stamp, True, (full - after) // period_us, 0, reset_after, delay
        return state, True, (full - level) // period_us, 0, lead - -level // units, delay

    def charge(self, state: State | None, now: int, cost: int) -> State:
        level, at = self._usage_at(state, now)
        return _packed(self._capped(level + cost * self.period_us), at, self.period_us)

    def _lower(self, state: State | None, now: int, amount: int) -> State | tuple[()]:
        level, at = self._usage_at(state, now)
        return _packed(level - amount, at, self.period_us) if level > amount else EMPTY

    def refund(self, state: State | None, now: int, cost: int) -> State | tuple[()]:
        return self._lower(state, now, cost * self.period_us)

    def give_back(
        self, state: State | None, now: int, cost: int, charged_at: int, ends_at: int
    ) -> State | tuple[()] | None:
        """Refund what was charged at `charged_at`, minus what has drained since; if shaping, only the last hit."""
        at = self._usage_at(state, now)[1]
        if charged_at > at or (self.shapes and (not state or self.expires_at(state) != ends_at)):
            return state
        return self._lower(state, now, max(0, cost * self.period_us - (at - charged_at) * self.units))

    def expires_at(self, state: State) -> int:
        level, at = self._usage_at(state, _parts(state)[1])
        return at - -level // self.units

    @classmethod
    def decisive(cls, rules: Collection[Rule]) -> Collection[Rule]:
        return [min(rules, key=attrgetter("per_second")), min(rules, key=attrgetter("limit"))]

    def share(self, state: State, now: int) -> float:
        return self._usage_at(state, now)[0] / self.full


def _packed(level: int, at: int, period_us: int) -> State:
    return level << _STAMP | (period_us << _TIME_LINE) + at


def _parts(state: State) -> tuple[int, int, int]:
    stamp = state & _STAMP_MASK
    period_us = (stamp + _FAR) >> _TIME_LINE
    return state >> _STAMP, stamp - (period_us << _TIME_LINE), period_us
