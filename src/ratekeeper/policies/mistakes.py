"""Mistakes in a policy file: each with its line, its place, the reason, and the nearest valid word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ratekeeper.errors import InvalidRule
from ratekeeper.spelling import LONGEST_WORD

_SHOWN = 20

ValuePath = tuple[str | int, ...]
"""Where a value is: names of fields, and indexes into lists."""


class Mistake(NamedTuple):
    """One mistake in a policy file."""

    line: int | None
    """The line, from 1; None if the mistake concerns the whole file."""
    place: str
    """The value, as in `policies.api.rules[0].limit`."""
    reason: str
    """What is wrong, and what is valid."""
    suggestion: str | None = None
    """The nearest valid word, if there is one."""

    def __str__(self) -> str:
        line = "" if self.line is None else f"line {self.line}: "
        place = f"{self.place}: " if self.place else ""
        hint = "" if self.suggestion is None else f"; did you mean {self.suggestion!r}?"
        return f"{line}{place}{self.reason}{hint}"


class InvalidPolicies(InvalidRule):
    """A policy file is invalid; `mistakes` lists everything that is wrong with it, by line."""

    def __init__(self, mistakes: Sequence[Mistake], source: str = "") -> None:
        self.mistakes = tuple(sorted(mistakes, key=lambda each: each.line or 0))
        self.source = source
        shown = [str(each) for each in self.mistakes[:_SHOWN]]
        more = len(self.mistakes) - len(shown)
        told = [*shown, *([f"... and {more} more"] if more else [])]
        super().__init__("\n".join(f"{source}: {each}" if source else each for each in told))

    def __reduce__(self) -> tuple[type[InvalidPolicies], tuple[Sequence[Mistake], str]]:
        return type(self), (self.mistakes, self.source)


def shown(place: ValuePath) -> str:
    """Write a place as people do.

    >>> shown(("policies", "api", "rules", 0, "limit"))
    'policies.api.rules[0].limit'
    """
    text = ""
    for part in place:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part[:LONGEST_WORD]}" if text else part[:LONGEST_WORD]
    return text
