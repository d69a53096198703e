"""Token bucket: tokens refill at a constant rate up to the capacity; a request takes as many as it costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from ratekeeper import rates
from ratekeeper.algorithms.bucket import Bucket, State


@dataclass(frozen=True, slots=True)
class TokenBucket(Bucket):
    """Bursts of up to `capacity`, and `refill_rate` units a second in the long run. A key starts full."""

    algorithm: ClassVar[str] = "token-bucket"

    refill_rate: rates.Rate

    def __post_init__(self) -> None:
        self._set_up(self.refill_rate, "refill_rate")

    @property
    def text(self) -> str:
        return f"{self.algorithm} {rates.rate_text(self.units, self.period_us)} burst {self.capacity}"

    def words(self, state: State | None, now: int) -> Mapping[str, object]:
        level, _ = self._settle(state, now)
        tokens = Fraction(self.full - level, self.period_us)
        return {"tokens": float(tokens), "capacity": self.capacity, "refill_rate": float(self.refill_rate)}
