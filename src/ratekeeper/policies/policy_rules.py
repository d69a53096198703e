"""The rules of a limiter by policy: they turn the attributes of a request into demands on a store.

A policy may be replaced while calls run. Each call reads the version in force once and is decided by it to its end:
its demands say which version made them. A version's rules stay bound to the store until its last call has ended.
"""

from __future__ import annotations

import contextlib
import math
import threading
import weakref
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from typing import Any

from ratekeeper import arguments
from ratekeeper.algorithms import Rule
from ratekeeper.clock import Clock
from ratekeeper.decision import NO_LAYERS, NO_LIMIT, Decision
from ratekeeper.enforcement import Enforcement
from ratekeeper.fallback import OnError
from ratekeeper.policies.attributes import Texts, as_texts
from ratekeeper.policies.model import ALWAYS, Effect, Limit, Override, Policy, PolicyRule, Word, stored_name
from ratekeeper.policies.overrides import OverrideTable
from ratekeeper.policies.runtime_overrides import RuntimeOverride
from ratekeeper.ruleset import Costs, combine, from_answer, shadow_denied
from ratekeeper.stores.protocol import Binding, Demand, Inspection, Operation, Outcome

_new = tuple.__new__  # a named tuple's own constructor takes twice as long
_InForce = Binding | Word
_Effect = Mapping[str, _InForce] | Word


class Bound:
    """A rule that is bound to the store as long as a version uses it."""

    __slots__ = ("__weakref__", "binding")

    def __init__(self, binding: Binding) -> None:
        self.binding = binding


Bind = Callable[[str, Rule], Bound]
"""Returns what keeps a limit of a rule bound."""


class AppliedRule:
    """A rule of a version, ready to be applied."""

    __slots__ = ("binds", "cost", "key", "limit", "name", "when")

    def __init__(self, rule: PolicyRule, limit: _InForce, *, binds: bool) -> None:
        self.name = rule.name
        self.limit = limit
        self.key = rule.key
        self.when = None if rule.when == ALWAYS else rule.when
        self.cost = rule.cost
        self.binds = binds


class Applied(list[Demand]):
    """The demands of one call, and what decided about the rules that the store is not asked about."""

    __slots__ = ("blocked", "blocked_as_a_whole", "version")

    def __init__(self, version: Version) -> None:
        self.version = version
        self.blocked: list[AppliedRule] = []
        self.blocked_as_a_whole = False


class OverridesInForce:
    """Overrides in order of precedence, with the limits that each puts in place of the rules' own."""

    def __init__(self, overrides: Sequence[Override | RuntimeOverride], rules: Container[str], bind: Bind) -> None:
        self.overrides = overrides
        self.bounds: dict[Bound, None] = {}  # an ordered set
        self.table = OverrideTable([override.when for override in overrides])
        self.effects = [self._effect(override.limits, rules, bind) for override in overrides]

    def _effect(self, limits: Effect, rules: Container[str], bind: Bind) -> _Effect:
        if isinstance(limits, str):
            return limits
        return {name: _in_force(name, limit, bind, self.bounds) for name, limit in limits.items() if name in rules}


class Version:
    """A policy with its overrides, as one limiter enforces it. It never changes."""

    def __init__(
        self,
        policy: Policy,
        runtime: Sequence[RuntimeOverride],
        bind: Bind,
        clock: Clock,
        before: Version | None = None,
    ) -> None:
        """`bind` returns what keeps a rule bound; `before` may be of the same policy, with other run-time overrides."""
        self.policy = policy
        self._clock = clock
        self._bounds: dict[Bound, None] = {}
        in_shadow = policy.in_shadow
        self.rules = [
            AppliedRule(rule, _in_force(rule.name, rule.limit, bind, self._bounds), binds=rule.name not in in_shadow)
            for rule in policy.rules
        ]
        names = {rule.name for rule in policy.rules}
        self.runtime = OverridesInForce(runtime, names, bind)
        self.of_file: OverridesInForce = (
            before.of_file
            if before is not None and before.policy is policy
            else OverridesInForce(policy.overrides, names, bind)
        )
        self._has_overrides = bool(runtime or policy.overrides)
        bounds = self._bounds | self.runtime.bounds | self.of_file.bounds
        self.bindings = tuple(bound.binding for bound in bounds)

    def override(self, texts: Texts) -> tuple[_Effect | None, RuntimeOverride | int | None]:
        """Return the effect of the first override that a request meets, and which it is: an int is one of the file."""
        if self.runtime.overrides:
            now = self._clock()
            for position in self.runtime.table.matching(texts):
                override: Any = self.runtime.overrides[position]
                if now < override.ends_ns:
                    return self.runtime.effects[position], override
        for position in self.of_file.table.matching(texts):
            return self.of_file.effects[position], position
        return None, None

    def apply(self, operation: Operation, attributes: Any, cost: Any) -> Applied:
        """Return the demands of a call, in the order: conditions, overrides, costs, keys."""
        texts = as_texts(attributes)
        cost_of: Mapping[str, int] = {}
        if cost.__class__ is not int or cost < 1:
            known = self._costs(cost)
            cost_of, cost = (known, 1) if isinstance(cost, Mapping) else ({}, int(cost))
        applied = Applied(self)
        rules = [rule for rule in self.rules if rule.when is None or rule.when.matches(texts)]
        effect = self.override(texts)[0] if rules and self._has_overrides else None
        if isinstance(effect, str):
            if effect == "blocked":
                applied.blocked, applied.blocked_as_a_whole = rules, True
            return applied
        for rule in rules:
            limit = rule.limit if effect is None else effect.get(rule.name, rule.limit)
            if isinstance(limit, str):
                if limit == "blocked":
                    applied.blocked.append(rule)
                continue
            amount = cost if rule.cost is None and not cost_of else _amount(rule, operation, texts, cost_of)
            if amount:
                applied.append(_new(Demand, (limit, rule.key.key(texts), amount, operation, rule.binds, None)))
        if applied.blocked and operation in ("hit", "peek") and any(rule.binds for rule in applied.blocked):
            applied.clear()  # the request is denied, whatever the store says
        return applied

    def _costs(self, cost: Any) -> dict[str, int]:
        return arguments.by_name("cost", cost, [rule.name for rule in self.rules], arguments.check_cost)


