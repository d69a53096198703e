"""A sample of the denials for the log, with hashes of keys."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from ratekeeper.decision import Decision
from ratekeeper.observers import HitOrWait
from ratekeeper.service.key_hashes import hashed
from ratekeeper.stores.protocol import Demand

PAUSE_NS = 10_000_000_000  # from one line about a rule to the next
MAX_KNOWN = 10_000
_log = logging.getLogger("ratekeeper.denials")


class DenialLog:
    """Logs the first denial by each rule, and then at most one in ten seconds, with the number of those in between.

    Rules that clients send are logged as one.
    """

    def __init__(self, policy: str) -> None:
        self._policy = policy
        self._next_ns: dict[str, int] = {}  # by rule
        self._between: dict[str, int] = {}

    def decided(
        self, operation: HitOrWait, demands: Sequence[Demand], decision: Decision, began_ns: int, ended_ns: int
    ) -> None:
        """Log a denial, if it is time for it."""
        del operation, began_ns
        if decision.allowed:
            return
        rule = decision.rule if self._policy else ""
        if ended_ns < self._next_ns.get(rule, 0):
            self._between[rule] += 1
            return
        if len(self._next_ns) >= MAX_KNOWN:
            self._next_ns.clear()
            self._between.clear()
        denied = [demand for demand in demands if demand.binding.name == decision.rule]
        never = decision.retry_after == math.inf
        fields = {
            "policy": self._policy,
            "rule": rule,
            "key": hashed(denied[0].key) if denied else None,
            "cost": denied[0].cost if denied else None,
            "retry_after": None if never else round(decision.retry_after, 6),
            "denied_since_last_line": self._between.get(rule, 0),
        }
        self._next_ns[rule], self._between[rule] = ended_ns + PAUSE_NS, 0
        _log.info("denied", extra={"fields": fields})
