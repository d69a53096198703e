"""Tries out both sides of a peer's patterns, each in a process of its own, and judges whether they agree."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import NamedTuple

from compare.environments import Environment
from compare.moving.page import OURS, THEIRS, Pattern, patterns
from compare.moving.peer import MODULES, peer

SAME, DIFFERS, WRONG = "same", "differs", "WRONG"


class Result(NamedTuple):
    """What both sides of a pattern answered."""

    pattern: Pattern
    theirs: list[str]
    ours: list[str]

    @property
    def verdict(self) -> str:
        """Whether both answer the same, or differ as the page says; anything else is wrong."""
        if self.ours != self.pattern.answers or (self.theirs == self.ours) == bool(self.pattern.differs):
            return WRONG
        return DIFFERS if self.pattern.differs else SAME

    def lines(self) -> Iterator[str]:
        """Give the lines of the report."""
        title = next(filter(None, self.pattern.theirs.splitlines()))
        yield f"  {self.verdict:8} {title}"
        yield f"  {'':8}   {self.pattern.steps} -> {shown(self.theirs)}"
        if self.theirs != self.ours:
            yield f"  {'':8}   ratekeeper: {shown(self.ours)}"
        if self.pattern.differs:
            yield f"  {'':8}   {self.pattern.differs}"
        if self.ours != self.pattern.answers:
            yield f"  {'':8}   the page says {shown(self.pattern.answers)}"


def compare(name: str, redis: str) -> list[Result]:
    """Return the results of all patterns of a peer, and print them."""
    environment = Environment(MODULES[name].replace("_", "-"), peer(name).packages, peer(name).extras)
    print(f"\n{name}:", ", ".join(f"{package} {version}" for package, version in environment.versions().items()))
    sides = [
        json.loads(environment.run("compare.moving.trial", name, side, COMPARE_REDIS=redis)) for side in (THEIRS, OURS)
    ]
    results = list(map(Result, patterns(name), *sides))
    for result in results:
        print(*result.lines(), sep="\n")
    return results


def shown(answers: list[str]) -> str:
    """Return answers as the page has them."""
    runs = ((answer, len(list(run))) for answer, run in itertools.groupby(answers))
    return ", ".join(f"{count}x {answer}" if count > 1 else answer for answer, count in runs)
