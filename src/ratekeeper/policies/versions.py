"""A version of a policy: its rules and overrides, bound to a store, as one limiter enforces them.

A version turns the attributes of a request into demands on the store. Its rules stay bound until its last call ends.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from ratekeeper import arguments
from ratekeeper.algorithms import Rule
from ratekeeper.clock import Clock
from ratekeeper.policies.attributes import InvalidAttribute, Texts, as_texts
from ratekeeper.policies.conditions import When
from ratekeeper.policies.model import ALWAYS, Effect, Override, Policy, PolicyLimit, PolicyRule, Word
from ratekeeper.policies.overrides import OverrideTable
from ratekeeper.policies.runtime_overrides import RuntimeOverride
from ratekeeper.ruleset import Shadow
from ratekeeper.stores.protocol import Binding, Demand, Key, Operation

_new = tuple.__new__  # a named tuple's own constructor takes twice as long
_InForce = Binding | Word
_Effect = Mapping[str, _InForce] | Word
Missing = Literal["error", "shared", "skipped"]
"""What a missing attribute means: an error, or a cost of 1 and a key that such requests share, or no rule for them."""


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


class Lack(NamedTuple):
    """A rule for whose key or cost a request has no attribute."""

    rule: str
    attribute: str
    of_cost: bool
    binds: bool


class Applied(list[Demand]):
    """The demands of one call, and what decided about the rules that the store is not asked about."""

    __slots__ = ("blocked", "blocked_as_a_whole", "lacking", "repeats", "version")

    def __init__(self, version: Version) -> None:
        self.version = version
        self.blocked: list[AppliedRule] = []
        self.blocked_as_a_whole = False
        self.lacking: list[Lack] = []
        """The rules whose key or cost could not be found, if that is no error of the call."""
        self.repeats = False
        """Whether a rule makes several demands, with limits that count apart."""

    def without(  # noqa: PLR0917 - in the middle of `Version.apply`
        self,
        rule: AppliedRule,
        error: InvalidAttribute,
        missing: Missing,
        texts: Texts,
        cost: int,
        cost_of: Mapping[str, int],
    ) -> tuple[int, Key]:
        """Return a cost (1 if it is the cost that is missing) and a key for a rule that lacks an attribute."""
        if missing == "error":
            raise error
        try:
            amount = cost if rule.cost is None and not cost_of else _amount(rule, "hit", texts, cost_of)
        except InvalidAttribute as of_cost:
            self.lacking.append(Lack(rule.name, of_cost.attribute, True, rule.binds))
            amount = 1
        try:
            return amount, rule.key.key(texts)
        except InvalidAttribute as of_key:
            self.lacking.append(Lack(rule.name, of_key.attribute, False, rule.binds))
        return (0, "") if missing == "skipped" else (amount, rule.key.key(texts, shares=True))

    def add(self, demand: Demand) -> None:
        """Add a demand. Of two limits on one key of one space, which count together, only the stricter one applies."""
        for index, known in enumerate(self):
            if (known.binding.space, known.key) == (demand.binding.space, demand.key):
                if demand.binding.rule.limit < known.binding.rule.limit:
                    self[index] = demand
                return
            self.repeats = self.repeats or known.binding.name == demand.binding.name
        self.append(demand)

    def end(self, operation: Operation) -> None:
        """Ask the store nothing if the request is blocked, whatever the store would say."""
        if operation in ("hit", "peek") and any(rule.binds for rule in self.blocked):
            self.clear()

    def again(self, operation: Operation) -> Applied:
        """Return the same demands for another operation."""
        applied = Applied(self.version)
        applied.blocked, applied.blocked_as_a_whole = self.blocked, self.blocked_as_a_whole
        applied.repeats = self.repeats
        applied += [demand._replace(operation=operation) for demand in self]
        return applied


class PreparedRequest(dict[str, Any]):
    """The attributes of a request, and what one version of a policy has made of them: all its operations follow that.

    It takes the place of the attributes in the calls of a limiter.
    """

    __slots__ = ("applied",)
    applied: Applied

    @property
    def is_limited(self) -> bool:
        """Whether a rule applies, be it only in shadow."""
        return bool(self.applied or self.applied.blocked)

    @property
    def keys_of_shapers(self) -> tuple[Any, ...]:
        """The keys of the rules by which the request may have to wait for its departure."""
        return tuple((each.binding.name, each.key) for each in self.applied if each.binds and each.binding.rule.shapes)

    @property
    def keys_by_rule(self) -> dict[str, Key]:
        """The keys of the rules that decide."""
        return {each.binding.name: each.key for each in self.applied if each.binds}

    def of_cost_1(self) -> PreparedRequest:
        """Return the same request with a cost of 1 for each rule that applies."""
        other = PreparedRequest(self)
        other.applied = self.applied.again("hit")
        other.applied[:] = [demand._replace(cost=1) for demand in other.applied]
        return other


class OverridesInForce:
    """Overrides in order of precedence, with the limits that each puts in place of the rules' own."""

    def __init__(self, overrides: Sequence[Override | RuntimeOverride], rules: Container[str], bind: Bind) -> None:
        self.overrides = overrides
        self.bounds: dict[Bound, None] = {}  # an ordered set
        conditions = [override.when for override in overrides]
        self.table = OverrideTable(conditions)
        self.compares_paths = _compare_paths(conditions)
        self.has_usual_paths = _have_usual_paths(conditions)
        self.effects = [self._effect(override.limits, rules, bind) for override in overrides]
        self.attributes = {name for override in overrides for name in override.when.attributes}

    def _effect(self, limits: Effect, rules: Container[str], bind: Bind) -> _Effect:
        if isinstance(limits, str):
            return limits
        return {name: _in_force(name, limit, bind, self.bounds) for name, limit in limits.items() if name in rules}


