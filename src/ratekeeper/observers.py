"""Observers: they are told of every decision of a limiter, such as those that count for metrics."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, Protocol

from ratekeeper.clock import stopwatch
from ratekeeper.decision import Decision
from ratekeeper.stores.protocol import Binding, Demand, QuickHit

HitOrWait = Literal["hit", "wait"]

_new = tuple.__new__  # a named tuple's own constructor takes twice as long
_FAILED = "an observer raised an exception; the decision is unaffected"
_log = logging.getLogger("ratekeeper")


class Observer(Protocol):
    """Is told of decisions, by the thread or the task that asked for them; it should take no time."""

    def decided(
        self, operation: HitOrWait, demands: Sequence[Demand], decision: Decision, began_ns: int, ended_ns: int
    ) -> object:
        """Note the decision on a hit or a wait, and when the call began and ended on the monotonic clock.

        `demands` are what was asked of the store: empty if no rule applies. The rules of a limiter that is switched
        off do not limit the request.
        """


def tell(
    observers: Sequence[Observer],
    operation: HitOrWait,
    demands: Sequence[Demand],
    decision: Decision,
    began_ns: int,
) -> None:
    """Tell observers of a decision that was made just now; log what they raise."""
    ended_ns = stopwatch()
    began_ns = began_ns or ended_ns  # nobody took the time of a call that began before it was observed
    try:
        for observer in observers:
            observer.decided(operation, demands, decision, began_ns, ended_ns)
    except Exception:  # noqa: BLE001
        _log.exception(_FAILED)


def observed(quick_hit: QuickHit, operation: HitOrWait, binding: Binding, observers: Sequence[Observer]) -> QuickHit:
    """Return a quick hit that tells observers. A wait goes on after a denial, which is not yet its decision."""
    is_wait = operation == "wait"
    decided = observers[0].decided if len(observers) == 1 else partial(_tell_each, observers)

    def hit(key: Any, cost: Any) -> Decision | None:
        began_ns = stopwatch()
        decision = quick_hit(key, cost)
        if decision is None or (is_wait and not decision.allowed):
            return decision
        ended_ns = stopwatch()
        try:
            decided(operation, (_new(Demand, (binding, key, cost, "hit", True, None)),), decision, began_ns, ended_ns)
        except Exception:  # noqa: BLE001
            _log.exception(_FAILED)
        return decision

    return hit


def _tell_each(observers: Sequence[Observer], *decided: Any) -> None:
    for observer in observers:
        observer.decided(*decided)
