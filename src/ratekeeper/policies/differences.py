"""What changes between two policy files, and whether usage is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from ratekeeper.policies.model import ALWAYS, Override, Policy, PolicyLimit, PolicyRule, limit_text, stored_name


def differences(before: Mapping[str, Policy], after: Mapping[str, Policy]) -> list[str]:
    """Return a line for each change; none if both mean the same."""
    lines = [f"- policy {name}" for name in before if name not in after]
    lines += [f"+ policy {name}" for name in after if name not in before]
    for name, policy in after.items():
        if name in before:
            lines += _of_policy(before[name], policy)
    return lines


def _of_policy(before: Policy, after: Policy) -> Iterator[str]:
    name = after.name
    for field, default in (("on_error", "local"), ("local_share", 1), ("lease", "none")):
        values = [getattr(policy.store_options, field) or default for policy in (before, after)]
        yield from _changed(f"{name}: {field}", *values)
    yield from _changed(f"{name}: shadow", before.shadow, after.shadow)
    yield from _changed(f"{name}: callers", *(", ".join(sorted(each.callers)) or "all" for each in (before, after)))
    old, new = ({rule.name: rule for rule in policy.rules} for policy in (before, after))
    for rule in before.rules:
        if rule.name not in new:
            yield f"- {name}: rule {rule.name} ({limit_text(rule.limit)})"
    for rule in after.rules:
        if rule.name in old:
            yield from _of_rule(name, old[rule.name], rule)
        else:
            yield f"+ {name}: rule {rule.name} ({limit_text(rule.limit)})"
    if [each for each in old if each in new] != [each for each in new if each in old]:
        yield f"~ {name}: the order of the rules"
    yield from _of_overrides(
        name, [_text(each) for each in before.overrides], [_text(each) for each in after.overrides]
    )


def _of_rule(policy: str, before: PolicyRule, after: PolicyRule) -> Iterator[str]:
    place = f"{policy}: rule {after.name}:"
    if before.limit != after.limit:
        kept = _kept(policy, after.name, before.limit, after.limit)
        yield f"~ {place} limit {limit_text(before.limit)} -> {limit_text(after.limit)}{kept}"
    if before.key != after.key:
        yield f"~ {place} key {before.key.text!r} -> {after.key.text!r} (its usage is counted anew)"
    yield from _changed(f"{place} when", before.when, after.when)
    yield from _changed(f"{place} cost", *("1" if each.cost is None else each.cost.text for each in (before, after)))
    yield from _changed(f"{place} shadow", before.shadow, after.shadow)


def _kept(policy: str, rule: str, before: PolicyLimit, after: PolicyLimit) -> str:
    if isinstance(before, str) or isinstance(after, str):
        return ""
    same = before.algorithm == after.algorithm and stored_name(policy, rule, before) == stored_name(policy, rule, after)
    return " (its usage is kept)" if same else " (another algorithm or window: its usage is counted anew)"


def _of_overrides(policy: str, before: list[str], after: list[str]) -> Iterator[str]:
    gone, come = Counter(before) - Counter(after), Counter(after) - Counter(before)
    yield from (f"- {policy}: override {text}" for text in gone.elements())
    yield from (f"+ {policy}: override {text}" for text in come.elements())
    if [text for text in before if text not in gone] != [text for text in after if text not in come]:
        yield f"~ {policy}: the order of the overrides"


def _text(override: Override) -> str:
    effect = override.limits
    told = (
        effect if isinstance(effect, str) else ", ".join(f"{name} {limit_text(each)}" for name, each in effect.items())
    )
    return f"{'every request' if override.when == ALWAYS else override.when}: {told}"


def _changed(place: str, before: Any, after: Any) -> Iterator[str]:
    if before != after:
        yield f"~ {place} {_plain(before)} -> {_plain(after)}"


def _plain(value: Any) -> str:
    if isinstance(value, Fraction):
        return f"{float(value):g}"
    return str(value).lower() if isinstance(value, bool) else str(value)
