"""Leaky bucket: what comes in fills it, it drains at a constant rate, and what would overflow is denied.

Policing lets an admitted request pass at once. Shaping sees the level as a queue: an admitted request waits until what
came before it has drained, so that departures never exceed the rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from ratekeeper import rates
from ratekeeper.algorithms.bucket import Bucket, State
from ratekeeper.errors import InvalidRule


@dataclass(frozen=True, slots=True)
class LeakyBucket(Bucket):
    """At most `capacity` units in the bucket, which drains `leak_rate` units a second. A key starts empty."""

    algorithm: ClassVar[str] = "leaky-bucket"

    leak_rate: rates.Rate
    mode: Literal["policing", "shaping"] = "policing"

    def __post_init__(self) -> None:
        if self.mode not in ("policing", "shaping"):
            raise InvalidRule(f"mode must be 'policing' or 'shaping', not {rates.show(self.mode)}")
        self._set_up(self.leak_rate, "leak_rate", shapes=self.mode == "shaping")

    @property
    def text(self) -> str:
        rate = rates.rate_text(self.units, self.period_us)
        return f"{self.algorithm} {rate} burst {self.capacity}{' shaping' if self.shapes else ''}"

    def words(self, state: State | None, now: int) -> Mapping[str, object]:
        level, at = self._settle(state, now)
        words = {"level": level / self.period_us, "capacity": self.capacity, "leak_rate": float(self.leak_rate)}
        if self.shapes:
            words["next_departure"] = rates.seconds(at - -level // self.units)
        return words
