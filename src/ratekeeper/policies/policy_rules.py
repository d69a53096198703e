"""The rules of a limiter by policy, which may change while calls run.

Each call reads the version in force once and is decided by it to its end: its demands say which version made them.
"""

from __future__ import annotations

import contextlib
import math
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

from ratekeeper import arguments
from ratekeeper.algorithms import Rule
from ratekeeper.clock import Clock
from ratekeeper.decision import NO_LAYERS, NO_LIMIT, Decision
from ratekeeper.enforcement import Enforcement
from ratekeeper.policies.model import NO_OPTIONS, Policy, PolicyStoreOptions, stored_name
from ratekeeper.policies.runtime_overrides import RuntimeOverride
from ratekeeper.policies.versions import Applied, Bound, PreparedRequest, Version
from ratekeeper.rules import share_of
from ratekeeper.ruleset import Costs, Shadow, fold, from_answer, shadow_denied
from ratekeeper.stores.protocol import Binding, Demand, Inspection, Operation, Outcome


class PolicyRules:
    """The rules of one limiter: the version in force, and the next one."""

    may_shadow = may_lease = True  # a later version may

    def __init__(  # noqa: PLR0917 - Policies makes it
        self,
        policy: Policy,
        prefix: str,
        runtime: Sequence[RuntimeOverride],
        clock: Clock,
        store_options: PolicyStoreOptions = NO_OPTIONS,
        shadow: Shadow = False,
    ) -> None:
        arguments.check_shadow(shadow, [rule.name for rule in policy.rules])
        self.own_shadow: Shadow = shadow if isinstance(shadow, bool) else frozenset(shadow)
        """The rules that are only tried out in this limiter, whatever the file says."""
        self._prefix = prefix
        self._clock = clock
        self._store_options = store_options
        self._lock = threading.RLock()
        self._bound: weakref.WeakValueDictionary[tuple[str, Rule], Bound] = weakref.WeakValueDictionary()
        self._enforcement: Enforcement | None = None
        self._shaped = False
        self._version = Version(policy, runtime, partial(self._bind, policy.name), clock, self.own_shadow)
        self._note_shapes()

    @property
    def policy_name(self) -> str:
        return self._version.policy.name

    @property
    def version(self) -> Version:
        """The version in force."""
        return self._version

    def version_of(self, policy: Policy, runtime: Sequence[RuntimeOverride]) -> Version:
        """Prepare a version, whose rules are bound to the store; raise InvalidRule if the store cannot enforce them."""
        with self._lock:
            bind = partial(self._bind, policy.name)
            version = Version(policy, runtime, bind, self._clock, self.own_shadow, self._version)
        self._check_share(version)
        return version

    def _check_share(self, version: Version) -> None:
        share = self._store_options.of(version.policy).local_share or Fraction(1)
        for binding in version.bindings:
            share_of(binding.rule, share)

    def switch_to(self, version: Version) -> None:
        """Let the calls that begin from now on be decided by a version that was prepared."""
        self._version = version
        self._note_shapes()
        if self._enforcement is not None:
            self._set_options(self._enforcement)

    def _note_shapes(self) -> None:
        self._shaped = self._shaped or any(binding.rule.shapes for binding in self._version.bindings)

    def _set_options(self, enforcement: Enforcement) -> None:
        options = self._store_options.of(self._version.policy)
        enforcement.set_options(options.on_error or "local", options.local_share or Fraction(1), options.lease)

    def enforce(self, enforcement: Enforcement) -> Callable[[], object]:
        """Put the rules in force as long as a version uses them."""
        ends = contextlib.ExitStack()
        with self._lock:
            self._check_share(self._version)
            self._enforcement = enforcement
            try:
                for bound in list(self._bound.values()):
                    ends.callback(_begin(bound, enforcement))
            except BaseException:
                ends.close()
                raise
        self._set_options(enforcement)
        return ends.close

    def _bind(self, policy: str, rule: str, limit: Rule) -> Bound:
        bound = self._bound.get((rule, limit))
        if bound is None:
            space = (self._prefix, limit.algorithm, stored_name(policy, rule, limit))
            bound = Bound(Binding(rule, limit, space, f"{self._prefix}:{policy}/{rule}"))
            if self._enforcement is not None:
                _begin(bound, self._enforcement)
            self._bound[rule, limit] = bound
        return bound

    @property
    def bindings(self) -> Sequence[Binding]:
        return self._version.bindings

    @property
    def rules(self) -> dict[str, Rule]:
        """The rules, by name, with the limits of those for which no override is in force."""
        return {rule.name: rule.limit.rule for rule in self._version.rules if isinstance(rule.limit, Binding)}

    @property
    def shadow(self) -> frozenset[str]:
        return frozenset(rule.name for rule in self._version.rules if not rule.binds)

    @property
    def shapes(self) -> bool:
        """Whether a rule of this or an earlier version shapes: calls of both may wait."""
        return self._shaped

    def demands(self, operation: Operation, key: Any, cost: Any = 1) -> list[Demand]:
        """Return the demands that a request with these attributes makes on the store."""
        if key.__class__ is PreparedRequest:
            return key.applied.again(operation)
        return self._version.apply(operation, key, cost)

    def costs(self, argument: str, cost: Costs) -> dict[str, int]:
        return arguments.by_name(argument, cost, self._version.names, arguments.check_cost)

    def decision(self, demands: Sequence[Demand], outcome: Outcome) -> Decision:
        """Make one decision from the answers to the demands that bind, and from what the store was not asked."""
        decisions = [
            from_answer(binding.name, binding.rule.limit, answer)
            for (binding, _, _, _, binds, _), answer in zip(demands, outcome.answers, strict=True)
            if binds
        ]
        is_usual = demands.__class__ is Applied and len(decisions) == len(demands) > 0
        if is_usual and not (outcome.degraded or demands.blocked or demands.repeats):  # type: ignore[attr-defined]
            return decisions[0] if len(decisions) == 1 else fold(decisions)
        tried = shadow_denied(zip(demands, outcome.answers, strict=True)) if len(decisions) < len(demands) else ()
        if isinstance(demands, Applied) and demands.blocked:
            blocked = [rule.name for rule in demands.blocked if rule.binds]
            tried = (*(rule.name for rule in demands.blocked if not rule.binds), *tried)
            if demands.blocked_as_a_whole:
                decisions += [_blocked("")] * bool(blocked)
            else:
                decisions = [*map(_blocked, blocked), *decisions]
        if isinstance(demands, Applied) and demands.repeats:
            decisions, tried = _tightest_of_each(decisions), tuple(dict.fromkeys(tried))
        decision = NO_LIMIT
        if decisions:
            decision = decisions[0] if len(decisions) == 1 else fold(decisions)
        if tried:
            decision = decision._replace(shadow_denied=tried)
        return decision._replace(degraded=True) if outcome.degraded else decision

    def switched_off(self, demands: Sequence[Demand]) -> Decision:
        """Admit everything, as if all keys were untouched."""
        untouched = [(True, demand.binding.rule.limit, 0, 0, 0) for demand in demands]
        return self.decision(list(demands), Outcome(0, untouched))

    def inspections(self, demands: Sequence[Demand], inspections: Sequence[Inspection]) -> dict[str, Inspection]:
        return {demand.binding.name: seen for demand, seen in zip(demands, inspections, strict=True)}

    def of(self, demands: Sequence[Demand]) -> ChargedRules:
        return ChargedRules(demands.version if isinstance(demands, Applied) else self._version, demands)


