"""What rules do with traffic: the outcome of every request, and figures that distinguish the algorithms.

It only computes, in integer microseconds and with the rules' own steps. The same traffic and rules always give the same
result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from ratekeeper.algorithms import Rule, SlidingWindowLog
from ratekeeper.rules import Rules, named
from ratekeeper.simulate.comparable import comparable_log
from ratekeeper.simulate.traffic import Traffic

SCHEMA = 1  # the version of what `Simulation.to_json` returns; changes when a reader would have to
_REQUESTS_BETWEEN_REPORTS = 5_000

OnProgress = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Peak:
    """The most units that passed in any one window, and when that window began (None: nothing passed)."""

    units: int
    from_us: int | None


@dataclass(frozen=True, slots=True)
class Deviation:
    """The decisions that an exact sliding log with the same limit and window would have made differently.

    The log judges each decision by what the rule itself had let in until then: `over` were admitted although the window
    before them was full, `under` were denied although it had room. `percent` is their share of all decisions.
    """

    over: int
    under: int
    percent: float


@dataclass(frozen=True, slots=True)
class Shaping:
    """How shaped requests departed: the closest that two came (None: there were no two), and the longest delay."""

    closest_us: int | None
    longest_delay_us: int


@dataclass(frozen=True, slots=True)
class RuleOutcome:
    """What one rule did with the traffic.

    `departures_us` has an entry for each request: when it passed (later than it came only when shaped), or None when it
    was denied. The peak counts units as they passed, in the window of `comparable_log`.
    """

    name: str
    rule: Rule
    window_us: int
    departures_us: Sequence[int | None]
    admitted: int
    admitted_units: int
    peak: Peak
    deviation: Deviation
    shaping: Shaping | None


@dataclass(frozen=True, slots=True)
class Simulation:
    """Traffic, and what each rule did with it."""

    traffic: Traffic
    outcomes: tuple[RuleOutcome, ...]

    @property
    def end_us(self) -> int:
        """When the traffic has ended and the last shaped request has departed."""
        return max([self.traffic.end_us, *(_last(outcome.departures_us) + 1 for outcome in self.outcomes)])

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data, times in microseconds; requests and departures are parallel lists."""
        traffic = self.traffic
        return {
            "schema": SCHEMA,
            "traffic": {
                "name": traffic.name,
                "description": traffic.description,
                "start_us": traffic.start_us,
                "end_us": traffic.end_us,
            },
            "requests": {"at_us": list(traffic.at_us), "cost": list(traffic.costs)},
            "rules": [_outcome_json(outcome, traffic) for outcome in self.outcomes],
        }


def simulate(traffic: Traffic, rules: Rules, on_progress: OnProgress | None = None) -> Simulation:
    """Run traffic through each of the rules, each with a fresh key of its own.

    `on_progress` is called from time to time with the number of decisions made since the last call.
    """
    return Simulation(traffic, tuple(_run(name, rule, traffic, on_progress) for name, rule in named(rules).items()))


def peak(departures_us: Sequence[int], costs: Sequence[int], window_us: int) -> Peak:
    """Find the most units that departed in any window of this length; the departures are in order.

    A window ends before the moment that is `window_us` after its first: what is exactly that far apart is not in one.
    """
    most = Peak(0, None)
    units = 0
    first = 0
    for departure_us, cost in zip(departures_us, costs, strict=True):
        units += cost
        while departures_us[first] <= departure_us - window_us:
            units -= costs[first]
            first += 1
        if units > most.units:
            most = Peak(units, departures_us[first])
    return most


def _run(name: str, rule: Rule, traffic: Traffic, on_progress: OnProgress | None) -> RuleOutcome:
    log = comparable_log(rule)
    departures_us, over, under = _decide(rule, log, traffic, on_progress)
    admitted_us = [at_us for at_us in departures_us if at_us is not None]
    costs = [cost for at_us, cost in zip(departures_us, traffic.costs, strict=True) if at_us is not None]
    return RuleOutcome(
        name=name,
        rule=rule,
        window_us=log.window_us,
        departures_us=departures_us,
        admitted=len(admitted_us),
        admitted_units=sum(costs),
        peak=peak(admitted_us, costs, log.window_us),
        deviation=Deviation(over, under, 100 * (over + under) / max(1, len(departures_us))),
        shaping=_shaping(traffic, departures_us, admitted_us) if rule.shapes else None,
    )


def _decide(
    rule: Rule, log: SlidingWindowLog, traffic: Traffic, on_progress: OnProgress | None
) -> tuple[list[int | None], int, int]:
    """Return each request's departure, and how many of those admitted and of those denied the log sees otherwise."""
    departures_us: list[int | None] = []
    over = under = 0
    state: Any = None
    passed: Any = None  # what the rule has let in, as the log remembers it
    for begin in range(0, len(traffic.at_us), _REQUESTS_BETWEEN_REPORTS):
        part = slice(begin, begin + _REQUESTS_BETWEEN_REPORTS)
        for at_us, cost in zip(traffic.at_us[part], traffic.costs[part], strict=True):
            state, allowed, _, _, _, delay_us = rule.decide(state, at_us, cost, True)
            _, log_allows, _, _, _, _ = log.decide(passed, at_us, cost, False)
            if allowed:
                passed = log.charge(passed, at_us, cost)
                departures_us.append(at_us + delay_us)
                over += not log_allows
            else:
                departures_us.append(None)
                under += log_allows
        if on_progress is not None:
            on_progress(len(traffic.at_us[part]))
    return departures_us, over, under


def _shaping(traffic: Traffic, departures_us: list[int | None], admitted_us: list[int]) -> Shaping:
    gaps_us = (later - sooner for sooner, later in pairwise(admitted_us))
    delays_us = (
        departure_us - at_us
        for at_us, departure_us in zip(traffic.at_us, departures_us, strict=True)
        if departure_us is not None
    )
    return Shaping(min(gaps_us, default=None), max(delays_us, default=0))


def _last(departures_us: Sequence[int | None]) -> int:
    return next((at_us for at_us in reversed(departures_us) if at_us is not None), 0)


def _outcome_json(outcome: RuleOutcome, traffic: Traffic) -> dict[str, Any]:
    offered, offered_units = len(traffic.costs), sum(traffic.costs)
    return {
        "name": outcome.name,
        "text": outcome.rule.text,
        "algorithm": outcome.rule.algorithm,
        "limit": outcome.rule.limit,
        "window_us": outcome.window_us,
        "departures_us": list(outcome.departures_us),
        "offered": {"requests": offered, "units": offered_units},
        "admitted": {"requests": outcome.admitted, "units": outcome.admitted_units},
        "denied": {
            "requests": offered - outcome.admitted,
            "units": offered_units - outcome.admitted_units,
        },
        "peak": asdict(outcome.peak),
        "deviation": asdict(outcome.deviation),
        "shaping": asdict(outcome.shaping) if outcome.shaping else None,
    }
