"""What the demo's bodies ask for: a rule in the demo's words, a cost and a count."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ratekeeper import FixedWindow, LeakyBucket, SlidingWindowCounter, SlidingWindowLog, TokenBucket
from ratekeeper.algorithms import Rule
from ratekeeper.playground.visitors import LASTS
from ratekeeper.rates import SECOND_US, show
from ratekeeper.service.web import Problem

MOST_BURST = 50
_WINDOW = {"maxRequests": ("limit", 10), "windowSeconds": ("window", 10)}
_RULES: dict[str, tuple[Callable[..., Rule], Mapping[str, tuple[str, Any]]]] = {
    "fixed-window": (FixedWindow, _WINDOW),
    "sliding-window-log": (SlidingWindowLog, _WINDOW),
    "sliding-window-counter": (SlidingWindowCounter, _WINDOW),
    "token-bucket": (TokenBucket, {"maxTokens": ("capacity", 10), "refillRate": ("refill_rate", 1)}),
    "leaky-bucket": (
        LeakyBucket,
        {"capacity": ("capacity", 10), "leakRate": ("leak_rate", 1), "mode": ("mode", "policing")},
    ),
}
ALGORITHMS = tuple(_RULES)
_KNOWN = {name for _, fields in _RULES.values() for name in fields}


class Unusable(Problem):
    """A body that cannot be used; `field` is the part that is to blame."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(400, message, field=field)

    def document(self) -> dict[str, Any]:
        """Return the problem document, in which the detail is the `error`, too, that the demo's users know."""
        return super().document() | {"error": self.detail}


def check_algorithm(algorithm: str) -> str:
    """Return the name of an algorithm, or say which there are."""
    if algorithm not in _RULES:
        raise Unusable(f"unknown algorithm {show(algorithm)}; use {', '.join(_RULES)}", "algorithm")
    return algorithm


def read_body(body: object) -> dict[str, Any]:
    """Return a body that is an object; none at all stands for an empty one."""
    if body is None:
        return {}
    if not isinstance(body, dict):
        raise Unusable(f"the body must be an object, not {show(body)}")
    return body


def read_rule(algorithm: str, body: Mapping[str, Any]) -> Rule:
    """Return the rule of a body, with the demo's defaults for what it leaves out."""
    make, fields = _RULES[check_algorithm(algorithm)]
    config = body.get("config", {})
    if not isinstance(config, dict):
        raise Unusable(f"config must be an object, not {show(config)}", "config")
    for name in config:
        if name not in _KNOWN:
            raise Unusable(f"unknown config {show(name)}; {algorithm} has {', '.join(fields)}", f"config.{name}")
    arguments = {argument: config.get(name, default) for name, (argument, default) in fields.items()}
    try:
        rule = make(**arguments)
    except (TypeError, ValueError) as error:
        raise _blamed(error, fields) from None
    _check_span(rule, fields, arguments)
    return rule


def read_number(body: Mapping[str, Any], name: str, default: int, most: int | None = None) -> int:
    """Return a whole number of a body, from 1 to `most`."""
    number = body.get(name, default)
    if isinstance(number, bool) or not isinstance(number, int) or number < 1 or (most is not None and number > most):
        accepted = "a whole number of at least 1" if most is None else f"a whole number from 1 to {most}"
        raise Unusable(f"{name} must be {accepted}, not {show(number)}", name)
    return number


def _check_span(rule: Rule, fields: Mapping[str, tuple[str, Any]], arguments: Mapping[str, Any]) -> None:
    """Refuse a rule whose keys would be kept long after the visitor's session is over."""
    if isinstance(rule, TokenBucket | LeakyBucket):
        lasts_us, accepted = rule.span_us, f"fast enough to fill or drain {rule.limit} within a day"
    else:
        lasts_us, accepted = rule.numbers[1], f"at most {LASTS} seconds (a day)"
    if lasts_us <= LASTS * SECOND_US:
        return
    name = list(fields)[1]  # the window or the rate
    given = arguments[fields[name][0]]
    raise Unusable(f"{name} must be {accepted}, as long as a session lasts, not {show(given)}", f"config.{name}")


def _blamed(error: Exception, fields: Mapping[str, tuple[str, Any]]) -> Unusable:
    """Name the field of the demo in place of the argument that the library names."""
    message = str(error)
    for name, (argument, _) in fields.items():
        if blames(message, argument):
            return Unusable(f"{name}{message.removeprefix(argument)}", f"config.{name}")
    return Unusable(message, "config")


def blames(message: str, argument: str) -> bool:
    """Tell whether an error of the library is about this argument, which it then begins with."""
    return message.startswith((f"{argument} ", f"{argument}:"))
