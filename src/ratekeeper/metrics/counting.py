"""Counting: what a decision, and a call to the store, add to a tally."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ratekeeper import forks
from ratekeeper.decision import Decision
from ratekeeper.metrics.families import BATCH_SIZE, DECISION_SECONDS, DECISIONS, DEGRADED, STORE_CALLS
from ratekeeper.metrics.tallies import Tally, ThreadTallies
from ratekeeper.observers import HitOrWait
from ratekeeper.stores.protocol import Demand

LIBRARY = "library"
"""The protocol of decisions that no protocol has brought."""
_Place = tuple[str, bool | None, bool]
"""A rule, whether it allowed the request (None: it is in shadow), and whether it has no limit."""
_MAX_PLACES = 4_000  # that are remembered; tallies know them all
_SECONDS_SUM = DECISION_SECONDS.width - 1
_BATCH_SUM = BATCH_SIZE.width - 1


def outcome_of(decision: Decision) -> str:
    """Return the outcome of a decision, as metrics call it."""
    if decision.allowed:
        return "unlimited" if decision.limit is None else "admitted"
    return "denied" if decision.limit else "blocked"


class DecisionCounter:
    """Counts the decisions by one policy in one tally."""

    def __init__(self, tally: Tally, policy: str, *, names_rules: bool = True) -> None:
        """Without `names_rules`, the label of the rule is empty: clients choose the rules."""
        self._tally = tally
        self._cells = tally.cells
        self._policy = policy
        self._names_rules = names_rules
        self._degraded_at = tally.at(DEGRADED, (policy,))
        self._places: dict[_Place, int] = {}
        self._places_of_times: dict[str, int] = {}  # by protocol
        self._bucket = DECISION_SECONDS.bucket

    def count(self, decision: Decision, protocol: str, took_ns: int | None) -> None:
        """Count a decision, and the time that it took if that was not spent waiting."""
        cells = self._cells
        allowed, limit, _, _, _, _, rule, _, degraded, shadow_denied = decision
        place: _Place = (rule if self._names_rules else "", allowed, not limit)
        at = self._places.get(place)
        if at is None:
            at = self._place(place, outcome_of(decision))
        cells[at] += 1
        if degraded:
            cells[self._degraded_at] += 1
        for name in shadow_denied:
            place = (name if self._names_rules else "", None, False)
            at = self._places.get(place)
            if at is None:
                at = self._place(place, "shadow_denied")
            cells[at] += 1
        if took_ns is not None:
            at = self._places_of_times.get(protocol)
            if at is None:
                at = self._tally.at(DECISION_SECONDS, (self._policy, protocol))
                self._places_of_times[protocol] = at
            cells[at + self._bucket(took_ns)] += 1
            cells[at + _SECONDS_SUM] += took_ns

    def _place(self, place: _Place, outcome: str) -> int:
        if len(self._places) >= _MAX_PLACES:
            self._places.clear()
        at = self._places[place] = self._tally.at(DECISIONS, (self._policy, place[0], outcome))
        return at


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
        cells[self._batch_at + BATCH_SIZE.bucket(requests)] += 1
        cells[self._batch_at + _BATCH_SUM] += requests


class ThreadCounter:
    """Counts in the tally of whichever thread decides: an observer of limiters and of the calls of stores."""

    def __init__(self, tallies: ThreadTallies, policy: str) -> None:
        self._tallies = tallies
        self._policy = policy
        self.after_fork()
        forks.renew_in_child(self)

    def after_fork(self) -> None:
        """Forget the counters of the parent's tallies."""
        self._local = threading.local()

    def decided(
        self, operation: HitOrWait, demands: Sequence[Demand], decision: Decision, began_ns: int, ended_ns: int
    ) -> None:
        """Count a decision."""
        del demands
        try:
            counter: DecisionCounter = self._local.decisions
        except AttributeError:
            counter = self._local.decisions = DecisionCounter(self._tallies.mine(), self._policy)
        counter.count(decision, LIBRARY, ended_ns - began_ns if operation == "hit" else None)

    def called(self, requests: int, answered: bool) -> None:
        """Count a call."""
        try:
            counter: CallCounter = self._local.calls
        except AttributeError:
            counter = self._local.calls = CallCounter(self._tallies.mine())
        counter.count(requests, answered)
