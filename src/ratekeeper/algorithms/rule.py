"""The base class of all rules: frozen values whose methods are pure steps, *state and time in, answer and state out*.

A state is plain data that a store keeps for one key. ``None`` or ``EMPTY`` stands for an untouched key. Time is integer
microseconds since the epoch. Only the sliding log changes its state in place; all other states are immutable.

A rule also describes itself: nothing else in the package lists the algorithms or asks which one it has.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, NoReturn

from ratekeeper import rates
from ratekeeper.errors import InvalidRule

if TYPE_CHECKING:
    from fractions import Fraction

EMPTY: tuple[()] = ()
"""The state of a key that has become equal to an untouched key."""

_MAX_CHARACTERS = 200  # of a stored state: whatever its integers are, a float can hold each of them

Step = tuple[Any, bool, int, "int | None", int, int]
"""The next state, allowed, remaining, retry_after_us (None: never), reset_after_us, delay_us."""


class Field(NamedTuple):
    """An argument of a rule, with the same name in its constructor, in JSON and on the page."""

    name: str
    kind: Literal["count", "window", "rate", "mode"]
    label: str = ""
    demo_name: str = ""
    """Its name in the demo's routes, if that is not `name` in camel case."""


class Variant(NamedTuple):
    """One way to use an algorithm, as the page and `simulate` show it."""

    title: str
    idea: str
    picture: str = "bar"
    """The picture that `pictures.js` draws from its state; a bar of what remains fits every rule."""
    mode: str = ""
    suits: Mapping[str, str] | None = None
    """The answers to the page's questions that lead to it; None if none do."""
    reason: str = ""


