"""What every rule is: a frozen value whose methods are pure steps, *state and time in, answer and next state out*.

A state is plain data that a store keeps for one key. ``None`` or ``EMPTY`` stands for an untouched key. Time is integer
microseconds since the epoch. Only the sliding log changes its state in place; all other states are immutable.

A rule also describes itself: nothing else in the package lists algorithms or asks which one it has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, NoReturn

from ratekeeper import rates

if TYPE_CHECKING:
    from fractions import Fraction

EMPTY: tuple[()] = ()
"""The state of a key that has become equal to an untouched one."""

Step = tuple[Any, bool, int, "int | None", int, int]
"""Next state, allowed, remaining, retry_after_us (None: never), reset_after_us, delay_us."""


class Field(NamedTuple):
    """An argument of a rule, which its constructor, JSON and the page name alike."""

    name: str
    kind: Literal["count", "window", "rate", "mode"]
    label: str = ""
    demo_name: str = ""
    """What the routes of the demo call it, if that is not the name in camel case."""


class Variant(NamedTuple):
    """One way to use an algorithm, as the page and `simulate` show it."""

    title: str
    idea: str
    picture: str = "bar"
    """What `pictures.js` draws of its state; a bar of what remains fits them all."""
    mode: str = ""
    suits: Mapping[str, str] | None = None
    """The answers to the page's questions that lead to it; without any, none do."""
    reason: str = ""


class Rule:
    """One rate limiting rule. All times are in microseconds.

    Two rules are equal when they are of one class and agree in all `fields`, which are the constructor's arguments.
    """

    __slots__ = ()

    algorithm: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    """Other names of the algorithm that people may write."""
    short_name: ClassVar[str]
    """What stands for the algorithm in the names of keys on Redis."""
    script: ClassVar[str]
    """The name of the Lua file, beside the rule's own module, that has the same step for Redis."""
    stored_as: ClassVar[Literal["string", "list"]] = "string"
    """The type of the value on Redis."""
    fields: ClassVar[tuple[Field, ...]]
    takes_burst: ClassVar[bool] = False
    """Whether "burst" and a number may follow the rate in a text."""
    variants: ClassVar[tuple[Variant, ...]]

    # What it is.

    limit: int
    """The limit or the capacity."""
    window_us: int
    """The time that the limit is for; of a bucket, how long it takes to fill or drain."""
    shapes: bool = False
    """Whether an admitted request may have to wait for its departure."""

    if TYPE_CHECKING:

        def __init__(self, *values: Any, **fields: Any) -> None: ...

    @classmethod
    def of(cls, count: int, period_us: int, burst: int | None = None, mode: str = "") -> Rule:
        """Make the rule that a text means: so many units in that time, of one of its modes, if it has any."""
        raise NotImplementedError

    @property
    def text(self) -> str:
        """The rule as `parse` reads it; equal rules have equal texts."""
        raise NotImplementedError

    @property
    def variant(self) -> Variant:
        """Which of its variants this one is."""
        return self.variants[0]

    @property
    def span_us(self) -> int:
        """How long a full key takes to be untouched again."""
        return self.window_us

    @property
    def per_second(self) -> Fraction:
        """How many units a second it admits in the long run."""
        from fractions import Fraction

        return Fraction(self.limit * rates.SECOND_US, self.window_us)

    def scaled(self, share: Fraction) -> Rule:
        """Return a rule that admits this part of what this one does, rounded up."""
        return self.__replace__(limit=math.ceil(self.limit * share))

    def spendable_us(self, reset_after_us: int) -> int | None:
        """How long units that were just taken, with this answer, may be spent; None: there is no end to it."""
        return None

    # What Redis needs to know of it.

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        """What the step in Lua needs to know of the rule."""
        return self.limit, self.window_us, 0, 0

    def load(self, value: Any) -> Any:
        """Return the state that Redis holds as this value, as the step in Lua wrote it."""
        return tuple(value)

    @classmethod
    def lua(cls) -> str:
        """Return the step in Lua."""
        import pkgutil

        content = pkgutil.get_data(cls.__module__, f"{cls.script}.lua")
        assert content is not None  # noqa: S101 - whatever loaded the module can load what is beside it
        return content.decode()

    # The steps.

    def decide(self, state: Any, now: int, cost: int, consume: bool) -> Step:
        """Decide a hit (`consume`) or a peek. What is denied or only peeked at comes back with its state unchanged."""
        raise NotImplementedError

    def charge(self, state: Any, now: int, cost: int) -> Any:
        """Consume without asking; usage may pass the limit."""
        raise NotImplementedError

    def refund(self, state: Any, now: int, cost: int) -> Any:
        """Give back at most what is in use now."""
        raise NotImplementedError

    def give_back(self, state: Any, now: int, cost: int, charged_at: int, ends_at: int) -> Any:
        """Give back what a hit at `charged_at` took, as far as it still counts; it would be forgotten at `ends_at`."""
        raise NotImplementedError

    def expires_at(self, state: Any) -> int:
        """When this state becomes equal to an untouched key's."""
        raise NotImplementedError

    def share(self, state: Any, now: int) -> float:
        """How much of the limit is in use; above 1 after charges."""
        raise NotImplementedError

    def words(self, state: Any, now: int) -> Mapping[str, Any]:
        """The state in words, for people and pictures. Times in seconds."""
        raise NotImplementedError

    # A frozen value. A dataclass would be the same, and take longer to import than all the rest of the rule.

    def _set(self, **values: object) -> None:
        """Set what the constructor has worked out."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"cannot assign to {name!r}: a {type(self).__name__} does not change")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"cannot delete {name!r}: a {type(self).__name__} does not change")

    @property
    def _values(self) -> tuple[Any, ...]:
        return tuple([getattr(self, field.name) for field in self.fields])

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._values == other._values

    def __hash__(self) -> int:
        return hash(self._values)

    def __repr__(self) -> str:
        arguments = (f"{field.name}={getattr(self, field.name)!r}" for field in self.fields)
        return f"{type(self).__name__}({', '.join(arguments)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._values

    def __replace__(self, **changes: Any) -> Rule:
        """Return the rule with other values for some of its fields, as `copy.replace` asks for it."""
        given = {field.name: getattr(self, field.name) for field in self.fields}
        return type(self)(**(given | changes))
