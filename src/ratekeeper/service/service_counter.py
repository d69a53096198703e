"""What a decision adds to the live chart, to the figures and to the top talkers of the service."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

from ratekeeper.decision import Decision
from ratekeeper.metrics.counting import DECISION_BOUNDS, DECISION_SUM, DecisionPlaces
from ratekeeper.observers import HitOrWait
from ratekeeper.service.live import ADMITTED, DEGRADED, DENIED, SECOND_NS, Live
from ratekeeper.service.talkers import TalkerLabels, Talkers
from ratekeeper.stores.protocol import Demand

PROTOCOL: ContextVar[str] = ContextVar("protocol", default="http")
"""What has asked for the decisions of this task, for `ratekeeper_decision_seconds`."""


class CountedNow:
    """What all decisions of this second are counted in."""

    __slots__ = ("_live", "_talkers", "admitted", "denied", "ends_ns", "live_cells")

    def __init__(self, live: Live, talkers: Talkers) -> None:
        self._live = live
        self._talkers = talkers
        self.live_cells = live.cells
        self.admitted, self.denied = talkers.admitted, talkers.denied
        self.ends_ns = 0

    def begin(self, now_ns: int) -> None:
        """Begin another second, and perhaps another minute."""
        self._live.begin(now_ns)
        self._talkers.begin(now_ns)
        self.admitted, self.denied = self._talkers.admitted, self._talkers.denied
        self.ends_ns = (now_ns // SECOND_NS + 1) * SECOND_NS


class LiveCounter:
    """Counts decisions for the live chart only."""

    def __init__(self, now: CountedNow) -> None:
        self._now = now

    def decided(
        self, operation: HitOrWait, demands: Sequence[Demand], decision: Decision, began_ns: int, ended_ns: int
    ) -> None:
        """Count a decision."""
        del operation, demands, began_ns
        now = self._now
        if ended_ns >= now.ends_ns:
            now.begin(ended_ns)
        now.live_cells[ADMITTED if decision.allowed else DENIED] += 1
        if decision.degraded:
            now.live_cells[DEGRADED] += 1


class ServiceCounter:
    """Counts the decisions by one policy, or by clients' rules, whatever has asked for them."""

    __slots__ = ("_labels", "_now", "_places", "_policy")

    def __init__(self, policy: str, now: CountedNow, places: DecisionPlaces) -> None:
        self._policy = policy
        self._now = now
        self._places = places
        self._labels = TalkerLabels(policy)

    # All in one, because it is on the way of every decision of the service: several calls take a third longer.
    def decided(
        self, operation: HitOrWait, demands: Sequence[Demand], decision: Decision, began_ns: int, ended_ns: int
    ) -> None:
        """Count a decision, the time of a hit, and the keys that it admitted or denied."""
        now, policy, places = self._now, self._policy, self._places
        if ended_ns >= now.ends_ns:
            now.begin(ended_ns)
        allowed, limit, _, _, _, _, rule, _, degraded, shadow_denied = decision
        now.live_cells[ADMITTED if allowed else DENIED] += 1
        if degraded:
            now.live_cells[DEGRADED] += 1

        cells: Any = places.cells
        at = (places.admitted if allowed else places.denied).get(rule if policy else "") if limit else None
        cells[places.of(decision) if at is None else at] += 1
        if degraded:
            cells[places.degraded] += 1
        for name in shadow_denied:
            cells[places.of_shadow(name)] += 1
        if operation == "hit":
            took_ns = ended_ns - began_ns
            protocol = PROTOCOL.get()
            at = places.times.get(protocol)
            if at is None:
                at = places.of_times(protocol)
            cells[at + bisect_left(DECISION_BOUNDS, took_ns)] += 1
            cells[at + DECISION_SUM] += took_ns

        talkers = now.admitted if allowed else now.denied
        weights = talkers.weights
        for binding, key, cost, _, binds, _ in demands:
            if binds if allowed else binding.name == rule:
                talker = self._labels[binding.name if policy else binding.space[2]], key
                weight = weights.get(talker)
                if weight is None:
                    talkers.add(talker, cost)
                else:
                    weights[talker] = weight + cost