class Rule:
    """A rate limiting rule. All times are in microseconds.

    Two rules are equal when they have the same class and the same values in all `fields`, the constructor's arguments.
    """

    __slots__ = ()

    algorithm: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    """Other names that a text may use for the algorithm."""
    short_name: ClassVar[str]
    """The algorithm's abbreviation in the names of keys, on Redis and in files."""
    script: ClassVar[str]
    """The name of the Lua file, beside the rule's module, with the same step for Redis."""
    stored_as: ClassVar[Literal["string", "list"]] = "string"
    """The type of the value on Redis."""
    fields: ClassVar[tuple[Field, ...]]
    changes_states: ClassVar[bool] = True
    """Whether a step may change the state that it is given, rather than return another one."""
    takes_burst: ClassVar[bool] = False
    """Whether "burst" and a number may follow the rate in a text."""
    variants: ClassVar[tuple[Variant, ...]]

    # The rule itself.

    limit: int
    """The limit or the capacity."""
    window_us: int
    """The time to which the limit applies; in a bucket, how long it takes to fill or drain."""
    shapes: bool = False
    """Whether an admitted request may have to wait for its departure."""

    if TYPE_CHECKING:

        def __init__(self, *values: Any, **fields: Any) -> None: ...

    @classmethod
    def of(cls, count: int, period_us: int, burst: int | None = None, mode: str = "") -> Rule:
        """Make the rule that a text means: `count` units per period, in one of the algorithm's modes, if it has any."""
        raise NotImplementedError

    @property
    def text(self) -> str:
        """The rule as `parse` reads it; equal rules have equal texts."""
        raise NotImplementedError

    @property
    def variant(self) -> Variant:
        """The variant that this rule is."""
        return self.variants[0]

    @property
    def span_us(self) -> int:
        """How long a full key takes to become equal to an untouched one."""
        return self.window_us

    @property
    def per_second(self) -> Fraction:
        """The units that it admits per second in the long run."""
        from fractions import Fraction

        return Fraction(self.limit * rates.SECOND_US, self.window_us)

    def scaled(self, share: Fraction) -> Rule:
        """Return a rule that admits this share of what this rule admits, rounded up."""
        return self.__replace__(limit=math.ceil(self.limit * share))

    def with_headroom(self, share: Fraction) -> Rule:
        """Return a stricter rule for clients, with room for requests that take longer to arrive than others.

        This one is for windows that the clients and the server share: a part of the limit may slip into the next one.
        """
        limit = self.limit - math.ceil(self.limit * share)
        if limit < 1:
            raise InvalidRule(
                "nothing is left of the limit; use a sliding-window-log, which gets a longer window instead"
            )
        return self.__replace__(limit=limit)

    def spendable_us(self, reset_after_us: int) -> int | None:
        """Return for how long units that were just taken, with this answer, may be spent; None: without end."""
        return None

    # The rule on Redis.

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        """The rule as the step in Lua receives it."""
        return self.limit, self.window_us, 0, 0

    def load(self, value: Any) -> Any:
        """Return the state that the step in Lua stored as this value; raise ValueError if it cannot have stored it."""
        if len(value) != self.state_size:
            raise ValueError(f"{len(value)} integers are no state")
        return tuple(value)

    @classmethod
    def lua(cls) -> str:
        """Return the step in Lua."""
        import pkgutil

        content = pkgutil.get_data(cls.__module__, f"{cls.script}.lua")
        assert content is not None  # noqa: S101 - the module's loader can load the files beside it
        return content.decode()

    # The rule in a database.

    state_size: ClassVar[int]
    """How many integers a state is; a state that is something else needs a `dump` and a `restore` of its own."""

    def dump(self, state: Any) -> str | bytes:
        """Return the value that a database stores for a non-empty state."""
        return " ".join(map(str, state))

    def restore(self, value: Any) -> Any:
        """Return the state from which `dump` made this value; raise ValueError or TypeError if there is none."""
        numbers = tuple(map(int, value.split()))
        if len(numbers) != self.state_size or len(value) > _MAX_CHARACTERS:
            raise ValueError(f"{len(value)} characters with {len(numbers)} integers are no state")
        return numbers

    # The steps.

    def decide(self, state: Any, now: int, cost: int, consume: bool) -> Step:
        """Decide a hit (`consume`) or a peek. A denied hit and a peek return the state unchanged."""
        raise NotImplementedError

    def charge(self, state: Any, now: int, cost: int) -> Any:
        """Consume unconditionally; usage may exceed the limit."""
        raise NotImplementedError

    def refund(self, state: Any, now: int, cost: int) -> Any:
        """Give back at most the current usage."""
        raise NotImplementedError

    def give_back(self, state: Any, now: int, cost: int, charged_at: int, ends_at: int) -> Any:
        """Give back what a hit at `charged_at` took, as far as it still counts; its reset was due at `ends_at`."""
        raise NotImplementedError

    def expires_at(self, state: Any) -> int:
        """Return when this state becomes equal to an untouched key's."""
        raise NotImplementedError

    def share(self, state: Any, now: int) -> float:
        """Return the share of the limit that is in use; it can exceed 1 after charges."""
        raise NotImplementedError

    @classmethod
    def decisive(cls, rules: Collection[Rule]) -> Collection[Rule]:
        """Return those of many rules under one name by which every state lasts longest, and uses about the most.

        An algorithm that does not know better returns all of them, which all stores then ask about every state.
        """
        return rules

    def words(self, state: Any, now: int) -> Mapping[str, Any]:
        """Return the state in words, for people and pictures. Times are in seconds."""
        raise NotImplementedError

    # A frozen value. A dataclass would do the same, but take longer to import than the rest of the rule.

    def _set(self, **values: object) -> None:
        """Set attributes; only for the constructor."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"cannot assign to {name!r}: a {type(self).__name__} is immutable")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"cannot delete {name!r}: a {type(self).__name__} is immutable")

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
        """Return the rule with other values for some of its fields; `copy.replace` calls this."""
        given = {field.name: getattr(self, field.name) for field in self.fields}
        return type(self)(**(given | changes))
