"""Counting: what a decision, and a call to the store, add to a tally."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence

from ratekeeper import forks
from ratekeeper.decision import Decision
from ratekeeper.metrics.families import BATCH_SIZE, DECISION_SECONDS, DECISIONS, DEGRADED, STORE_CALLS
from ratekeeper.metrics.tallies import Tally, ThreadTallies
from ratekeeper.observers import HitOrWait
from ratekeeper.stores.protocol import Demand

LIBRARY = "library"
"""The protocol of decisions that no protocol has brought."""
DECISION_BOUNDS = DECISION_SECONDS.bounds
DECISION_SUM = DECISION_SECONDS.width - 1
"""Where the sum of times is, after the counts of the buckets."""
_MAX_FOUND = 1_000
_BATCH_SUM = BATCH_SIZE.width - 1


def outcome_of(decision: Decision) -> str:
    """Return the outcome of a decision, as metrics call it."""
    if decision.allowed:
        return "unlimited" if decision.limit is None else "admitted"
    return "denied" if decision.limit else "blocked"


class DecisionPlaces:
    """Where the decisions by one policy are counted in one tally."""

    def __init__(self, tally: Tally, policy: str, *, names_rules: bool = True) -> None:
        """Without `names_rules`, the label of the rule is empty: clients choose the rules."""
        self.cells = tally.cells
        self.degraded = tally.at(DEGRADED, (policy,))
        # What has been found, for those who are in a hurry.
        self.admitted: dict[str, int] = {}  # by rule
        self.denied: dict[str, int] = {}
        self.times: dict[str, int] = {}  # by protocol
        self._tally = tally
        self._policy = policy
        self._names_rules = names_rules

    def of(self, decision: Decision) -> int:
        """Return where a decision is counted, by its rule and its outcome."""
        rule = decision.rule if self._names_rules else ""
        outcome = outcome_of(decision)
        at = self._at(rule, outcome)
        found = {"admitted": self.admitted, "denied": self.denied}.get(outcome)
        if found is not None and len(found) < _MAX_FOUND:
            found[rule] = at
        return at

    def of_shadow(self, rule: str) -> int:
        """Return where it is counted that a rule would have denied a request."""
        return self._at(rule, "shadow_denied")

    def of_times(self, protocol: str) -> int:
        """Return where the times of decisions that a protocol has asked for are counted."""
        at = self.times[protocol] = self._tally.at(DECISION_SECONDS, (self._policy, protocol))
        return at

    def _at(self, rule: str, outcome: str) -> int:
        return self._tally.at(DECISIONS, (self._policy, rule if self._names_rules else "", outcome))


class CallCounter:
    """Counts the calls of a store in one tally."""

    def __init__(self, tally: Tally) -> None:
        self._cells = tally.cells
        self._answered_at = tally.at(STORE_CALLS, ("ok",))
        self._failed_at = tally.at(STORE_CALLS, ("error",))
        self._batch_at = tally.at(BATCH_SIZE)

    def count(self, requests: int, answered: bool) -> None:
        """Count a call that decided these requests, or should have."""
        cells = self._cells
        cells[self._answered_at if answered else self._failed_at] += 1
        cells[self._batch_at + bisect_left(BATCH_SIZE.bounds, requests)] += 1
        cells[self._batch_at + _BATCH_SUM] += requests


class ThreadCounter:
    """Counts in the tally of whichever thread decides: an observer of limiters and of the calls of stores."""

    def __init__(self, tallies: ThreadTallies, policy: str) -> None:
        self._tallies = tallies
        self._policy = policy
        self.after_fork()
        forks.renew_in_child(self)

    def after_fork(self) -> None:
        """Forget what belongs to the parent's tallies."""
        self._local = threading.local()

    def decided(
        self, operation: HitOrWait, demands: Sequence[Demand], decision: Decision, began_ns: int, ended_ns: int
    ) -> None:
        """Count a decision, and the time of a hit; a wait sleeps."""
        del demands
        try:
            places: DecisionPlaces = self._local.places
        except AttributeError:
            places = self._local.places = DecisionPlaces(self._tallies.mine(), self._policy)
        cells = places.cells
        at = (places.admitted if decision.allowed else places.denied).get(decision.rule) if decision.limit else None
        cells[places.of(decision) if at is None else at] += 1
        if decision.degraded:
            cells[places.degraded] += 1
        for rule in decision.shadow_denied:
            cells[places.of_shadow(rule)] += 1
        if operation == "hit":
            took_ns = ended_ns - began_ns
            at = places.times.get(LIBRARY)
            if at is None:
                at = places.of_times(LIBRARY)
            cells[at + bisect_left(DECISION_BOUNDS, took_ns)] += 1
            cells[at + DECISION_SUM] += took_ns

    def called(self, requests: int, answered: bool) -> None:
        """Count a call."""
        try:
            counter: CallCounter = self._local.calls
        except AttributeError:
            counter = self._local.calls = CallCounter(self._tallies.mine())
        counter.count(requests, answered)
