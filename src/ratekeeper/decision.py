"""The answer that every algorithm, store and limiter gives."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

# A rule's answer inside the library, in whole microseconds: allowed, remaining, retry_after_us (None: never),
# reset_after_us, delay_us.
RuleAnswer = tuple[bool, int, "int | None", int, int]

NO_LAYERS: Mapping[str, Decision] = MappingProxyType({})
MaybeNone: TypeAlias = Any  # None only where limiters were told so; nobody else has to check


class Decision(NamedTuple):
    """Whether a request is admitted, and the state of its key. True when allowed; times are in seconds."""

    allowed: bool
    """Whether the request is admitted. A denied request consumes nothing."""
    limit: int | MaybeNone
    """The limit or capacity of the deciding rule; 0 if the request is blocked, None if no rule limits it."""
    remaining: int | MaybeNone
    """Exactly this many further hits of cost 1 would be admitted at this same instant; None if no rule limits them."""
    retry_after: float
    """The same hit is denied before this moment and admitted at it; 0.0 when allowed, ``math.inf`` for never."""
    reset_after: float
    """The time until the key is back to its full capacity, if no other request comes."""
    delay: float
    """How long to hold an admitted request before it proceeds (a shaping leaky bucket), otherwise 0.0."""
    rule: str
    """The name of the deciding rule; empty if no rule limits the request."""
    layers: Mapping[str, Decision]
    """Each rule's own decision, by name, when there are several rules; otherwise empty."""
    degraded: bool
    """Whether the fallback made this decision, because the store could not."""
    shadow_denied: tuple[str, ...] = ()
    """The names of the rules that would have denied the request, but are only tried out (`shadow`)."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Decision, (*self[:7], dict(self.layers), *self[8:])  # a mapping proxy cannot be pickled

    def __bool__(self) -> bool:
        return self.allowed

    def __hash__(self) -> int:
        return hash(self[:7])  # without the layers, since a mapping cannot be hashed

    @property
    def room(self) -> float:
        """`remaining`, or infinity if no rule limits the request."""
        return math.inf if self.remaining is None else self.remaining

    @property
    def advice(self) -> str:
        """What the caller should do, in words."""
        if not self.allowed:
            if self.retry_after == math.inf:
                return f"the cost can never fit into {self.limit}" if self.limit else "blocked"
            return f"try again in {self.retry_after:.3f} s"
        return f"proceed in {self.delay:.3f} s" if self.delay else "proceed"


NO_LIMIT = Decision(True, None, None, 0.0, 0.0, 0.0, "", NO_LAYERS, False)
"""The decision on a request that no rule limits."""
