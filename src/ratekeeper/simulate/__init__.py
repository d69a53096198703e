"""Traffic through rules at simulated speed, to see what each algorithm makes of it.

    >>> from ratekeeper.rules import named
    >>> rules = named("fixed-window 10/10s; sliding-window-log 10/10s")
    >>> traffic = generate("boundary", rules["fixed-window 10/10s"])
    >>> [outcome.peak.units for outcome in simulate(traffic, rules).outcomes]
    [20, 10]

Read `patterns` and `traffic` (what comes), then `run` (what the rules do with it, as plain data); `chart` shows that in
a terminal, `plot` draws it, and `command` is `ratekeeper simulate`.
"""

from ratekeeper.simulate.comparable import comparable_log
from ratekeeper.simulate.patterns import PATTERNS
from ratekeeper.simulate.run import Deviation, Peak, RuleOutcome, Shaping, Simulation, simulate
from ratekeeper.simulate.traffic import InvalidTraffic, Traffic, generate, read

__all__ = [
    "PATTERNS",
    "Deviation",
    "InvalidTraffic",
    "Peak",
    "RuleOutcome",
    "Shaping",
    "Simulation",
    "Traffic",
    "comparable_log",
    "generate",
    "read",
    "simulate",
]
