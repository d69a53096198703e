"""What every rule is: a frozen value whose methods are pure steps, *state and time in, answer and next state out*.

A state is plain data that a store keeps for one key. ``None`` or ``EMPTY`` stands for an untouched key. Time is integer
microseconds since the epoch. Only the sliding log changes its state in place; all other states are immutable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

EMPTY: tuple[()] = ()
"""The state of a key that has become equal to an untouched one."""

Step = tuple[Any, bool, int, "int | None", int, int]
"""Next state, allowed, remaining, retry_after_us (None: never), reset_after_us, delay_us."""


class Rule(Protocol):
    """One rate limiting rule. All times are in microseconds."""

    algorithm: ClassVar[str]
    script: ClassVar[str]  # the name of its Lua file

    @property
    def limit(self) -> int:
        """The limit or the capacity."""

    @property
    def text(self) -> str:
        """The rule as `parse` reads it; equal rules have equal texts."""

    @property
    def shapes(self) -> bool:
        """Whether an admitted request may have to wait for its departure."""

    @property
    def span_us(self) -> int:
        """How long a full key takes to be untouched again."""

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        """What the step in Lua needs to know of the rule."""

    def load(self, value: Any) -> Any:
        """Return the state that Redis holds as this value, as the step in Lua wrote it."""

    def decide(self, state: Any, now: int, cost: int, consume: bool) -> Step:
        """Decide a hit (`consume`) or a peek. What is denied or only peeked at comes back with its state unchanged."""

    def charge(self, state: Any, now: int, cost: int) -> Any:
        """Consume without asking; usage may pass the limit."""

    def refund(self, state: Any, now: int, cost: int) -> Any:
        """Give back at most what is in use now."""

    def give_back(self, state: Any, now: int, cost: int, charged_at: int, ends_at: int) -> Any:
        """Give back what a hit at `charged_at` took, as far as it still counts; it would be forgotten at `ends_at`."""

    def expires_at(self, state: Any) -> int:
        """When this state becomes equal to an untouched key's."""

    def share(self, state: Any, now: int) -> float:
        """How much of the limit is in use; above 1 after charges."""

    def words(self, state: Any, now: int) -> Mapping[str, Any]:
        """The state in words, for people and pictures. Times in seconds."""
