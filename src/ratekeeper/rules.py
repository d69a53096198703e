"""Rules as text or as fields: `parse` and `rule` read them, and `named` gives each rule of a limiter its name.

>>> parse("100/minute")
(SlidingWindowCounter(limit=100, window=60),)
>>> [rule.text for rule in parse("10/s burst 100; fixed-window 1000/hour")]
['token-bucket 10/s burst 100', 'fixed-window 1000/hour']
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ratekeeper import rates
from ratekeeper.algorithms import ALGORITHMS, BY_NAME, Rule, SlidingWindowCounter, TokenBucket
from ratekeeper.errors import InvalidRule

if TYPE_CHECKING:
    from fractions import Fraction

_RULE = (
    r"(?:(?P<algorithm>[^\W\d_][\w-]*)\s+)?(?P<rate>[0-9].*?)"
    r"(?:\s+burst\s+(?P<burst>\S+)(?:\s+(?P<ending>.+))?|\s+(?P<mode>%s))?"
)
WINDOW = 60
"""The window of a rule whose fields give none, in seconds."""
MODE = "policing"
"""The mode of a rule whose fields give none, in algorithms that have modes."""
MAX_IN_TEXT = 32
"""The most rules that a text can have."""
_EXAMPLES = "'100/minute', '10/s burst 100' or 'fixed-window 5/15minutes'"
_MODES = {algorithm: [variant.mode for variant in algorithm.variants if variant.mode] for algorithm in ALGORITHMS}
_KINDS = {field.name: field.kind for algorithm in ALGORITHMS for field in algorithm.fields}
_ALL_MODES = list(dict.fromkeys(mode for modes in _MODES.values() for mode in modes))

Rules = Rule | str | Mapping[str, "Rule | str"] | Iterable["Rule | str"]


def parse(text: str) -> tuple[Rule, ...]:
    """Read one or more rules, separated by ``;``, ``,`` or ``|``.

    ``100/minute``, ``10 per 2 hours`` and ``5/15minutes`` are sliding window counters, ``10/s burst 100`` is a token
    bucket, and an algorithm's name in front chooses any: ``leaky-bucket 10/s burst 20 shaping``. A bucket without
    ``burst`` has the count as its capacity.
    """
    if not isinstance(text, str):
        raise TypeError(f"a rule's text must be a str such as {_EXAMPLES}, not {rates.show(text)}")
    if len(text) > MAX_IN_TEXT * (rates.MAX_CHARACTERS + 1):  # before anything is done with it
        raise InvalidRule(f"a text of {len(text)} characters is too long for rules: {rates.show(text)}")
    parts = re.split(r"[;,|]", text)
    if len(parts) > MAX_IN_TEXT:
        raise InvalidRule(f"a text has at most {MAX_IN_TEXT} rules, not {len(parts)}: {rates.show(text)}")
    # Runs of spaces become one: the patterns would take quadratic time on them.
    return tuple(_parse_one(" ".join(part.split()), text) for part in parts)


def _parse_one(part: str, text: str) -> Rule:
    context = f"rule {rates.show(part)}"
    rates.check_length(part, context)
    match = re.fullmatch(_RULE % "|".join(_ALL_MODES), part, re.IGNORECASE | re.DOTALL)
    if match is None:
        raise InvalidRule(f"cannot read rule {rates.show(part)} in {rates.show(text)}: write it as {_EXAMPLES}")
    default = TokenBucket if match["burst"] else SlidingWindowCounter
    algorithm = algorithm_called(match["algorithm"] or default.algorithm)
    if algorithm is None:
        raise InvalidRule(f"{context}: unknown algorithm {rates.show(match['algorithm'])}; use {', '.join(BY_NAME)}")
    count, period_us = rates.count_and_period(match["rate"], context)
    mode = (match["mode"] or match["ending"] or "").lower()
    if mode and mode not in _ALL_MODES:
        known = "; ".join(f"a {each.algorithm} is {' or '.join(modes)}" for each, modes in _MODES.items() if modes)
        raise InvalidRule(f"{context}: {rates.show(mode)} is not a mode; {known}")
    if mode and mode not in _MODES[algorithm]:
        known = " or a ".join(each.algorithm for each, modes in _MODES.items() if mode in modes)
        raise InvalidRule(f"{context}: only a {known} can be {mode}, not a {algorithm.algorithm}")
    try:
        if match["burst"] is None:
            return algorithm.of(count, period_us, mode=mode)
        if not algorithm.takes_burst:
            bursty = " or a ".join(each.algorithm for each in ALGORITHMS if each.takes_burst)
            raise InvalidRule(f"only a {bursty} has a burst, not a {algorithm.algorithm}")
        return algorithm.of(count, period_us, _burst(match["burst"]), mode)
    except InvalidRule as error:
        raise InvalidRule(f"{context}: {error}") from None


def _burst(text: str) -> int:
    if not re.fullmatch(r"[0-9][0-9_]*", text):
        raise InvalidRule(f"the burst must be a whole number, not {rates.show(text)}")
    return rates.whole_number(text, "burst")


def rule(
    algorithm: str,
    *,
    limit: int | None = None,
    window: rates.Window = WINDOW,
    capacity: int | None = None,
    refill_rate: rates.Rate | None = None,
    leak_rate: rates.Rate | None = None,
    mode: str = MODE,
) -> Rule:
    """Make a rule from its algorithm's name, written with ``-`` or ``_``, and its fields.

    ``limit`` alone is enough for every algorithm. In a bucket it stands for ``capacity``, and ``limit`` in each
    ``window`` for the rate.

    >>> rule("sliding_window_log", limit=100)
    SlidingWindowLog(limit=100, window=60)
    >>> rule("token-bucket", limit=120), rule("token-bucket", capacity=20, refill_rate=10)
    (TokenBucket(capacity=120, refill_rate=Fraction(2, 1)), TokenBucket(capacity=20, refill_rate=Fraction(10, 1)))
    """
    given = {
        "limit": limit,
        "window": window,
        "capacity": capacity,
        "refill_rate": refill_rate,
        "leak_rate": leak_rate,
        "mode": None if mode == MODE else mode,  # an algorithm may have other modes
    }
    return from_fields(algorithm, {name: value for name, value in given.items() if value is not None})


def from_fields(algorithm: str | None, given: Mapping[str, Any]) -> Rule:
    """Make a rule as `rule` does. An error about a field begins with the field's name."""
    if algorithm is None:
        raise InvalidRule(f"algorithm is missing; use {', '.join(BY_NAME)}")
    if not isinstance(algorithm, str):
        raise TypeError(f"algorithm must be a str such as {TokenBucket.algorithm!r}, not {rates.show(algorithm)}")
    kind = algorithm_called(algorithm)
    if kind is None:
        raise InvalidRule(f"algorithm {rates.show(algorithm)} is unknown; use {', '.join(BY_NAME)}")
    for name in given:
        _check_meant(name, given, kind)
    limit = rates.limit(given["limit"]) if "limit" in given else None
    window = given.get("window", WINDOW)
    values = {}
    for field in kind.fields:
        if field.name in given:
            values[field.name] = given[field.name]
        elif field.kind == "window":
            values[field.name] = window
        elif field.kind != "mode":
            if limit is None:
                raise InvalidRule(f"{field.name} is missing: {_needs(kind)}")
            values[field.name] = limit if field.kind == "count" else _rate(limit, window)
    return kind(**values)