class Version:
    """A policy with its overrides, as one limiter enforces it. It never changes."""

    def __init__(  # noqa: PLR0917 - a limiter's rules make it
        self,
        policy: Policy,
        runtime: Sequence[RuntimeOverride],
        bind: Bind,
        clock: Clock,
        shadow: Shadow = False,
        before: Version | None = None,
    ) -> None:
        """`bind` returns what keeps a rule bound; `before` may be of the same policy, with other runtime overrides.

        `shadow` names rules that are only tried out, besides those that the policy says.
        """
        self.policy = policy
        self.names = [rule.name for rule in policy.rules]
        """The names of the rules."""
        self._clock = clock
        self._bounds: dict[Bound, None] = {}
        in_shadow = policy.in_shadow.union(self.names if shadow is True else shadow or ())
        self.rules = [
            AppliedRule(rule, _in_force(rule.name, rule.limit, bind, self._bounds), binds=rule.name not in in_shadow)
            for rule in policy.rules
        ]
        self.runtime = OverridesInForce(runtime, self.names, bind)
        self.of_file: OverridesInForce = (
            before.of_file
            if before is not None and before.policy is policy
            else OverridesInForce(policy.overrides, self.names, bind)
        )
        self._has_overrides = bool(runtime or policy.overrides)
        conditions = [rule.when for rule in policy.rules]
        overridden = self.runtime, self.of_file
        self._compares_paths = _compare_paths(conditions) or any(each.compares_paths for each in overridden)
        self._has_usual_paths = _have_usual_paths(conditions) and all(each.has_usual_paths for each in overridden)
        costs = {rule.cost.attribute for rule in policy.rules if rule.cost is not None}
        own = {name for rule in policy.rules for name in (*rule.when.attributes, *rule.key.attributes)}
        self.attributes = frozenset(own | costs | self.runtime.attributes | self.of_file.attributes) - {None}
        """The names of all attributes that a request may be asked for."""
        is_unconditional = not self._has_overrides and all(rule.when is None for rule in self.rules)
        self._usual_limits = [(rule, rule.limit) for rule in self.rules] if is_unconditional else None
        bounds = self._bounds | self.runtime.bounds | self.of_file.bounds
        self.bindings = tuple(bound.binding for bound in bounds)

    def override(
        self, texts: Texts, *, as_written: bool = False
    ) -> tuple[_Effect | None, RuntimeOverride | int | None]:
        """Return the effect of the first override that a request meets, and which it is: an int is one of the file."""
        if self.runtime.overrides:
            now = self._clock()
            for position in self.runtime.table.matching(texts, as_written=as_written):
                override: Any = self.runtime.overrides[position]
                if now < override.ends_ns:
                    return self.runtime.effects[position], override
        for position in self.of_file.table.matching(texts, as_written=as_written):
            return self.of_file.effects[position], position
        return None, None

    def prepare(self, attributes: Mapping[str, Any], cost: Any, missing: Missing) -> PreparedRequest:
        """Return a request for calls that are decided by this version, whatever comes into force meanwhile.

        `missing` says what becomes of a rule whose key or cost cannot be found.
        """
        prepared = PreparedRequest(attributes)
        prepared.applied = self.apply("hit", attributes, cost, missing)
        return prepared

    def apply(self, operation: Operation, attributes: Any, cost: Any, missing: Missing = "error") -> Applied:
        """Return the demands of a call, in the order: conditions, overrides, costs, keys.

        A path may be written so that one application reads it as another path, and another one does not. Either view
        may run, so the limits of both apply.
        """
        texts = as_texts(attributes)
        cost_of: Mapping[str, int] = {}
        if cost.__class__ is not int or cost < 1:
            cost, cost_of = self._costs(cost)
        applied = Applied(self)
        limits = self._usual_limits or self._limits(applied, texts)
        add = applied.append
        if self._compares_paths and not (self._has_usual_paths and texts.get("path").__class__ is str):
            limits += [each for each in self._limits(applied, texts, as_written=True) if each not in limits]
            add = applied.add
        for rule, limit in limits:
            if isinstance(limit, str):
                if limit == "blocked" and rule not in applied.blocked:
                    applied.blocked.append(rule)
                continue
            try:
                amount = cost if rule.cost is None and not cost_of else _amount(rule, operation, texts, cost_of)
                key = rule.key.key(texts) if amount else ""
            except InvalidAttribute as error:
                amount, key = applied.without(rule, error, missing, texts, cost, cost_of)
            if amount:
                add(_new(Demand, (limit, key, amount, operation, rule.binds, None)))
        if applied.blocked:
            applied.end(operation)
        return applied

    def _limits(
        self, applied: Applied, texts: Texts, *, as_written: bool = False
    ) -> list[tuple[AppliedRule, _InForce]]:
        """Return the rules that apply to a request, each with the limit that is in force for it."""
        rules = [rule for rule in self.rules if rule.when is None or rule.when.matches(texts, as_written=as_written)]
        effect = self.override(texts, as_written=as_written)[0] if rules and self._has_overrides else None
        if effect is None:
            return [(rule, rule.limit) for rule in rules]
        if isinstance(effect, str):
            applied.blocked_as_a_whole = applied.blocked_as_a_whole or effect == "blocked"
            return [(rule, effect) for rule in rules]
        return [(rule, effect.get(rule.name, rule.limit)) for rule in rules]

    def _costs(self, cost: Any) -> tuple[int, Mapping[str, int]]:
        """Return the cost of a request, and those of single rules."""
        known = arguments.by_name("cost", cost, self.names, arguments.check_cost)
        return (1, known) if isinstance(cost, Mapping) else (int(cost), {})


def _compare_paths(conditions: Iterable[When]) -> bool:
    return any("path" in when.attributes for when in conditions)


def _have_usual_paths(conditions: Iterable[When]) -> bool:
    return all(when.has_usual_paths for when in conditions)


def _in_force(rule: str, limit: PolicyLimit, bind: Bind, bounds: dict[Bound, None]) -> _InForce:
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
