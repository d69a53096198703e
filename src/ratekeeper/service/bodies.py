"""Request bodies: rules or policies, keys or attributes, and costs.

Invalid input becomes a problem that names the field.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import astuple

from ratekeeper import InvalidRule, parse
from ratekeeper.algorithms import ALGORITHMS, Rule
from ratekeeper.policies import InvalidAttribute, UnknownPolicy
from ratekeeper.rules import blamed, from_fields
from ratekeeper.service.web import Problem

if TYPE_CHECKING:
    from ratekeeper.http.http_limiter import HttpLimiter
    from ratekeeper.service.served_policies import ServedPolicy
    from ratekeeper.service.shared import Service

MAX_RULES_IN_BODY = 32

JsonKey = str | int | tuple[str | int, ...]
Quantity = int | float | str
_TYPES: Mapping[str, Any] = {"count": int, "window": Quantity, "rate": Quantity, "mode": str}
_FIELDS = {field.name: _TYPES[field.kind] for algorithm in ALGORITHMS for field in algorithm.fields}
RULE_FIELDS = ("algorithm", *_FIELDS)

if TYPE_CHECKING:

    class RuleFields(msgspec.Struct, frozen=True):
        """A rule as the fields of its constructor."""

        algorithm: str | None = None

else:
    RuleFields = msgspec.defstruct(
        "RuleFields",
        [(name, kind | None, None) for name, kind in {"algorithm": str, **_FIELDS}.items()],
        frozen=True,
        forbid_unknown_fields=True,
    )


class RequestBody(RuleFields, frozen=True, forbid_unknown_fields=True):
    """One rule, as fields or as text, and a key; or several rules by name, with a key and a cost for each.

    Or a policy, and the attributes of the request that it is to decide on.
    """

    key: JsonKey | None = None
    cost: int | dict[str, int] = 1
    rule: str | None = None
    rules: dict[str, str | RuleFields] | None = None
    keys: dict[str, JsonKey] | None = None
    policy: str | None = None
    attributes: dict[str, Any] | None = None


_WITHOUT_POLICY = ("key", "keys", "rule", "rules", *RULE_FIELDS)
_not_for_policies = attrgetter(*_WITHOUT_POLICY)
_NOT_GIVEN = (None,) * len(_WITHOUT_POLICY)
_SHOWN = 100  # characters of a name
DECODER = msgspec.json.Decoder(RequestBody)


def read(body: RequestBody, service: Service) -> tuple[HttpLimiter | ServedPolicy, Any, Any]:
    """Return the limiter, the key or keys (by a policy, the attributes), and the cost or costs that a body names."""
    if body.policy is not None:
        return _served_policy(body, body.policy, service), body.attributes or {}, body.cost
    if body.attributes is not None:
        raise Problem(400, "attributes needs policy; for a rule, use key", field="attributes")
    cost = body.cost
    if cost.__class__ is not int or cost < 1:
        _check_cost(body, body.rules)
    if body.rules is None and body.keys is None and body.rule is None and body.key is not None:  # nearly always
        fields = astuple(body)[: len(RULE_FIELDS)]  # which come first
        http_limiter = service.recall(fields) or service.keep(fields, rule_of(body))
        return http_limiter, body.key, cost
    return _limited(body, service), _key(body), cost


def rule_of(fields: RuleFields, at: str = "") -> Rule:
    """Return the rule of some fields; `at` says where in the body they are."""
    given = {name: getattr(fields, name) for name in _FIELDS if getattr(fields, name) is not None}
    try:
        return from_fields(fields.algorithm, given)
    except InvalidRule as error:
        raise invalid(error, at, RULE_FIELDS) from None


def invalid(error: InvalidRule, at: str = "", names: Iterable[str] = ("key", "cost")) -> Problem:
    """Return the problem for an error of the library, whose message begins with the argument."""
    if isinstance(error, InvalidAttribute):
        return Problem(400, str(error), field=f"attributes.{error.attribute[:_SHOWN]}")
    name = blamed(error, names) or ""
    return Problem(400, f"{at}{error}", field=f"{at}{name}".rstrip(".") or None)


def _served_policy(body: RequestBody, policy: str, service: Service) -> ServedPolicy:
    if _not_for_policies(body) != _NOT_GIVEN:
        name = next(name for name in _WITHOUT_POLICY if getattr(body, name) is not None)
        raise Problem(400, f"{name} and policy cannot be combined", field=name)
    try:
        served = service.policies.find(policy)
    except UnknownPolicy as error:
        raise Problem(400, str(error), field="policy") from None
    if body.cost.__class__ is not int or body.cost < 1:
        _check_cost(body, service.policies.rule_names(policy))
    return served


def _check_cost(body: RequestBody, rules: Collection[str] | None) -> None:
    """Check a cost that is not simply a positive number, also for operations that ignore it."""
    cost = body.cost
    if isinstance(cost, int):
        raise Problem(400, f"cost must be an integer of at least 1, not {cost}", field="cost")
    if rules is None:
        raise Problem(400, "cost by name needs rules; for one rule, cost is a number", field="cost")
    for name, each in cost.items():
        if name not in rules:
            raise Problem(400, f"cost names {name!r}, which is not one of the rules", field=f"cost.{name}")
        if each < 0:
            raise Problem(400, f"cost.{name} must be an integer of at least 0, not {each}", field=f"cost.{name}")


def _limited(body: RequestBody, service: Service) -> HttpLimiter:
    if body.rules is None:
        if body.keys is not None:
            raise Problem(400, "keys needs rules; for one rule, use key", field="keys")
        if body.rule is None:
            raise Problem(400, "key is required", field="key")
        _check_alone(body, "rule")
        return service.http_limiter(_parsed(body.rule, "rule"))
    if body.rule is not None:
        raise Problem(400, "rule and rules cannot be combined", field="rule")
    _check_alone(body, "rules")
    if not 1 <= len(body.rules) <= MAX_RULES_IN_BODY:
        raise Problem(400, f"rules must have 1 to {MAX_RULES_IN_BODY} entries, not {len(body.rules)}", field="rules")
    made = {
        name: _parsed(rule, f"rules.{name}") if isinstance(rule, str) else rule_of(rule, f"rules.{name}.")
        for name, rule in body.rules.items()
    }
    try:
        return service.http_limiter(made)
    except InvalidRule as error:
        raise Problem(400, f"rules: {error}", field="rules") from None


def _check_alone(body: RequestBody, beside: str) -> None:
    for name in RULE_FIELDS:
        if getattr(body, name) is not None:
            raise Problem(400, f"{name} and {beside} cannot be combined", field=name)


def _parsed(text: str, at: str) -> Rule:
    try:
        rules = parse(text)
    except InvalidRule as error:
        raise Problem(400, f"{at}: {error}", field=at) from None
    if len(rules) != 1:
        raise Problem(400, f"{at} must be one rule, not {len(rules)}; use rules for several, by name", field=at)
    return rules[0]


def _key(body: RequestBody) -> Any:
    if (body.key is None) == (body.keys is None):
        raise Problem(
            400, "key or keys is required" if body.key is None else "key and keys cannot be combined", field="key"
        )
    return body.keys if body.key is None else body.key
