"""The rules of one limiter: turn a call into demands on a store, and the store's answers into a decision."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeVar

from ratekeeper import arguments, keys
from ratekeeper.algorithms.rule import Rule
from ratekeeper.decision import NO_LAYERS, NO_LIMIT, Decision, RuleAnswer
from ratekeeper.enforcement import Enforcement
from ratekeeper.errors import InvalidRule
from ratekeeper.rates import show
from ratekeeper.rules import Rules, named
from ratekeeper.stores.protocol import Binding, Demand, Inspection, Key, Operation, Outcome, admits, asks

Keys = Key | Mapping[str, Key]
Costs = int | Mapping[str, int]
StoredBy = Literal["name", "text"]
Shadow = bool | Iterable[str]
_Answer = TypeVar("_Answer")
_MICROSECONDS = 1_000_000
_new = tuple.__new__  # a named tuple's own constructor takes twice as long


class RulesVersion(Protocol):
    """Rules that are in force at one time, of a limiter by policy."""

    @property
    def names(self) -> Sequence[str]:
        """The names of the rules."""

    @property
    def attributes(self) -> Collection[str]:
        """The names of all attributes that a request may be asked for."""

    def prepare(self, attributes: Mapping[str, Any], cost: Any, missing: Any) -> Any:
        """Return a request for calls that are decided by this version, whatever comes into force meanwhile."""


class LimiterRules(Protocol):
    """What a limiter asks of its rules: a `Ruleset`, or rules that may change while the limiter is in use."""

    @property
    def policy_name(self) -> str:
        """The name of the policy that the rules are from; empty if they are from no policy."""

    @property
    def version(self) -> RulesVersion | None:
        """What decides on requests now, by their attributes; None for rules that never change."""

    @property
    def bindings(self) -> Sequence[Binding]:
        """The rules, as stores know them."""

    @property
    def rules(self) -> dict[str, Rule]:
        """The rules, by name."""

    @property
    def shadow(self) -> frozenset[str]:
        """The names of the rules that are only tried out: they deny nothing."""

    @property
    def may_shadow(self) -> bool:
        """Whether a rule is ever only tried out."""

    @property
    def may_lease(self) -> bool:
        """Whether usage may ever be taken ahead because the rules say so."""

    @property
    def shapes(self) -> bool:
        """Whether an admitted request may have to wait for its departure."""

    def enforce(self, enforcement: Enforcement) -> Callable[[], object]:
        """Put the rules in force until they are garbage-collected, or until the result is called."""

    def demands(self, operation: Operation, key: Any, cost: Any = 1) -> list[Demand]:
        """Check a call's key and cost, and return a demand for each rule that applies."""

    def costs(self, argument: str, cost: Costs) -> dict[str, int]:
        """Check a cost for all rules, or a mapping of costs, and return the cost of each rule that has one."""

    def decision(self, demands: Sequence[Demand], outcome: Outcome) -> Decision:
        """Make one decision from the answers to the demands that bind."""

    def switched_off(self, demands: Sequence[Demand]) -> Decision:
        """Admit everything, as if all keys were untouched."""

    def inspections(self, demands: Sequence[Demand], inspections: Sequence[Inspection]) -> dict[str, Inspection]:
        """Return the inspection of each rule's key, by the rule's name."""

    def of(self, demands: Sequence[Demand]) -> RulesOfCharge:
        """Return the rules that made these demands, however the rules have changed meanwhile."""


class RulesOfCharge(Protocol):
    """What a reservation asks of the rules that charged it."""

    @property
    def rules(self) -> dict[str, Rule]:
        """The rules, by name."""

    def costs(self, argument: str, cost: Costs) -> dict[str, int]:
        """Check a cost for all rules, or a mapping of costs, and return the cost of each rule that has one."""

    def demands(self, operation: Operation, key: Any, cost: Any) -> list[Demand]:
        """Return the demands for another operation on the same keys."""


class RulesSource(Protocol):
    """Makes the rules of limiters, which it may change later."""

    def ruleset(self, prefix: str) -> LimiterRules:
        """Return the rules of a new limiter whose stored keys begin with this prefix."""


