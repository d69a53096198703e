"""When a task over its limit gets its turn: what the integrations with task queues share.

A task queue runs a postponed task again at a given time. Tasks that are denied together must not come back together, at
the first moment when one of them is admitted: nearly all of them would be denied again, and again. So each takes a
place in a line: a bucket in the same store that is charged for all of them, and drains at the rate of the rule that
denied them. When its turn has come, a task asks the limit again, which alone decides.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ratekeeper import arguments
from ratekeeper.algorithms import LeakyBucket, Rule
from ratekeeper.decision import Decision
from ratekeeper.errors import InvalidRule, RateLimited
from ratekeeper.flows import Flow
from ratekeeper.http.client_keys import digest
from ratekeeper.limiter import AsyncLimiter, Limiter
from ratekeeper.rates import show
from ratekeeper.rules import Rules
from ratekeeper.ruleset import Costs, Keys
from ratekeeper.stores import Store

TaskKey = Keys | Callable[..., Keys] | None
TaskCost = Costs | Callable[..., Costs]

_MAX_LINES = 100  # of rules that may change


class Postponed(NamedTuple):
    """A task that is not admitted now."""

    seconds: float
    """How long until its turn."""
    error: RateLimited
    """Why."""


class TaskLimit:
    """The limit of a task."""

    def __init__(
        self,
        limit: Rules | Limiter | AsyncLimiter,
        store: str | Store | None,
        *,
        kind: type[Limiter | AsyncLimiter],
        key: TaskKey,
        cost: TaskCost,
        enabled: bool,
    ) -> None:
        if isinstance(limit, Limiter | AsyncLimiter):
            if not isinstance(limit, kind):
                raise TypeError(f"limit must be rules or of type {kind.__name__} here, not {show(limit)}")
            if store is not None:
                raise InvalidRule("store cannot be combined with a limiter, which already has one")
            if enabled is not True:
                raise InvalidRule("enabled belongs to the limiter here: Limiter(..., enabled=False)")
            limiter = limit
        else:
            arguments.check_switch("enabled", enabled)
            if store is None and enabled:
                raise InvalidRule(
                    "rules need a store that all workers share, such as store='redis://localhost' "
                    "('memory://' would count in each process by itself)"
                )
            limiter = kind(limit, store if store is not None and enabled else "memory://", enabled=enabled)
        for name, rule in limiter.rules.items():
            if rule.shapes:
                steady = LeakyBucket(1, rule.per_second).text
                raise InvalidRule(f"rule {name!r} shapes, but tasks are postponed, not held; write {steady!r} instead")
        if not callable(cost):
            arguments.by_name("cost", cost, list(limiter.rules), arguments.check_cost)
        self._limiter: Any = limiter
        self._key = key
        self._cost = cost
        self._line = functools.lru_cache(_MAX_LINES)(self._new_line)

    def ask(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Flow[Postponed | None]:
        """Ask for a task; None means that it is admitted. Raise RateLimited if it never will be."""
        key = self._key(*args, **kwargs) if callable(self._key) else self._key
        if key is None:
            key = f"task:{name}"
        cost = self._cost(*args, **kwargs) if callable(self._cost) else self._cost
        decision: Decision = yield self._limiter.hit(key, cost)
        if decision.allowed:
            return None
        error = RateLimited(decision)
        if decision.retry_after == math.inf:
            raise error
        seconds = decision.retry_after
        rule = self._limiter.rules.get(decision.rule)
        if rule is not None:  # it may have changed since
            own_key: Any = key.get(decision.rule, sorted(key.items())) if isinstance(key, Mapping) else key
            own_cost = cost.get(decision.rule, 1) if isinstance(cost, Mapping) else cost
            line: Decision = yield self._line(rule).charge(digest((decision.rule, own_key)), own_cost)
            seconds += max(0.0, line.reset_after - float(own_cost / rule.per_second))  # without its own part
        return Postponed(_not_before(seconds), error)

    def _new_line(self, rule: Rule) -> Any:
        return self._limiter.beside(LeakyBucket(rule.limit, rule.per_second), "line")


def _not_before(seconds: float) -> float:
    """Return whole milliseconds, rounded up, and one more, because task queues round a time to the nearest."""
    return (-(-round(seconds * 1_000_000) // 1000) + 1) / 1000


def check_task(function: Any, *, is_async: bool) -> None:
    """Raise unless a function is one that the task queue can run."""
    title = getattr(function, "__qualname__", None) or show(function)
    if inspect.iscoroutinefunction(function) is not is_async:
        raise TypeError(f"{title} must {'' if is_async else 'not '}be a coroutine function, to run as a task here")