def algorithm_called(name: str) -> type[Rule] | None:
    """Return the algorithm of this name, however it is written: `token-bucket`, `token_bucket` or `Token-Bucket`."""
    return BY_NAME.get(name.lower().replace("_", "-"))


def _check_meant(name: str, given: Mapping[str, Any], kind: type[Rule]) -> None:
    """Raise InvalidRule if an algorithm has no use for a field, unless the field has its default."""
    own = {field.kind: field.name for field in kind.fields}
    if name in own.values() or name == "limit":
        return
    if name == "window":
        rate = own.get("rate")
        if rate in given and rates.window_us(given[name]) != WINDOW * rates.SECOND_US:
            raise InvalidRule(f"window has no effect beside {rate}: leave out one of them")
    elif name == "mode":
        if given[name] != MODE:
            modal = " or a ".join(each.algorithm for each, modes in _MODES.items() if given[name] in modes)
            said = f"is for a {modal}, not for a {kind.algorithm}" if modal else f"is not {' or '.join(_ALL_MODES)}"
            raise InvalidRule(f"mode {rates.show(given[name])} {said}")
    else:
        use = own.get(_KINDS[name]) or " and ".join(each.name for each in kind.fields)
        raise InvalidRule(f"{name} is not a field of a {kind.algorithm}; use {use}")