def _in_force(rule: str, limit: Limit, bind: Bind, bounds: dict[Bound, None]) -> _InForce:
    if isinstance(limit, str):
        return limit
    bound = bind(rule, limit)
    bounds[bound] = None
    return bound.binding


def _amount(rule: AppliedRule, operation: Operation, texts: Texts, cost_of: Mapping[str, int]) -> int:
    """Return what a rule charges: what the caller says for it, its own cost, or the request's."""
    if rule.name in cost_of:
        return cost_of[rule.name]
    if rule.cost is None:
        return 1
    return 1 if operation == "reset" else rule.cost.cost(texts)


class PolicyRules:
    """The rules of one limiter: the version in force, and the next one."""

    may_shadow = True  # a later version may

    def __init__(
        self,
        policy: Policy,
        prefix: str,
        runtime: Sequence[RuntimeOverride],
        clock: Clock,
        on_error: OnError | None,
    ) -> None:
        self._prefix = prefix
        self._clock = clock
        self._on_error = on_error  # what the limiter's maker has said, whatever the file says
        self._lock = threading.RLock()
        self._bound: weakref.WeakValueDictionary[tuple[str, Rule], Bound] = weakref.WeakValueDictionary()
        self._enforcement: Enforcement | None = None
        self._shaped = False
        self._version = Version(policy, runtime, partial(self._bind, policy.name), clock)
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
            return Version(policy, runtime, partial(self._bind, policy.name), self._clock, self._version)

    def switch_to(self, version: Version) -> None:
        """Let the calls that begin from now on be decided by a version that was prepared."""
        self._version = version
        self._note_shapes()
        if self._enforcement is not None:
            self._enforcement.set_on_error(self.on_error)

    def _note_shapes(self) -> None:
        self._shaped = self._shaped or any(binding.rule.shapes for binding in self._version.bindings)

    @property
    def on_error(self) -> OnError:
        """What decisions are while the store cannot answer."""
        return self._on_error or self._version.policy.on_error or "local"

    def enforce(self, enforcement: Enforcement) -> Callable[[], object]:
        """Put the rules in force as long as a version uses them."""
        ends = contextlib.ExitStack()
        with self._lock:
            self._enforcement = enforcement
            try:
                for bound in list(self._bound.values()):
                    ends.callback(_begin(bound, enforcement))
            except BaseException:
                ends.close()
                raise
        enforcement.set_on_error(self.on_error)
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
        return self._version.apply(operation, key, cost)

    def costs(self, argument: str, cost: Costs) -> dict[str, int]:
        names = [rule.name for rule in self._version.rules]
        return arguments.by_name(argument, cost, names, arguments.check_cost)

    def decision(self, demands: Sequence[Demand], outcome: Outcome) -> Decision:
        """Make one decision from the answers to the demands that bind, and from what the store was not asked."""
        decisions = [
            from_answer(demand.binding.name, demand.binding.rule.limit, answer)
            for demand, answer in zip(demands, outcome.answers, strict=True)
            if demand.binds
        ]
        tried = shadow_denied(zip(demands, outcome.answers, strict=True)) if len(decisions) < len(demands) else ()
        if isinstance(demands, Applied) and demands.blocked:
            blocked = [rule.name for rule in demands.blocked if rule.binds]
            tried = (*(rule.name for rule in demands.blocked if not rule.binds), *tried)
            if demands.blocked_as_a_whole:
                decisions += [_blocked("")] * bool(blocked)
            else:
                decisions = [*map(_blocked, blocked), *decisions]
        decision = NO_LIMIT
        if decisions:
            decision = decisions[0] if len(decisions) == 1 else combine(decisions)
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
        self._names = [rule.name for rule in version.rules]
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


def _blocked(rule: str) -> Decision:
    return Decision(False, 0, 0, math.inf, 0.0, 0.0, rule, NO_LAYERS, False)