class Ruleset:
    """One or more named rules that are decided together."""

    policy_name = ""
    version = None
    may_lease = False

    def __init__(
        self,
        rules: Rules,
        prefix: str,
        group: str | None = None,
        stored_by: StoredBy = "name",
        shadow: Shadow = False,
    ) -> None:
        self.bindings = tuple(
            Binding(name, rule, (prefix, rule.algorithm, name if stored_by == "name" else rule.text), group)
            for name, rule in named(rules).items()
        )
        self.shadow = arguments.check_shadow(shadow, [binding.name for binding in self.bindings])
        """The names of the rules that are only tried out: they deny nothing."""
        self.may_shadow = bool(self.shadow)
        self._each = tuple((binding, binding.name not in self.shadow) for binding in self.bindings)
        self._may_meet = len({binding.space for binding in self.bindings}) < len(self.bindings)
        if self._may_meet and self.shadow:
            self._check_those_that_meet()
        self.shapes = any(binding.rule.shapes for binding, binds in self._each if binds)
        self._only = self.bindings[0] if len(self.bindings) == 1 else None

    def enforce(self, enforcement: Enforcement) -> Callable[[], object]:
        """Put the rules in force until they are garbage-collected, or until the result is called."""
        unbind = weakref.finalize(self, enforcement.unbind, self.bindings)
        unbind.atexit = False
        try:
            for binding in self.bindings:
                enforcement.bind(binding)
        except BaseException:
            unbind()
            raise
        return unbind

    @property
    def rules(self) -> dict[str, Rule]:
        """The rules, by name."""
        return {binding.name: binding.rule for binding in self.bindings}

    def demands(self, operation: Operation, key: Keys, cost: Costs = 1) -> list[Demand]:
        """Check a call's keys and costs, and return a demand for each rule."""
        if type(key) is str and 0 < len(key) <= keys.SURELY_SHORT and type(cost) is int and cost > 0:  # nearly always
            if self._only is not None:
                return [_new(Demand, (self._only, key, cost, operation, not self.shadow, None))]
            demands = [_new(Demand, (binding, key, cost, operation, binds, None)) for binding, binds in self._each]
            return Joined(demands) if self._may_meet else demands
        names = [binding.name for binding in self.bindings]
        key_of = arguments.by_name("key", key, names, keys.check)
        cost_of = self.costs("cost", cost)
        if isinstance(key, Mapping) and len(key_of) < len(names):
            missing = next(name for name in names if name not in key_of)
            raise InvalidRule(f"key {show(key)} lacks rule {missing!r}; a mapping of keys must name every rule")
        demands = [
            Demand(binding, key_of[binding.name], cost_of.get(binding.name, 1), operation, binds)
            for binding, binds in self._each
            if cost_of.get(binding.name, 1)
        ]
        if not demands:
            raise InvalidRule(f"cost {show(cost)} leaves every rule out")
        return Joined(demands) if self._may_meet else demands

    def costs(self, argument: str, cost: Costs) -> dict[str, int]:
        """Check a cost for all rules, or a mapping of costs, and return the cost of each rule that has one."""
        names = [binding.name for binding in self.bindings]
        return arguments.by_name(argument, cost, names, arguments.check_cost)

    def decision(self, demands: Sequence[Demand], outcome: Outcome) -> Decision:
        """Make one decision from the answers to the demands that bind; if none does, nothing limits the request."""
        only = self._only
        if only is not None and demands[0].binds:
            decision = from_answer(only.name, only.rule.limit, outcome.answers[0])
        else:
            answered = [
                from_answer(demand.binding.name, demand.binding.rule.limit, answer)
                for demand, answer in _answered(demands, outcome.answers)
                if demand.binds
            ]
            decision = fold(answered) if answered else NO_LIMIT
            if self.shadow:
                decision = decision._replace(shadow_denied=shadow_denied(_answered(demands, outcome.answers)))
        return decision._replace(degraded=True) if outcome.degraded else decision

    def switched_off(self, demands: Sequence[Demand]) -> Decision:
        """Admit everything, as if all keys were untouched."""
        return self.decision(demands, Outcome(0, list(map(_untouched, demands))))

    def of(self, demands: Sequence[Demand]) -> Ruleset:  # noqa: ARG002 - they never change
        """Return the rules that made these demands."""
        return self

    def _check_those_that_meet(self) -> None:
        """Raise InvalidRule if rules that are stored as one are not tried out together: they are charged together."""
        of_space: dict[object, Binding] = {}
        for binding, binds in self._each:
            other = of_space.setdefault(binding.space, binding)
            if binds is (other.name in self.shadow):
                raise InvalidRule(
                    f"shadow must have both or neither of the rules {other.name!r} and {binding.name!r}, "
                    "which are equal and stored by their text"
                )

    def inspections(self, demands: Sequence[Demand], inspections: Sequence[Inspection]) -> dict[str, Inspection]:
        """Return the inspection of each rule's key, by the rule's name."""
        return {demand.binding.name: seen for demand, seen in _answered(demands, inspections)}


