"""Check what callers pass, before anything is consumed, with errors that name the argument and the value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from ratekeeper.algorithms import Rule
from ratekeeper.errors import InvalidRule
from ratekeeper.rates import show

LONGEST_LEASE = 60
_LONGEST_DEADLINE = 86_400
_ON_ERROR = ("local", "open", "closed", "raise")


def by_name(argument: str, given: Any, names: Sequence[str], check: Callable[[Any], Any]) -> dict[str, Any]:
    """Check one value for all rules, or a mapping with a value for each rule; return the value of each rule."""
    if not isinstance(given, Mapping):
        value = check(given)
        if argument == "cost" and value == 0:
            raise InvalidRule("cost must be an int of at least 1, not 0")
        return dict.fromkeys(names, value)
    for name in given:
        if name not in names:
            known = ", ".join(map(repr, names))
            raise InvalidRule(f"{argument} {show(given)} names an unknown rule {show(name)}; the rules are {known}")
    return {name: check(value) for name, value in given.items()}


def check_cost(cost: Any) -> int:
    """Return a valid cost; 0 is only valid in a mapping, where it leaves a rule out."""
    if isinstance(cost, bool) or not isinstance(cost, int):
        raise TypeError(f"cost must be an int of at least 1, not {show(cost)}")
    if cost < 0:
        raise InvalidRule(f"cost must be an int of at least 1, not {show(cost)}")
    return int(cost)


def check_options(*, clock: Any, prefix: Any, group: Any, on_error: Any, deadline: Any, on_decision: Any) -> None:
    """Check the constructor's arguments other than the rules and the store."""
    for argument, hook in (("clock", clock), ("on_decision", on_decision)):
        if hook is not None and not callable(hook):
            raise TypeError(f"{argument} must be a callable or None, not {show(hook)}")
    if not isinstance(prefix, str):
        raise TypeError(f"prefix must be a str, not {show(prefix)}")
    if group is not None and not isinstance(group, str):
        raise TypeError(f"group must be a str or None, not {show(group)}")
    check_on_error(on_error)
    if isinstance(deadline, bool) or not isinstance(deadline, int | float):
        raise TypeError(f"deadline must be a number of seconds, not {show(deadline)}")
    if not 0 < deadline <= _LONGEST_DEADLINE:
        raise InvalidRule(f"deadline must be above 0 and at most {_LONGEST_DEADLINE} seconds, not {show(deadline)}")


def check_on_error(on_error: Any) -> Any:
    """Return what decisions are while the store is away, if it is one of the words for that."""
    if on_error not in _ON_ERROR:
        raise InvalidRule(f"on_error must be one of {', '.join(map(repr, _ON_ERROR))}, not {show(on_error)}")
    return on_error


def check_switch(argument: str, value: Any) -> None:
    """Check a switch: a text such as "false" would be true."""
    if not isinstance(value, bool):
        raise TypeError(f"{argument} must be True or False, not {show(value)}")


def check_stored_by(stored_by: Any) -> None:
    """Check what the stored keys of a rule are named by."""
    if stored_by not in ("name", "text"):
        raise InvalidRule(f"stored_by must be 'name' or 'text', not {show(stored_by)}")


def as_shadow(shadow: Any) -> bool | tuple[str, ...]:
    """Return which rules are only tried out: all, none, or those with these names."""
    if isinstance(shadow, bool):
        return shadow
    if isinstance(shadow, str | bytes) or not isinstance(shadow, Iterable):
        raise TypeError(f"shadow must be True, False or a list of rule names, not {show(shadow)}")
    return tuple(shadow)


def check_shadow(shadow: Any, names: Sequence[str]) -> frozenset[str]:
    """Return the names of the rules that are only tried out."""
    given = as_shadow(shadow)
    if isinstance(given, bool):
        return frozenset(names if given else ())
    for name in given:
        if name not in names:
            known = ", ".join(map(repr, names))
            raise InvalidRule(f"shadow names an unknown rule {show(name)}; the rules are {known}")
    return frozenset(given)


def check_share(share: Any) -> Fraction:
    """Return the part of the limits that this process enforces while the store is away."""
    if isinstance(share, bool) or not isinstance(share, int | float | Fraction):
        raise TypeError(f"local_share must be a number, not {show(share)}")
    if not 1e-6 <= share <= 1:
        raise InvalidRule(f"local_share must be at least 0.000001 and at most 1, not {show(share)}")
    return Fraction(share).limit_denominator(10**6)


def check_lease(lease: Any, rules: Sequence[Rule]) -> float | None:
    """Return for how long a slice of a hot key may be held."""
    if lease is None:
        return None
    seconds = check_lease_seconds(lease)
    if len(rules) > 1 or rules[0].shapes:
        raise InvalidRule("lease needs a limiter with one rule that does not shape")
    return seconds


def check_lease_seconds(lease: Any) -> float:
    """Return a valid length of a lease."""
    if isinstance(lease, bool) or not isinstance(lease, int | float):
        raise TypeError(f"lease must be a number of seconds, not {show(lease)}")
    if not 0 < lease <= LONGEST_LEASE:
        raise InvalidRule(f"lease must be above 0 and at most {LONGEST_LEASE} seconds, not {show(lease)}")
    return lease