def _needs(kind: type[Rule]) -> str:
    names = [field.name for field in kind.fields if field.kind in ("count", "rate")]
    return f"a {kind.algorithm} needs {' and '.join(names)}{'' if 'limit' in names else ', or limit'}"


def _rate(limit: int, window: rates.Window) -> Fraction:
    from fractions import Fraction

    return Fraction(limit * rates.SECOND_US, rates.window_us(window))


def blamed(error: Exception, names: Iterable[str]) -> str | None:
    """Return which of these arguments an error is about: the one that its message begins with."""
    message = str(error)
    return next((name for name in names if message.startswith((f"{name} ", f"{name}:"))), None)


def named(rules: Rules) -> dict[str, Rule]:
    """Give each rule its name: its name in a mapping, otherwise its canonical text."""
    if isinstance(rules, Mapping):
        result = {_name(name): _one(name, rule) for name, rule in rules.items()}
        for name, rule in result.items():
            _check_meaning(name, rule)
    else:
        given = [rules] if isinstance(rules, (*ALGORITHMS, str)) else rules
        if isinstance(given, bytes) or not isinstance(given, Iterable):
            raise TypeError(f"rules must be a rule, a text, or a mapping or sequence of these, not {rates.show(rules)}")
        result = {}
        for rule in [rule for item in given for rule in (parse(item) if isinstance(item, str) else (_checked(item),))]:
            if rule.text in result:
                raise InvalidRule(f"rule {rule.text!r} is given twice; name both, as in {{'a': ..., 'b': ...}}")
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
            f"rule {name!r} must be one rule, not the {len(rules)} in {rates.show(rule)}; give each a name of its own"
        )
    return rules[0]


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a rule's name must be a str, not {rates.show(name)}")
    if not 1 <= len(name) <= 100:
        raise InvalidRule(f"a rule's name must have from 1 to 100 characters, not {rates.show(name)}")
    return name


def _check_meaning(name: str, rule: Rule) -> None:
    """Raise InvalidRule if a name is the text of another rule: they would share their usage."""
    if name.partition(" ")[0] not in BY_NAME or name == rule.text:
        return
    try:
        meant = parse(name)
    except InvalidRule:
        return
    if name == meant[0].text:
        raise InvalidRule(
            f"rule name {name!r} is the text of another rule, but this rule is {rule.text!r}; "
            f"use a name that is not a rule's text"
        )


def _checked(rule: object) -> Rule:
    if not isinstance(rule, ALGORITHMS):
        raise TypeError(
            f"a rule must be one of ratekeeper's rules or a text such as {_EXAMPLES}, not {rates.show(rule)}"
        )
    return rule


def share_of(rule: Rule, share: Fraction) -> Rule:
    """Return a rule that admits this share of what `rule` admits, rounded up."""
    try:
        return rule if share == 1 else rule.scaled(share)
    except InvalidRule as error:
        raise InvalidRule(f"local_share {share} of {rule.text}: {error}") from None


def with_headroom(rules: Rules, headroom: float | Fraction) -> Rules:
    """Return stricter rules, for clients of a server that has these rules and counts requests when they arrive.

    Requests may then take longer than others to arrive by this share of a window, and the server still admits them all.
    Rules with a name keep it.

    >>> with_headroom("sliding-window-log 40/10s", 0.05)
    [SlidingWindowLog(limit=40, window=10.5)]
    >>> with_headroom({"requests": "fixed-window 500/minute"}, 0.05)
    {'requests': FixedWindow(limit=475, window=60)}
    """
    from fractions import Fraction

    if isinstance(headroom, bool) or not isinstance(headroom, int | float | Fraction):
        raise TypeError(f"headroom must be a number, not {rates.show(headroom)}")
    if not 0 <= headroom <= 0.5:
        raise InvalidRule(f"headroom must be from 0 to 0.5, a share of the limit, not {rates.show(headroom)}")
    share = Fraction(headroom).limit_denominator(1000)
    stricter = {name: _stricter(rule, share) for name, rule in named(rules).items()}
    return stricter if isinstance(rules, Mapping) else list(stricter.values())


def _stricter(rule: Rule, share: Fraction) -> Rule:
    try:
        return rule.with_headroom(share) if share else rule
    except InvalidRule as error:
        raise InvalidRule(f"headroom {share} of {rule.text}: {error}") from None
