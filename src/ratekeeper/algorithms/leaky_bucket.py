"""Leaky bucket: requests fill it, it drains at a constant rate, and requests that would overflow it are denied.

Policing lets an admitted request pass at once. Shaping treats the level as a queue: an admitted request waits until the
level before it has drained, so that departures never exceed the rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from ratekeeper import rates
from ratekeeper.algorithms.bucket import Bucket, State
from ratekeeper.algorithms.rule import Field, Variant
from ratekeeper.errors import InvalidRule

if TYPE_CHECKING:
    from fractions import Fraction


class LeakyBucket(Bucket):
    """At most `capacity` units in a bucket that drains `leak_rate` units a second. A key starts empty."""

    __slots__ = ("leak_rate", "mode")

    algorithm = "leaky-bucket"
    short_name = "lb"
    rate_name = "leak_rate"
    fields = (Field("capacity", "count", "Capacity"), Field("leak_rate", "rate", "Leak"), Field("mode", "mode"))
    variants = (
        Variant(
            "Leaky bucket, policing",
            "Requests fill a bucket that drains at a steady rate. Requests that would overflow it are denied.",
            picture="level",
            mode="policing",
            suits={"delay": "no", "bursts": "no", "exact": "yes", "memory": "yes"},
            reason="Three numbers per key, exact arithmetic, and room comes back evenly instead of all at once. "
            "A limit that is exact in every window needs more memory: that is the log.",
        ),
        Variant(
            "Leaky bucket, shaping",
            "The bucket is a queue: requests wait in it and leave one after another, evenly.",
            picture="queue",
            mode="shaping",
            suits={"delay": "yes"},
            reason="Requests wait in a queue and leave evenly, so the service behind it never sees a burst.",
        ),
    )

    leak_rate: Fraction
    mode: Literal["policing", "shaping"]

    def __init__(self, capacity: int, leak_rate: rates.Rate, mode: Literal["policing", "shaping"] = "policing") -> None:
        if mode not in ("policing", "shaping"):
            raise InvalidRule(f"mode must be 'policing' or 'shaping', not {rates.show(mode)}")
        self._set_up(capacity, leak_rate, shapes=mode == "shaping")
        self._set(mode=mode)

    @property
    def variant(self) -> Variant:
        return self.variants[self.shapes]

    @property
    def text(self) -> str:
        rate = rates.rate_text(self.units, self.period_us)
        return f"{self.algorithm} {rate} burst {self.capacity}{' shaping' if self.shapes else ''}"

    def words(self, state: State | None, now: int) -> Mapping[str, object]:
        level, at = self._usage_at(state, now)
        words = {"level": level / self.period_us, "capacity": self.capacity, "leak_rate": float(self.leak_rate)}
        if self.shapes:
            words["next_departure"] = rates.seconds(at - -level // self.units)
        return words
