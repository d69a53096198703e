"""Traffic to simulate: patterns that are made up, the same for the same seed, or timestamps from a file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice, takewhile
from typing import TypeVar

from ratekeeper import rates
from ratekeeper.algorithms import Rule
from ratekeeper.errors import RatekeeperError
from ratekeeper.simulate.comparable import comparable_log
from ratekeeper.simulate.patterns import PATTERNS, Plan

MAX_REQUESTS = 2_000_000
DEFAULT_WINDOWS = 4  # how long made-up traffic lasts
_LONGEST_LINE = 10_000
_LINE = re.compile(r"([0-9]{1,11})(?:\.([0-9]*))?(?:(?:\s*,\s*|\s+)([0-9]{1,13}))?")
_Request = TypeVar("_Request")


class InvalidTraffic(RatekeeperError, ValueError):
    """Traffic that cannot be simulated; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests in the order of their time: when each comes, and what it costs."""

    name: str
    description: str
    at_us: Sequence[int]
    costs: Sequence[int]
    start_us: int
    end_us: int

    @property
    def title(self) -> str:
        """What comes, in a few words."""
        requests = f"{len(self.at_us):,} request{'' if len(self.at_us) == 1 else 's'}"
        return f"{self.name} traffic, {requests} in {rates.seconds(round(self.end_us - self.start_us, -3))} s"


def generate(
    name: str,
    target: Rule,
    *,
    rate: rates.Rate | None = None,
    duration: rates.Window | None = None,
    seed: int = 0,
    cost: int = 1,
) -> Traffic:
    """Make up the traffic of a pattern, aimed at the limit and window of `target`; the windows begin at time 0.

    The rate is in requests a second; without it, it follows from the target. The duration is four windows unless given.
    """
    if name not in PATTERNS:
        raise InvalidTraffic(f"unknown traffic {rates.show(name)}; use {', '.join(PATTERNS)}")
    pattern = PATTERNS[name]
    cost = rates.limit(cost, "cost")
    log = comparable_log(target)
    window_us = log.window_us
    sustained = Fraction(log.limit * rates.SECOND_US, window_us * cost)
    requests_per_second = pattern.load * sustained if rate is None else rates.rate(rate)
    duration_us = DEFAULT_WINDOWS * window_us if duration is None else rates.window_us(duration, "duration")
    if requests_per_second * duration_us > 2 * MAX_REQUESTS * rates.SECOND_US:  # do not even begin
        raise _too_many(f"{name} traffic")
    moments = pattern.moments(Plan(requests_per_second, duration_us, window_us, seed))
    at_us = _bounded(takewhile(lambda at: at < duration_us, moments), f"{name} traffic")
    if not at_us:
        raise InvalidTraffic(
            f"{name} traffic has no request within {rates.seconds(duration_us)} s (the window that it aims at has "
            f"{rates.seconds(window_us)} s); raise the rate or the duration"
        )
    return Traffic(name, pattern.description, at_us, [cost] * len(at_us), 0, duration_us)


def read(path: str, *, cost: int = 1) -> Traffic:
    """Read traffic from a file: a line a request, its time in seconds and, if it is not `cost`, what it costs.

    The lines may be in any order. Blank lines and what follows a # are skipped; a time is cut to whole microseconds.
    """
    cost = rates.limit(cost, "cost")
    try:
        with open(path, encoding="utf-8-sig", errors="replace") as lines:  # noqa: PTH123 - a path such as /dev/stdin
            bounded_lines = iter(lambda: lines.readline(_LONGEST_LINE), "")
            requests = _bounded(_requests(bounded_lines, path, cost), f"file {rates.show(path)}")
    except OSError as error:
        raise InvalidTraffic(f"cannot read file {rates.show(path)}: {error.strerror}") from None
    if not requests:
        raise InvalidTraffic(f"file {rates.show(path)} has no timestamp in it")
    requests.sort(key=lambda request: request[0])
    at_us = [at for at, _ in requests]
    costs = [units for _, units in requests]
    return Traffic("file", f"the requests of file {rates.show(path)}", at_us, costs, at_us[0], at_us[-1] + 1)


def _requests(lines: Iterable[str], path: str, default_cost: int) -> Iterator[tuple[int, int]]:
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        match = _LINE.fullmatch(text)
        cost = int(match[3] or default_cost) if match else 0
        if match is None or not 1 <= cost <= rates.MAX_LIMIT:
            raise InvalidTraffic(
                f"file {rates.show(path)}, line {number}: cannot read {rates.show(text)}; write a time in seconds "
                f"and, if you like, a cost from 1 to {rates.MAX_LIMIT}, such as '12.5' or '12.5 3'"
            )
        fraction = (match[2] or "").ljust(6, "0")[:6]
        yield int(match[1]) * rates.SECOND_US + int(fraction), cost


def _bounded(requests: Iterable[_Request], what: str) -> list[_Request]:
    result = list(islice(requests, MAX_REQUESTS + 1))
    if len(result) > MAX_REQUESTS:
        raise _too_many(what)
    return result


def _too_many(what: str) -> InvalidTraffic:
    return InvalidTraffic(f"{what} has more than {MAX_REQUESTS:,} requests, which is the most that can be simulated")
