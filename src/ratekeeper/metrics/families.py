"""What is counted: the names of the metrics, their labels, and how the counts of several writers become one figure."""

from __future__ import annotations

from typing import Literal, NamedTuple

Labels = tuple[str, ...]
MetricKind = Literal["counter", "gauge", "histogram"]


class Family(NamedTuple):
    """A metric. Its values are integers: of a histogram, a count for each bucket, and the sum."""

    name: str
    kind: MetricKind
    help: str
    labels: Labels = ()
    bounds: tuple[int, ...] = ()
    """The upper bounds of a histogram's buckets; the last bucket has none."""
    unit: int = 1
    """What the bounds and the sum are divided by when they are shown."""
    shows_least: bool = False
    """Whether the values of several writers are shown as the least of them; otherwise, as their sum."""

    @property
    def width(self) -> int:
        """How many integers a series has."""
        return len(self.bounds) + 2 if self.kind == "histogram" else 1


class Sample(NamedTuple):
    """The values of one series now."""

    family: Family
    labels: Labels
    values: list[int]


_NANOSECONDS = 1_000_000_000
_OUTCOMES = "admitted, denied, blocked or unlimited; shadow_denied for each rule that was only tried out"

DECISIONS = Family(
    "ratekeeper_decisions_total",
    "counter",
    f"Decisions by policy, binding rule and outcome: {_OUTCOMES}.",
    ("policy", "rule", "outcome"),
)
DEGRADED = Family(
    "ratekeeper_degraded_total", "counter", "Decisions that were made without the store, as on_error says.", ("policy",)
)
REMEMBERED_DENIALS = Family(
    "ratekeeper_remembered_denials_total", "counter", "Denials that still held and were repeated without the store."
)
DECISION_SECONDS = Family(
    "ratekeeper_decision_seconds",
    "histogram",
    "The time that a hit took, with the store.",
    ("policy", "protocol"),
    tuple(
        microseconds * 1000
        for microseconds in (
            *(25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 20_000),
            *(50_000, 100_000, 250_000, 500_000, 1_000_000),
        )
    ),
    _NANOSECONDS,
)
STORE_UP = Family(
    "ratekeeper_store_up", "gauge", "Whether the store decides (1), or a process without it (0).", shows_least=True
)
STORE_CALLS = Family(
    "ratekeeper_store_calls_total",
    "counter",
    "Calls to the server or the file of the store: ok, or error if it gave no decision.",
    ("result",),
)
BATCH_SIZE = Family(
    "ratekeeper_batch_size",
    "histogram",
    "Requests that were decided by one call.",
    (),
    (1, 2, 4, 8, 16, 32, 64, 128),
)
KEYS = Family("ratekeeper_keys", "gauge", "Keys that a store in memory holds.")
EVICTIONS = Family("ratekeeper_evictions_total", "counter", "Keys that a store in memory evicted because it was full.")
WAITING = Family("ratekeeper_waiting", "gauge", "Callers that wait for their turn or their departure.")
POLICIES_VERSION = Family(
    "ratekeeper_policies_version", "gauge", "The version of the policies in force.", shows_least=True
)
POLICIES_RELOADS = Family(
    "ratekeeper_policies_reloads_total", "counter", "Reloads of the policies, by result.", ("result",)
)
LIMIT = Family(
    "ratekeeper_limit",
    "gauge",
    "The limit or capacity of a rule, without overrides; 0 if it is blocked.",
    ("policy", "rule"),
)

FAMILIES = (
    *(DECISIONS, DEGRADED, REMEMBERED_DENIALS, DECISION_SECONDS, STORE_UP, STORE_CALLS, BATCH_SIZE),
    *(KEYS, EVICTIONS, WAITING, POLICIES_VERSION, POLICIES_RELOADS, LIMIT),
)
BY_NAME = {family.name: family for family in FAMILIES}
MORE = "(more)"
"""Stands for a label's value where there were too many different ones; no policy or rule has this name."""
