"""Rules that a function of the request returns; unlike rules in the source, they may block or allow everything.

>>> chosen("0/minute").is_blocked, chosen("blocked").is_blocked
(True, True)
>>> chosen("unlimited")
ChosenRules(rules=None, unlimited=(), is_blocked=False)
>>> chosen({"user": "unlimited", "all": "1000/minute"})
ChosenRules(rules={'all': '1000/minute'}, unlimited=('user',), is_blocked=False)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ratekeeper.errors import InvalidRule
from ratekeeper.rates import MAX_CHARACTERS
from ratekeeper.rules import MAX_IN_TEXT, parse

_ZERO_RATE = re.compile(r"((?:[^\W\d_][\w-]*\s+)?)0[0_]*(?=\s*(?:/|per\b))", re.IGNORECASE)
_ZERO_BURST = re.compile(r"(?<=\s)(burst\s+)0[0_]*(?=\s|$)", re.IGNORECASE)


class ChosenRules(NamedTuple):
    """What a function of the request has chosen."""

    rules: Any
    """What a limiter can be made from, if it is valid; None: there is no limit."""
    unlimited: tuple[str, ...] = ()
    """The names of the rules that limit nothing, and were left out."""
    is_blocked: bool = False
    """Whether everything is denied."""


_UNLIMITED = ChosenRules(None)
_BLOCKED = ChosenRules(None, is_blocked=True)


def chosen(rules: Any) -> ChosenRules:
    """Handle "unlimited", which limits nothing, and "blocked" or a rate of 0, which deny everything."""
    if rules is None:
        return _UNLIMITED
    if isinstance(rules, Mapping):
        each = {name: _limited(rule) for name, rule in rules.items()}
        if "blocked" in each.values():
            return _BLOCKED
        left = {name: rule for name, rule in each.items() if rule != "unlimited"}
        unlimited = tuple(name for name in each if name not in left)
        return _UNLIMITED if unlimited and not left else ChosenRules(left, unlimited)
    if isinstance(rules, str) or not isinstance(rules, Iterable):
        rule = _limited(rules)
        return _UNLIMITED if rule == "unlimited" else _BLOCKED if rule == "blocked" else ChosenRules(rule)
    given = [_limited(rule) for rule in rules]
    if "blocked" in given:
        return _BLOCKED
    limited = [rule for rule in given if rule != "unlimited"]
    return _UNLIMITED if given and not limited else ChosenRules(limited)


def _limited(rule: Any) -> Any:
    """Return the part of a rule or text that limits something: "unlimited" if none does, "blocked" if it denies all."""
    if not isinstance(rule, str):
        return rule
    if len(rule) > MAX_IN_TEXT * (MAX_CHARACTERS + 1):
        return rule  # too long to be valid
    parts = [" ".join(part.split()) for part in re.split(r"[;,|]", rule)]
    if any(part.lower() == "blocked" or _admits_nothing(part) for part in parts):
        return "blocked"
    limited = [part for part in parts if part.lower() != "unlimited"]
    return "; ".join(limited) if limited else "unlimited"


def _admits_nothing(text: str) -> bool:
    """Tell whether a rule's text says 0 where it would be valid with a 1."""
    one = _ZERO_BURST.sub(r"\g<1>1", text)
    match = _ZERO_RATE.match(one)
    one = one if match is None else f"{match[1]}1{one[match.end() :]}"
    if one == text:
        return False
    try:
        parse(one)
    except InvalidRule:
        return False
    return True
