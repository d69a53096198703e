"""The meaning of GCRA, for the conformance kit: a time that each unit postpones."""

from __future__ import annotations

from fractions import Fraction

from tests.conformance.model import MODELS, Model


class Gcra(Model):
    """Knows when the key will be untouched."""

    def __init__(self, limit: int, window: int) -> None:
        self.window = window
        super().__init__(limit)

    @property
    def unit(self) -> Fraction:
        """By how much a unit postpones that, under the current limit."""
        return Fraction(self.window, self.limit)

    def forget(self) -> None:
        self.due = Fraction(0)

    def used(self, clock: int) -> Fraction:
        return max(Fraction(0), self.due - clock) / self.unit

    def untouched(self, clock: int) -> bool:
        return self.due <= clock

    def put_off(self, clock: int, time: Fraction) -> None:
        self.due = max(self.due, clock) + time

    def consume(self, clock: int, cost: int) -> None:
        self.put_off(clock, cost * self.unit)

    def refund(self, clock: int, cost: int) -> None:
        self.put_off(clock, -cost * self.unit)

    def give_back(self, clock: int, cost: int, charged: int, ends: int) -> None:
        if charged <= clock:
            self.put_off(clock, -max(Fraction(0), cost * self.unit - (clock - charged)))

    def expire(self, clock: int) -> None:
        if self.untouched(clock):
            self.forget()


MODELS["gcra"] = lambda rule: Gcra(rule["limit"], rule["window_us"])
