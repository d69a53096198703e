"""The protocol that all stores implement: what a limiter asks of a store, and what the store answers.

A request is a sequence of demands, at most one for each key of a rule. `execute` decides all of them at one instant:
if a hit or peek that binds is denied, nothing changes; otherwise every demand performs its operation.
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
    """A rule with its name, and the space of its keys, which limiters with an equal space share."""

    name: str
    rule: Rule
    space: tuple[str, str, str]  # prefix, algorithm, name
    group: str | None = None
    """The group of rules that share one part of a full memory store; None: the rule has a part of its own."""


class Receipt(NamedTuple):
    """When a hit was charged; a give-back needs it."""

    at_us: int
    ends_us: int
    """When the key is back to its full capacity, if no other request comes."""
    degraded: bool = False
    """Whether the fallback was charged, and not the store."""


class Demand(NamedTuple):
    """One operation on one key of one rule."""

    binding: Binding
    key: Key
    """The key as `ratekeeper.keys.check` returns it."""
    cost: int
    operation: Operation = "hit"
    binds: bool = True
    """Whether its denial denies the request. A hit that does not bind is charged if it and the request are admitted."""
    receipt: Receipt | None = None
    """The charge that a give-back returns."""


class Outcome(NamedTuple):
    """The answers to a request's demands, in order, and their time.

    Any operation other than a hit or a peek is answered like a peek of cost 1 afterwards.
    """

    now_us: int
    answers: Sequence[RuleAnswer]
    degraded: bool = False
    """Whether the fallback answered, and not the store."""
    steady_us: int = 0
    """For a denied hit or a peek: how long the answer stays exactly the same, if no other request comes."""
    times_us: Sequence[int] = ()
    """The time of each answer, if they differ: servers have their own clocks, and so does a lease."""

    @property
    def receipts(self) -> list[Receipt]:
        """The receipts with which each demand of an admitted request can be given back."""
        at_us = self.times_us or [self.now_us] * len(self.answers)
        return [
            Receipt(time, time + answer[3], self.degraded) for time, answer in zip(at_us, self.answers, strict=True)
        ]


def asks(demand: Demand) -> bool:
    """Tell whether a demand may be denied."""
    return demand.operation in ("hit", "peek")


def admits(demands: Sequence[Demand], outcome: Outcome) -> bool:
    """Tell whether a request was admitted: nothing that binds was denied."""
    return not any(
        demand.binds and asks(demand) and not answer[0] for demand, answer in zip(demands, outcome.answers, strict=True)
    )


def outcome_at(now_us: int, answers: Sequence[RuleAnswer], steady_us: int = 0) -> Outcome:
    """Make a store's outcome, in a third of the time of the named tuple's constructor."""
    return tuple.__new__(Outcome, (now_us, answers, False, steady_us, ()))


class Snapshot(NamedTuple):
    """The state of some keys: for each, its rule and a copy of its state."""

    now_us: int
    rules: Sequence[Rule]
    states: Sequence[Any]
    degraded: bool = False
    """Whether these are the states of the fallback, and not of the store."""


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
    """The bytes that the key takes in the store, including its name."""
    at: float
    """The time on the store's clock, in seconds since the epoch."""
    name: str | None = None
    """The key's name in Redis or in the file, with bytes that are not text escaped; None in memory."""


class SharedValue(NamedTuple):
    """A value that the processes on a store share, such as the policies of a fleet."""

    content: bytes
    """Its content, or the beginning of it; empty if there is no such value."""
    now_us: int
    """The store's time when it was read."""


QuickHit = Callable[[Any, Any], Decision | None]


class Layer(Protocol):
    """One layer on the way to a store; each layer knows only the one below it.

    A call must return by `ends_ns` on the monotonic clock (None: the layer below sets its own deadline), or raise
    StoreUnavailable. A layer for event loops may return an awaitable instead of the result.
    """

    def execute(self, demands: Sequence[Demand], ends_ns: int | None = None) -> Outcome | Awaitable[Outcome]:
        """Decide or change all demands at one instant; all or nothing."""

    def snapshot(self, demands: Sequence[Demand], ends_ns: int | None = None) -> Snapshot | Awaitable[Snapshot]:
        """Return the time and the state of each demand's key."""

    def forget(self, bindings: Sequence[Binding]) -> Awaitable[None] | None:
        """Forget every key of these rules; raise StoreUnavailable if it cannot be done, or only in part."""


class StoreLayer(Layer, Protocol):
    """The lowest layer: a store, as threads or event loops call it."""

    def inspect(self, demands: Sequence[Demand]) -> Any:
        """Return how each demand's key is stored: a list of inspections, or an awaitable of it."""

    def close(self) -> Any:
        """Release resources such as connections; the next request opens new ones."""


class StoreFigures(NamedTuple):
    """How a store stands now. A number is None where the store has none."""

    is_up: bool
    keys: int | None = None
    """The keys that it holds."""
    evictions: int | None = None
    """The keys that were evicted so far because it was full."""
    remembered_denials: int | None = None
    """The denials so far that were repeated without asking a server."""


CallObserver = Callable[[int, bool], object]
"""Is told of a call to a server or a file: how many requests it decided, and whether there was an answer."""


@runtime_checkable
class Observable(Protocol):
    """What a store offers to those who count what it does."""

    def figures(self) -> StoreFigures:
        """Return how the store stands now, at once."""

    def observe_calls(self, observer: CallObserver) -> None:
        """Tell an observer of every call that makes decisions, from now on; a store in memory makes none."""


def begins_with(known: bytes, before: bytes) -> bool:
    """Tell whether a shared value begins so; only a value that is not there begins with nothing."""
    return known.startswith(before) if before else not known


@runtime_checkable
class SharedValues(Protocol):
    """What the layer of a store for threads or event loops offers to processes that share more than usage.

    Shared values are few, are kept until they are replaced, and do not expire. A layer for event loops may return
    awaitables. Both methods raise StoreUnavailable if the store does not answer.
    """

    def read_shared(self, name: str, most: int | None = None) -> SharedValue | Awaitable[SharedValue]:
        """Return a value, or its first `most` bytes."""

    def replace_shared(self, name: str, before: bytes, content: bytes) -> bool | Awaitable[bool]:
        """Replace a value that begins with `before` (empty: there is none yet); tell whether it did.

        After StoreUnavailable, it may have been replaced or not.
        """


@runtime_checkable
class Store(StoreLayer, Protocol):
    """Keeps the state of keys. A store is responsible for atomicity; the rules make the decisions."""

    may_be_away: bool
    """Whether it may fail to answer; if so, a limiter needs a fallback."""
    is_per_loop: bool
    """Whether each event loop has connections of its own; `close` closes those of the running loop."""

    def for_threads(self) -> StoreLayer:
        """Return the layer for a `Limiter`; TypeError if its calls must be awaited."""

    def for_asyncio(self) -> StoreLayer:
        """Return the layer for an `AsyncLimiter`; TypeError if its calls block the event loop."""

    def bind(self, binding: Binding, clock: Clock | None) -> None:
        """Prepare for a limiter's rule and its clock. All limiters on one store share one clock."""

    def unbind(self, bindings: Sequence[Binding]) -> None:
        """Note that a limiter no longer exists, or was never made: some of its rules may not be bound.

        Garbage collection may call this at any moment.
        """

    def quick_hit(self, binding: Binding) -> QuickHit | None:
        """Return a fast path to hit one rule, if there is one.

        It decides as `execute` does, or returns None when the call needs the full path.
        """
