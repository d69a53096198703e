"""The bodies of the demo's requests: a rule in the demo's words, a cost and a count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ratekeeper.algorithms import ALGORITHMS, Rule
from ratekeeper.algorithms.rule import Field, Variant
from ratekeeper.playground.visitors import LASTS
from ratekeeper.rates import SECOND_US, show
from ratekeeper.rules import blamed, from_fields
from ratekeeper.service.web import Problem

MAX_BURST = 50
MAX_LOGGED = 10_000  # units in a log, which is read whole to show a visitor's state
_ALGORITHMS = {algorithm.algorithm: algorithm for algorithm in ALGORITHMS}
_DEFAULTS = {"count": 10, "window": 10, "rate": 1}  # by the kind of a field
_UNITS = {"count": "", "window": "s", "rate": "per s"}


def demo_name(field: Field) -> str:
    """Return the demo's name of a field: in camel case, unless it has a name of its own."""
    first, *others = field.name.split("_")
    return field.demo_name or first + "".join(map(str.capitalize, others))


_KNOWN = {demo_name(field) for algorithm in ALGORITHMS for field in algorithm.fields}


class Unusable(Problem):
    """An invalid body; `field` is the invalid part."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(400, message, field=field)

    def document(self) -> dict[str, Any]:
        """Return the problem document, with the detail as `error` as well, as the demo's users expect."""
        return super().document() | {"error": self.detail}


def listing() -> list[dict[str, Any]]:
    """Return what the page needs to know about each algorithm, in each of its modes."""
    return [_listed(algorithm, variant) for algorithm in ALGORITHMS for variant in algorithm.variants]


def _listed(algorithm: type[Rule], variant: Variant) -> dict[str, Any]:
    burst = 20 if algorithm.takes_burst else None
    example = algorithm.of(*((100, 60 * SECOND_US) if burst is None else (10, SECOND_US)), burst, variant.mode)
    return {
        "id": f"{algorithm.algorithm}-{variant.mode}" if variant.mode else algorithm.algorithm,
        "algorithm": algorithm.algorithm,
        "mode": variant.mode,
        "title": variant.title,
        "idea": variant.idea,
        "picture": variant.picture,
        "suits": variant.suits,
        "reason": variant.reason,
        "fields": [
            {
                "name": demo_name(field),
                "kind": field.kind,
                "label": field.label or field.name,
                "unit": _UNITS[field.kind],
                "value": str(_DEFAULTS[field.kind]),
            }
            for field in algorithm.fields
            if field.kind != "mode"
        ],
        "example": {"class": algorithm.__name__, "python": _written(example), "text": example.text},
    }


def _written(rule: Rule) -> str:
    """Write a rule as Python code: without defaults, and with whole rates as integers."""
    arguments = []
    for field in rule.fields:
        value = getattr(rule, field.name)
        if field.kind == "rate":
            arguments.append(f"{field.name}={value}")
        elif field.kind != "mode":
            arguments.append(f"{field.name}={value!r}")
        elif value != rule.variants[0].mode:
            arguments.append(f'{field.name}="{value}"')
    return f"{type(rule).__name__}({', '.join(arguments)})"


def check_algorithm(algorithm: str) -> type[Rule]:
    """Return the algorithm of this name; the error lists all names."""
    if algorithm not in _ALGORITHMS:
        raise Unusable(f"unknown algorithm {show(algorithm)}; use {', '.join(_ALGORITHMS)}", "algorithm")
    return _ALGORITHMS[algorithm]


def read_body(body: object) -> dict[str, Any]:
    """Return a body if it is an object; no body is an empty object."""
    if body is None:
        return {}
    if not isinstance(body, dict):
        raise Unusable(f"the body must be an object, not {show(body)}")
    return body


def read_rule(algorithm: str, body: Mapping[str, Any]) -> Rule:
    """Return the rule of a body, with the demo's defaults for missing fields."""
    kind = check_algorithm(algorithm)
    names = {demo_name(field): field for field in kind.fields}
    config = body.get("config", {})
    if not isinstance(config, dict):
        raise Unusable(f"config must be an object, not {show(config)}", "config")
    for name in config:
        if name not in _KNOWN:
            raise Unusable(f"unknown config {show(name)}; {algorithm} takes {', '.join(names)}", f"config.{name}")
    given = {
        field.name: config.get(name, _DEFAULTS.get(field.kind, kind.variants[0].mode)) for name, field in names.items()
    }
    try:
        rule = from_fields(algorithm, given)
    except (TypeError, ValueError) as error:
        raise _blamed(error, names) from None
    _check_span(rule, given)
    if rule.stored_as == "list" and rule.limit > MAX_LOGGED:
        name = next(name for name, field in names.items() if field.kind == "count")
        raise Unusable(f"{name} must be at most {MAX_LOGGED} for a {algorithm}, not {rule.limit}", f"config.{name}")
    return rule


def read_number(body: Mapping[str, Any], name: str, default: int, most: int | None = None) -> int:
    """Return a whole number from a body, from 1 to `most`."""
    number = body.get(name, default)
    if isinstance(number, bool) or not isinstance(number, int) or number < 1 or (most is not None and number > most):
        accepted = "a whole number of at least 1" if most is None else f"a whole number from 1 to {most}"
        raise Unusable(f"{name} must be {accepted}, not {show(number)}", name)
    return number


def _check_span(rule: Rule, given: Mapping[str, Any]) -> None:
    """Reject a rule whose keys would outlive the visitor's session."""
    if rule.window_us <= LASTS * SECOND_US:
        return
    field = next(field for field in rule.fields if field.kind in ("window", "rate"))
    accepted = (
        f"fast enough to fill or drain {rule.limit} within a day"
        if field.kind == "rate"
        else f"at most {LASTS} seconds (a day)"
    )
    name = demo_name(field)
    raise Unusable(
        f"{name} must be {accepted}, the length of a session, not {show(given[field.name])}", f"config.{name}"
    )


def _blamed(error: Exception, names: Mapping[str, Field]) -> Unusable:
    """Return the error with the demo's field name instead of the library's argument name."""
    argument = blamed(error, [field.name for field in names.values()])
    for name, field in names.items():
        if field.name == argument:
            return Unusable(f"{name}{str(error).removeprefix(argument)}", f"config.{name}")
    return Unusable(str(error), "config")
