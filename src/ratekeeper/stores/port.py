"""What a limiter asks of a store, and what it gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from ratekeeper.algorithms import Rule
from ratekeeper.decision import Answer

Operation = Literal["hit", "peek", "charge", "refund", "reset", "give_back"]
Key = str | bytes | int | tuple[str | bytes | int, ...]


class Binding(NamedTuple):
    """A rule under its name, in the space that its keys share with every limiter that means the same."""

    name: str
    rule: Rule
    space: tuple[str, str, str]  # prefix, algorithm, name


class Demand(NamedTuple):
    """A cost on one key of one rule; a request is a sequence of these, all or nothing."""

    binding: Binding
    key: Key
    cost: int


class Charge(NamedTuple):
    """For each demand of a request when it was charged, and when that would be forgotten: what a give-back names."""

    at_us: Sequence[int]
    ends_us: Sequence[int]
    degraded: bool = False  # whether something other than the store was charged

    def part(self, positions: Sequence[int]) -> Charge:
        """Return what gives some of the demands back."""
        return Charge([self.at_us[at] for at in positions], [self.ends_us[at] for at in positions], self.degraded)


class Outcome(NamedTuple):
    """The answers to a request's demands, in order, and the time that they were given at."""

    now_us: int
    answers: Sequence[Answer]
    degraded: bool = False  # whether something other than the store gave them
    steady_us: int = 0  # of a denial or a peek: how long it stays exactly like this if nobody comes
    times_us: Sequence[int] = ()  # of each answer: where servers have clocks of their own, or of what was leased

    @property
    def charge(self) -> Charge:
        """What gives an admitted hit back."""
        at_us = self.times_us or [self.now_us] * len(self.answers)
        ends_us = [time + answer[3] for time, answer in zip(at_us, self.answers, strict=True)]
        return Charge(at_us, ends_us, self.degraded)


def outcome_at(now_us: int, answers: Sequence[Answer], steady_us: int = 0) -> Outcome:
    """Make an outcome of a store's, in a third of the time that the constructor of a named tuple takes."""
    return tuple.__new__(Outcome, (now_us, answers, False, steady_us, ()))


Recall = Callable[[Sequence[Demand]], Outcome | None]
"""Return the answer to a hit that was denied just now and would be denied again."""


def recall_nothing(_: Sequence[Demand]) -> None:
    """Know of no denial that still holds."""


@dataclass(frozen=True)
class Inspection:
    """How one key of one rule is stored."""

    rule: str
    """The rule, as a text."""
    state: dict[str, Any]
    """The state in words: `count`, `tokens`, `level`, ...; times in seconds."""
    raw: object
    """The value as the store holds it; None for an untouched key."""
    ttl: float | None
    """Seconds until the store forgets the key; None for an untouched key."""
    bytes: int
    """What the key takes in the store, its name included."""
    at: float
    """What the store's clock said, in seconds since the epoch."""
    name: str | None = None
    """What the key is called in Redis; what is not text is escaped."""
