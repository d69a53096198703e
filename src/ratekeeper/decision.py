"""The one answer that every algorithm, store and limiter gives."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

_MICROSECONDS = 1_000_000

# What a rule answers inside the library, in whole microseconds: allowed, remaining, retry_after_us (None: never),
# reset_after_us, delay_us.
Answer = tuple[bool, int, "int | None", int, int]

NO_LAYERS: Mapping[str, Decision] = MappingProxyType({})


class Decision(NamedTuple):
    """Whether a request is admitted, and how its key stands. True when allowed; times are in seconds."""

    allowed: bool
    """Whether the request is admitted. A denied request has consumed nothing."""
    limit: int
    """The limit or capacity of the binding rule."""
    remaining: int
    """Exactly this many further hits of cost 1 would be admitted at this same instant."""
    retry_after: float
    """The same hit is denied before this moment and admitted at it; 0.0 when allowed, ``math.inf`` for never."""
    reset_after: float
    """How long until the key is back to its full capacity if nobody else comes."""
    delay: float
    """How long to hold an admitted request before it goes on (a leaky bucket that shapes), otherwise 0.0."""
    rule: str
    """The name of the binding rule."""
    layers: Mapping[str, Decision]
    """Each rule's own answer, by name, when there are several; otherwise empty."""
    degraded: bool
    """Whether something other than the store made this decision, because the store could not."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Decision, (*self[:7], dict(self.layers), self.degraded)  # a mapping proxy cannot be pickled

    def __bool__(self) -> bool:
        return self.allowed

    def __hash__(self) -> int:
        return hash(self[:7])  # all but the layers, which are a mapping

    @property
    def advice(self) -> str:
        """What the caller should do, in words."""
        if not self.allowed:
            if self.retry_after == math.inf:
                return f"the cost can never fit into {self.limit}"
            return f"try again in {self.retry_after:.3f} s"
        return f"go on in {self.delay:.3f} s" if self.delay else "go on"


def from_answer(name: str, limit: int, answer: Answer) -> Decision:
    """Turn one rule's answer in microseconds into a decision in seconds."""
    allowed, remaining, retry_after_us, reset_after_us, delay_us = answer
    return tuple.__new__(  # a third of what the constructor of a named tuple costs
        Decision,
        (
            allowed,
            limit,
            remaining,
            math.inf if retry_after_us is None else retry_after_us / _MICROSECONDS,
            reset_after_us / _MICROSECONDS,
            delay_us / _MICROSECONDS,
            name,
            NO_LAYERS,
            False,
        ),
    )


def combine(decisions: Sequence[Decision]) -> Decision:
    """Fold the decisions of several rules into one: the binding rule speaks, and each rule is in `layers`."""
    denials = [decision for decision in decisions if not decision.allowed]
    if denials:
        binding = max(denials, key=lambda decision: decision.retry_after)  # max and min keep the first of equals
    else:
        binding = min(decisions, key=lambda decision: decision.remaining)
    return binding._replace(
        allowed=not denials,
        remaining=min(decision.remaining for decision in decisions),
        reset_after=max(decision.reset_after for decision in decisions),
        delay=max(decision.delay for decision in decisions),
        layers=MappingProxyType({decision.rule: decision for decision in decisions}),
    )
