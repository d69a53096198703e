"""Notices: what a caller should know of, counted each time and logged once.

A limit may be weaker than it says: a decision is `degraded` (the store did not make it), a request is `skipped`
(not limited at all) or has a `shared` key, the rules are switched off (`unlimited`), or a rule that is only tried out
would have denied a request (`shadow_denied`). None of these is silent.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from contextlib import suppress
from typing import Literal, get_args

Kind = Literal["degraded", "skipped", "shared", "unlimited", "shadow_denied"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_MAX_LOGGED = 100  # reasons are few; this bounds the memory if one of them is made from what a client sends
_SAMPLES = frozenset(10**power for power in range(19))
_log = logging.getLogger("ratekeeper")


class Notices:
    """Counts notices by kind, and logs each reason once. Limiters may share one.

    There is no lock, which a signal handler or a forked child could find taken: a counter advances in one step.
    """

    def __init__(self) -> None:
        self._counters = {kind: itertools.count() for kind in KINDS}
        self._logged: dict[tuple[Kind, str], object] = {}
        self._sampled: dict[tuple[Kind, str], itertools.count[int]] = {}
        self._included: list[Notices] = []

    @property
    def counts(self) -> dict[Kind, int]:
        """How often each kind was noted, here and in what is included."""
        counts = {kind: int(repr(counter)[6:-1]) for kind, counter in self._counters.items()}  # "count(5)"
        for other in self._included:
            for kind, count in other.counts.items():
                counts[kind] += count
        return counts

    def note(
        self, kind: Kind, reason: str, how_many: int = 1, *, detail: object = "", error: Exception | None = None
    ) -> None:
        """Count, and log `reason` unless it was logged before, with the traceback of `error` if there is one.

        The reason says why and what to do, `detail` what happened.
        """
        counter = self._counters[kind]
        if how_many == 1:
            next(counter)
        else:
            deque(itertools.islice(counter, how_many), maxlen=0)
        known = (kind, reason)
        if known in self._logged or len(self._logged) > _MAX_LOGGED:
            return
        if len(self._logged) == _MAX_LOGGED:
            known, reason, detail = (kind, ""), "further reasons are counted and not logged", ""
        mine = object()
        if self._logged.setdefault(known, mine) is mine:  # one of several threads
            said = f": {detail}" if detail else ""
            with suppress(Exception):  # a log handler that raises must not keep a caller from its decision
                _log.warning("%s: %s%s (logged once; see .notices)", kind, reason, said, exc_info=error)

    def sample(self, kind: Kind, reason: str) -> None:
        """Count, and log `reason` the first, the tenth, the hundredth time and so on."""
        next(self._counters[kind])
        known = (kind, reason)
        counter = self._sampled.get(known)
        if counter is None:
            if len(self._sampled) >= _MAX_LOGGED:
                return
            counter = self._sampled.setdefault(known, itertools.count(1))
        times = next(counter)
        if times in _SAMPLES:
            with suppress(Exception):  # as in `note`
                _log.warning("%s: %s (%d so far; see .notices)", kind, reason, times)

    def shadow_denied(self, rule: str) -> None:
        """Count a request that a rule would have denied, and log some of them."""
        self.sample("shadow_denied", f"rule {rule!r} would have denied a request; take it out of shadow to enforce it")

    def no_rule_applies(self, policy: str) -> None:
        """Count a request that a policy does not limit, and log the first one."""
        self.note("unlimited", f"policy {policy!r}: no rule applies to a request: such requests are not limited")

    def include(self, other: Notices) -> None:
        """Add the counts of `other`, which logs for itself, to `counts`."""
        if other is not self and all(known is not other for known in self._included):
            self._included.append(other)

    def __repr__(self) -> str:
        return f"Notices({self.counts})"