class Joined(list[Demand]):
    """The demands of rules that may be stored as one: those on one key are one demand, for the sum of their costs."""

    def __init__(self, given: Sequence[Demand]) -> None:
        self._given = given
        self._indexes: list[int] = []
        """For each demand that was given, the index of the one that it became part of."""
        index_of: dict[tuple[object, Key], int] = {}
        for demand in given:
            index = index_of.setdefault((demand.binding.space, demand.key), len(self))
            self._indexes.append(index)
            if index == len(self):
                self.append(demand)
            else:
                known = self[index]
                self[index] = known._replace(cost=known.cost + demand.cost, binds=known.binds or demand.binds)

    def answered(self, answers: Sequence[_Answer]) -> list[tuple[Demand, _Answer]]:
        """Return each demand that was given, with the answer to the one that it became part of."""
        return [(demand, answers[index]) for demand, index in zip(self._given, self._indexes, strict=True)]


def _answered(demands: Sequence[Demand], answers: Sequence[_Answer]) -> Iterable[tuple[Demand, _Answer]]:
    return demands.answered(answers) if isinstance(demands, Joined) else zip(demands, answers, strict=True)


def shadow_denied(answered: Iterable[tuple[Demand, RuleAnswer]]) -> tuple[str, ...]:
    """Return the names of the rules that would have denied a hit or a peek, but do not bind."""
    return tuple(demand.binding.name for demand, answer in answered if not (demand.binds or answer[0]) and asks(demand))


def _untouched(demand: Demand) -> RuleAnswer:
    return True, demand.binding.rule.limit, 0, 0, 0


def give_backs(demands: Sequence[Demand], outcome: Outcome) -> list[Demand]:
    """Return the demands that give back what a request was charged, with their receipts."""
    if not admits(demands, outcome):
        return []
    return [
        demand._replace(operation="give_back", receipt=receipt)
        for demand, (answer, receipt) in _answered(demands, list(zip(outcome.answers, outcome.receipts, strict=True)))
        if answer[0] or not asks(demand)  # what does not bind may have been denied alone
    ]


def from_answer(name: str, limit: int, answer: RuleAnswer) -> Decision:
    """Turn one rule's answer in microseconds into a decision in seconds."""
    allowed, remaining, retry_after_us, reset_after_us, delay_us = answer
    return _new(
        Decision,
        (
            allowed,
            limit,
            remaining,
            math.inf if retry_after_us is None else retry_after_us / _MICROSECONDS,
            reset_after_us / _MICROSECONDS,
            delay_us / _MICROSECONDS,
            name,
            NO_LAYERS,
            False,
            (),
        ),
    )


def fold(decisions: Sequence[Decision]) -> Decision:
    """Fold the decisions of several rules into one.

    The tightest rule decides: of denials the one with the longest retry time, otherwise the one with the smallest
    `remaining`; ties go to the first. Each rule's own answer is in `layers`.
    """
    tightest = decisions[0]
    allowed, remaining, reset_after, delay = True, tightest.remaining, 0.0, 0.0
    layers = {}
    for decision in decisions:
        own_allowed, _, own_remaining, retry_after, own_reset_after, own_delay, rule, _, _, _ = decision
        layers[rule] = decision
        if own_remaining < remaining:  # noqa: PLR1730 - min() and max() take twice as long
            remaining = own_remaining
        if own_reset_after > reset_after:  # noqa: PLR1730
            reset_after = own_reset_after
        if own_delay > delay:  # noqa: PLR1730
            delay = own_delay
        if not own_allowed:
            if allowed or retry_after > tightest.retry_after:
                tightest = decision
            allowed = False
        elif allowed and own_remaining < tightest.remaining:
            tightest = decision
    return _new(
        Decision,
        (
            allowed,
            tightest.limit,
            remaining,
            tightest.retry_after,
            reset_after,
            delay,
            tightest.rule,
            MappingProxyType(layers),
            False,
            (),
        ),
    )
