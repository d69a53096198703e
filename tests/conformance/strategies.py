"""Generated rules and traces: odd rates, windows of microseconds, large limits, clocks that jump and step back."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, NamedTuple

from hypothesis import strategies as st

from ratekeeper import algorithms

ALGORITHMS = tuple(
    f"{algorithm.algorithm} {variant.mode}".strip()
    for algorithm in algorithms.ALGORITHMS
    for variant in algorithm.variants
)
BUCKETS = ("token-bucket", "leaky-bucket policing", "leaky-bucket shaping")

START_US = 1_700_000_000_000_000
DAY_US = 86_400_000_000

LIMITS = st.sampled_from([1, 2, 3, 4, 5, 7, 10, 10, 12, 97, 100, 1_000, 999_983, 1_000_000_000]) | st.integers(1, 20)
WINDOWS_US = (
    st.sampled_from([1, 2, 3, 5, 7, 13, 1_000, 999_983, 1_000_000, 1_500_000, 60_000_000, 3_600_000_000, 30 * DAY_US])
    | st.integers(1, 50)
    | st.integers(1, 100_000_000)
)
RATES = st.tuples(
    st.sampled_from([1, 2, 3, 7, 10, 25, 100, 7_919, 999_983, 1_000_000, 2_500_000, 33_333_333, 1_000_000_000]),
    st.sampled_from([1, 1, 2, 3, 7, 13, 60, 3_600, 86_400]),
)
OPERATIONS = st.sampled_from(["hit"] * 9 + ["peek"] * 2 + ["charge"] * 2 + ["refund"] * 2 + ["give_back", "reset"])


class Step(NamedTuple):
    """After a while (which may be negative), do something."""

    wait: int | str  # microseconds, or "retry" or "reset": when the last answer said, and one microsecond before
    operation: str
    cost: int


def span_us(rule: dict[str, Any]) -> int:
    """Return the window, or how long a full bucket takes to drain."""
    if "window_us" in rule:
        return rule["window_us"]
    return math.ceil(rule["capacity"] / (Fraction(*rule["rate"]) / 1_000_000))


def limit_of(rule: dict[str, Any]) -> int:
    return rule.get("limit") or rule["capacity"]


@st.composite
def rules(draw, algorithm=None):
    """Draw a rule as the vectors write it."""
    algorithm = algorithm or draw(st.sampled_from(ALGORITHMS))
    name, _, mode = algorithm.partition(" ")
    if not any(field.kind == "rate" for field in algorithms.BY_NAME[name].fields):
        return {"algorithm": algorithm, "limit": draw(LIMITS), "window_us": draw(WINDOWS_US)}
    rule = {"algorithm": name, "capacity": draw(LIMITS), "rate": list(draw(RATES))}
    if span_us(rule) > 30 * DAY_US:
        rule["capacity"] = 10
    return rule | {"mode": mode} if mode else rule


def costs(limit, most=None):
    edges = [cost for cost in (1, 1, 1, 2, limit // 2, limit - 1, limit, limit + 1) if 1 <= cost <= (most or cost)]
    return st.sampled_from(edges) | st.integers(1, min(limit + 2, most or limit + 2))


def waits(span, limit, *, back=True):
    """Draw how far the clock moves: not at all, a little, about one unit's worth, about a window, or very far."""
    unit = span // limit
    ahead = [0, 0, 0, 1, 1, 2, unit, unit + 1, span // 3, span - 1, span, span + 1, 2 * span - 1, 2 * span, 3 * span]
    far = [min(1_000 * span, 10**14)]
    behind = [-1, -2, -unit, -span // 3, 1 - span, -span, -span - 1, -2 * span, -3 * span - 1]
    named = st.sampled_from(["retry", "retry - 1", "reset", "reset - 1"])
    if back:
        return st.sampled_from(ahead * 2 + far + behind) | named | st.integers(-span, 2 * span)
    return st.sampled_from(ahead * 2 + far) | named | st.integers(0, 2 * span)


@st.composite
def traces(draw, algorithm=None, *, back=True, operations=OPERATIONS, min_size=3, max_size=30):
    """Draw a rule, a first moment, and steps."""
    rule = draw(rules(algorithm))
    span, limit = span_us(rule), limit_of(rule)
    start = START_US + draw(st.integers(0, 2 * span))
    step = st.builds(Step, waits(span, limit, back=back), operations, costs(limit))
    return rule, start, draw(st.lists(step, min_size=min_size, max_size=max_size))
