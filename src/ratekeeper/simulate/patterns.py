"""Traffic patterns: each generates the times of its requests, in order, in microseconds from 0.

Patterns are infinite; the caller stops taking times.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import count

from ratekeeper import rates

_LONGEST_US = 10**300  # longer than any traffic, and still a float: a rate can be too small for that
_EDGE_OF_WINDOW = 20  # boundary traffic comes within this part of a window, before and after the boundary


@dataclass(frozen=True, slots=True)
class PatternOptions:
    """What a pattern is made from: requests a second, how long it will last, the window it attacks, and the seed."""

    rate: Fraction
    duration_us: int
    window_us: int
    seed: int


def steady(options: PatternOptions) -> Iterator[int]:
    """One request after another, evenly."""
    spacing_us = rates.SECOND_US / options.rate
    return (index * spacing_us.numerator // spacing_us.denominator for index in count())


def burst(options: PatternOptions) -> Iterator[int]:
    """All requests of half a window at once."""
    every_us = max(1, options.window_us // 2)
    size = options.rate * every_us / rates.SECOND_US
    return (index * size.denominator // size.numerator * every_us for index in count())


def boundary(options: PatternOptions) -> Iterator[int]:
    """A window's worth of requests just before every second window boundary, and again just after it."""
    size = max(1, int(options.rate * options.window_us / rates.SECOND_US))
    edge_us = max(1, options.window_us // _EDGE_OF_WINDOW)
    for boundary_us in count(options.window_us, 2 * options.window_us):
        for left in range(size, 0, -1):
            yield boundary_us - -(-edge_us * left // size)  # rounded away from the boundary, so that none falls on it
        for index in range(size):
            yield boundary_us + edge_us * index // size


def poisson(options: PatternOptions) -> Iterator[int]:
    """Requests that know nothing of each other, as from many users."""
    uniform = random.Random(options.seed).random  # noqa: S311 - made-up traffic, no secrets
    mean_us = float(min(rates.SECOND_US / options.rate, Fraction(_LONGEST_US)))
    at_us = 0.0
    while True:
        at_us -= math.log(1.0 - uniform()) * mean_us
        yield int(at_us)


def flood(options: PatternOptions) -> Iterator[int]:
    """Nothing at first, and from the middle of a window on far too much."""
    begin_us = min(options.window_us // 2, options.duration_us // 4)
    return (begin_us + at_us for at_us in steady(options))


@dataclass(frozen=True, slots=True)
class Pattern:
    """A kind of traffic; unless told otherwise it brings `load` times what the rule that it aims at sustains."""

    moments: Callable[[PatternOptions], Iterator[int]]
    load: int
    description: str


PATTERNS = {
    "steady": Pattern(steady, 2, "evenly spaced requests"),
    "burst": Pattern(burst, 2, "a burst of simultaneous requests twice per window"),
    "boundary": Pattern(
        boundary, 1, "as many requests as the limit just before every second window boundary, and again just after it"
    ),
    "poisson": Pattern(poisson, 2, "requests at random times, as from many users"),
    "flood": Pattern(flood, 10, "nothing until the middle of a window, then far too many requests without a pause"),
}
