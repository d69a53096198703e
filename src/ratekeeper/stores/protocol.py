"""What a limiter asks of a store, and what it gets: the one protocol that all stores implement.

A request is a sequence of demands, at most one for each key of a rule. `execute` decides all of them at one instant:
when a binding hit or peek is denied, nothing changes; otherwise each demand does its own operation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from ratekeeper.algorithms.rule import Rule
from ratekeeper.clock import Clock
from ratekeeper.decision import Decision, RuleAnswer

Operation = Literal["hit", "peek", "charge", "refund", "reset", "give_back"]
Key = str | bytes | int | tuple[str | bytes | int, ...]


class Binding(NamedTuple):
    """A rule under its name, in the space that its keys share with every limiter that means the same."""

    name: str
    rule: Rule
    space: tuple[str, str, str]  # prefix, algorithm, name


class Receipt(NamedTuple):
    """When a hit was charged: what a give-back names."""

    at_us: int
    ends_us: int
    """When the key is back to its full capacity if nobody else comes."""
    degraded: bool = False
    """Whether it was the fallback that was charged, and not the store."""


class Demand(NamedTuple):
    """One operation on one key of one rule."""

    binding: Binding
    key: Key
    cost: int
    operation: Operation = "hit"
    binds: bool = True
    """Whether its denial denies the request; a hit that does not bind is charged if it and the request are admitted."""
    receipt: Receipt | None = None
    """What a give-back gives back."""


class Outcome(NamedTuple):
    """The answers to a request's demands, in order, and the time that they were given at.

    What is neither a hit nor a peek is answered as a peek of cost 1 would be, afterwards.
    """

    now_us: int
    answers: Sequence[RuleAnswer]
    degraded: bool = False
    """Whether the fallback gave them, and not the store."""
    steady_us: int = 0
    """Of a denied hit or a peek: how long it stays exactly like this if nobody comes."""
    times_us: Sequence[int] = ()
    """The time of each answer, where they differ: servers have clocks of their own, and so has a lease."""

    @property
    def receipts(self) -> list[Receipt]:
        """What gives each demand of an admitted request back."""
        at_us = self.times_us or [self.now_us] * len(self.answers)
        return [
            Receipt(time, time + answer[3], self.degraded) for time, answer in zip(at_us, self.answers, strict=True)
        ]


def outcome_at(now_us: int, answers: Sequence[RuleAnswer], steady_us: int = 0) -> Outcome:
    """Make an outcome of a store's, in a third of the time that the constructor of a named tuple takes."""
    return tuple.__new__(Outcome, (now_us, answers, False, steady_us, ()))


class Snapshot(NamedTuple):
    """How some keys stand: the rule that decides about each, and a copy of its state."""

    now_us: int
    rules: Sequence[Rule]
    states: Sequence[Any]


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


QuickHit = Callable[[Any, Any], Decision | None]


class Layer(Protocol):
    """One storey of the way down to a server; each knows only the one below.

    What is asked for must be answered by `ends_ns` on the monotonic clock (None: the layer below decides how long it
    takes), or StoreUnavailable is raised. A layer for event loops may return an awaitable instead of the result.
    """

    def execute(self, demands: Sequence[Demand], ends_ns: int | None = None) -> Outcome | Awaitable[Outcome]:
        """Decide or change all demands at one instant; all or nothing."""

    def snapshot(self, demands: Sequence[Demand], ends_ns: int | None = None) -> Snapshot | Awaitable[Snapshot]:
        """Return the time and the state of each demand's key."""


@runtime_checkable
class Store(Layer, Protocol):
    """Where state lives. A store owns atomicity; what a decision is, its rules say."""

    may_be_away: bool
    """Whether it may fail to answer; then a limiter has a fallback."""

    def for_threads(self) -> Store:
        """Return this store as a `Limiter` asks it; TypeError if it cannot be asked without awaiting."""

    def for_asyncio(self) -> Store:
        """Return this store as an `AsyncLimiter` asks it; TypeError if asking it would block the loop."""

    def bind(self, binding: Binding, clock: Clock | None) -> None:
        """Prepare for a limiter's rule and its clock. All limiters of one store share one clock."""

    def unbind(self, bindings: Sequence[Binding]) -> None:
        """Note that a limiter is no more. Garbage collection may call this at any moment."""

    def quick_hit(self, binding: Binding) -> QuickHit | None:
        """Return a shorter way to hit one rule, if there is one.

        It answers as `execute` does, or with None when the arguments need a closer look.
        """

    def inspect(self, demands: Sequence[Demand]) -> Any:
        """Show how each demand's key is stored: a list of inspections, which may have to be awaited."""

    def close(self) -> Any:
        """Let go of what it holds, such as connections; the next request opens new ones."""
