"""Token bucket: tokens refill at a constant rate up to the capacity; a request takes as many as it costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ratekeeper import rates
from ratekeeper.algorithms.bucket import Bucket, State
from ratekeeper.algorithms.rule import Field, Variant

if TYPE_CHECKING:
    from fractions import Fraction


class TokenBucket(Bucket):
    """Bursts of up to `capacity`, and `refill_rate` units a second in the long run. A key starts full."""

    __slots__ = ("refill_rate",)

    algorithm = "token-bucket"
    short_name = "tb"
    rate_name = "refill_rate"
    fields = (Field("capacity", "count", "Capacity", "maxTokens"), Field("refill_rate", "rate", "Refill"))
    variants = (
        Variant(
            "Token bucket",
            "Tokens refill at a steady rate up to a capacity. A request takes what it costs.",
            picture="tokens",
            suits={"delay": "no", "bursts": "yes"},
            reason="Unused units are saved up to the capacity, and the long-run rate holds exactly, "
            "in three numbers per key.",
        ),
    )

    refill_rate: Fraction

    def __init__(self, capacity: int, refill_rate: rates.Rate) -> None:
        self._set_up(capacity, refill_rate)

    @property
    def text(self) -> str:
        return f"{self.algorithm} {rates.rate_text(self.units, self.period_us)} burst {self.capacity}"

    def words(self, state: State | None, now: int) -> Mapping[str, object]:
        level, _ = self._usage_at(state, now)
        return {
            "tokens": (self.full - level) / self.period_us,
            "capacity": self.capacity,
            "refill_rate": float(self.refill_rate),
        }
