"""Rules as people write them: `parse` reads a text, `named` gives each rule of a limiter its name.

>>> parse("100/minute")
(SlidingWindowCounter(limit=100, window=60),)
>>> [rule.text for rule in parse("10/s burst 100; fixed-window 1000/hour")]
['token-bucket 10/s burst 100', 'fixed-window 1000/hour']
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from fractions import Fraction

from ratekeeper import rates
from ratekeeper.algorithms import (
    FixedWindow,
    LeakyBucket,
    Rule,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
)
from ratekeeper.errors import InvalidRule

_WINDOWS: dict[str, Callable[[int, rates.Window], Rule]] = {
    "fixed-window": FixedWindow,
    "sliding-window-log": SlidingWindowLog,
    "moving-window": SlidingWindowLog,
    "sliding-window-counter": SlidingWindowCounter,
}
_BUCKETS = ("token-bucket", "leaky-bucket")
ALGORITHMS = (*_WINDOWS, *_BUCKETS)
RULE_TYPES = (FixedWindow, SlidingWindowLog, SlidingWindowCounter, TokenBucket, LeakyBucket)

_RULE = re.compile(
    r"(?:(?P<algorithm>[^\W\d_][\w-]*)\s+)?(?P<rate>[0-9].*?)"
    r"(?:\s+burst\s+(?P<burst>\S+)(?:\s+(?P<ending>.+))?|\s+(?P<mode>policing|shaping))?",
    re.IGNORECASE | re.DOTALL,
)
_EXAMPLES = "'100/minute', '10/s burst 100' or 'fixed-window 5/15minutes'"

Rules = Rule | str | Mapping[str, "Rule | str"] | Iterable["Rule | str"]


def parse(text: str) -> tuple[Rule, ...]:
    """Read one or more rules, separated by ``;``, ``,`` or ``|``.

    ``100/minute``, ``10 per 2 hours`` and ``5/15minutes`` are sliding window counters, ``10/s burst 100`` is a token
    bucket, and an algorithm's name in front chooses any: ``leaky-bucket 10/s burst 20 shaping``. A bucket without
    ``burst`` has the count as its capacity.
    """
    if not isinstance(text, str):
        raise TypeError(f"a rule's text must be a str such as {_EXAMPLES}, not {rates.show(text)}")
    return tuple(_parse_one(part.strip(), text) for part in re.split(r"[;,|]", text))


def _parse_one(part: str, text: str) -> Rule:
    context = f"rule {rates.show(part)}"
    rates.check_length(part, context)
    match = _RULE.fullmatch(part)
    if match is None:
        raise InvalidRule(f"cannot read rule {rates.show(part)} in {rates.show(text)}: write it as {_EXAMPLES}")
    algorithm = (match["algorithm"] or ("token-bucket" if match["burst"] else "sliding-window-counter")).lower()
    if algorithm not in ALGORITHMS:
        raise InvalidRule(f"{context}: unknown algorithm {rates.show(match['algorithm'])}; use {', '.join(ALGORITHMS)}")
    count, period_us = rates.count_and_period(match["rate"], context)
    mode = (match["mode"] or match["ending"] or "").lower()
    if mode not in ("", "policing", "shaping"):
        raise InvalidRule(f"{context}: {rates.show(mode)} means nothing here; a leaky-bucket is policing or shaping")
    if mode and algorithm != "leaky-bucket":
        raise InvalidRule(f"{context}: only a leaky-bucket is {mode}, not a {algorithm}")
    try:
        if algorithm in _WINDOWS:
            if match["burst"]:
                raise InvalidRule(f"only a token-bucket or a leaky-bucket has a burst, not a {algorithm}")
            return _WINDOWS[algorithm](count, Fraction(period_us, rates.SECOND_US))
        capacity = _burst(match["burst"]) if match["burst"] else count
        rate = Fraction(count * rates.SECOND_US, period_us)
        if algorithm == "token-bucket":
            return TokenBucket(capacity, rate)
        return LeakyBucket(capacity, rate, "shaping" if mode == "shaping" else "policing")
    except InvalidRule as error:
        raise InvalidRule(f"{context}: {error}") from None


def _burst(text: str) -> int:
    if not re.fullmatch(r"[0-9][0-9_]*", text):
        raise InvalidRule(f"the burst must be a whole number, not {rates.show(text)}")
    return rates.whole_number(text, "burst")


def named(rules: Rules) -> dict[str, Rule]:
    """Give each rule its name: the one it came with in a mapping, otherwise its canonical text."""
    if isinstance(rules, Mapping):
        result = {_name(name): _one(name, rule) for name, rule in rules.items()}
    else:
        given = [rules] if isinstance(rules, (*RULE_TYPES, str)) else rules
        if isinstance(given, bytes) or not isinstance(given, Iterable):
            raise TypeError(f"rules must be a rule, a text, or a mapping or sequence of these, not {rates.show(rules)}")
        result = {}
        for rule in [rule for item in given for rule in (parse(item) if isinstance(item, str) else (_checked(item),))]:
            if rule.text in result:
                raise InvalidRule(
                    f"rule {rule.text!r} is given twice; give the two names, as in {{'a': ..., 'b': ...}}"
                )
            result[rule.text] = rule
    if not result:
        raise InvalidRule("a limiter needs at least one rule")
    return result


def _one(name: str, rule: object) -> Rule:
    if not isinstance(rule, str):
        return _checked(rule)
    rules = parse(rule)
    if len(rules) != 1:
        raise InvalidRule(
            f"rule {name!r} must be one rule, not the {len(rules)} in {rates.show(rule)}; give each its own name"
        )
    return rules[0]


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a rule's name must be a str, not {rates.show(name)}")
    if not 1 <= len(name) <= 100:
        raise InvalidRule(f"a rule's name must have from 1 to 100 characters, not {rates.show(name)}")
    return name


def _checked(rule: object) -> Rule:
    if not isinstance(rule, RULE_TYPES):
        raise TypeError(
            f"a rule must be one of ratekeeper's rules or a text such as {_EXAMPLES}, not {rates.show(rule)}"
        )
    return rule


def share_of(rule: Rule, share: Fraction) -> Rule:
    """Return a rule that admits this part of what the other one does, rounded up."""
    if share == 1:
        return rule
    limit = math.ceil(rule.limit * share)
    if isinstance(rule, TokenBucket | LeakyBucket):
        rate = Fraction(rule.units * rates.SECOND_US, rule.period_us) * share
        return TokenBucket(limit, rate) if isinstance(rule, TokenBucket) else LeakyBucket(limit, rate, rule.mode)
    return replace(rule, limit=limit)  # type: ignore[type-var]  # the three that have a window