class ChargedRules:
    """The rules that charged a request: what corrects it later stays what it was charged by, with the same keys."""

    def __init__(self, version: Version, demands: Sequence[Demand]) -> None:
        self.rules = {demand.binding.name: demand.binding.rule for demand in demands}
        self._demands = demands
        self._names = version.names
        self._with_own_cost = {rule.name for rule in version.rules if rule.cost is not None}

    def costs(self, argument: str, cost: Costs) -> dict[str, int]:
        """Check a cost: one number is for the rules that have no cost of their own."""
        costs = arguments.by_name(argument, cost, self._names, arguments.check_cost)
        if isinstance(cost, Mapping):
            return costs
        return {name: amount for name, amount in costs.items() if name not in self._with_own_cost}

    def demands(self, operation: Operation, key: Any, cost: Any) -> list[Demand]:  # noqa: ARG002 - the keys are known
        """Return the demands again, with another operation and other costs."""
        return [
            demand._replace(operation=operation, cost=amount)
            for demand in self._demands
            if (amount := cost.get(demand.binding.name))
        ]


def _begin(bound: Bound, enforcement: Enforcement) -> Callable[[], object]:
    """Bind a rule until it is used no more, or until the result is called."""
    end = weakref.finalize(bound, enforcement.unbind, (bound.binding,))
    end.atexit = False
    try:
        enforcement.bind(bound.binding)
    except BaseException:
        end()
        raise
    return end


def _tightest_of_each(decisions: Sequence[Decision]) -> list[Decision]:
    """Return one decision for each rule."""
    by_rule: dict[str, Decision] = {}
    for decision in decisions:
        known = by_rule.get(decision.rule, decision)
        by_rule[decision.rule] = min(known, decision, key=_room)
    return list(by_rule.values())


def _room(decision: Decision) -> tuple[bool, float]:
    return decision.allowed, decision.remaining if decision.allowed else -decision.retry_after


def _blocked(rule: str) -> Decision:
    return Decision(False, 0, 0, math.inf, 0.0, 0.0, rule, NO_LAYERS, False)
