"""What a request would meet: its rules, each with its key, limit and cost, or why it is left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ratekeeper.policies.attributes import as_texts
from ratekeeper.policies.model import limit_text
from ratekeeper.policies.versions import Applied, Version
from ratekeeper.stores.protocol import Key


class ExplainedRule(NamedTuple):
    """One rule of a policy, as a request meets it."""

    rule: str
    applies: bool
    """Whether the rule decides: it is counted, or it blocks."""
    limit: str
    """The limit that counts for the request, or would if the rule applied."""
    reason: str
    """Why the rule does not apply; empty if it does."""
    key: str | None = None
    """The key that it is counted under, if it is counted."""
    cost: int | None = None
    """What it is charged, if it is counted."""
    shadow: bool = False
    """Whether it is only tried out."""

    def __str__(self) -> str:
        shadow = " (shadow)" if self.shadow else ""
        if not self.applies:
            return f"{self.rule}{shadow}: {self.reason}"
        if self.key is None:
            return f"{self.rule}{shadow}: {self.limit}"
        return f"{self.rule}{shadow}: {self.limit}, key {self.key!r}, cost {self.cost}"


class Explanation(NamedTuple):
    """The rules of a policy, as a request meets them."""

    policy: str
    override: str | None
    """The override that counts, if one does."""
    rules: tuple[ExplainedRule, ...]

    def __str__(self) -> str:
        by = "" if self.override is None else f", by {self.override}"
        return "\n".join([f"{self.policy}{by}", *(f"  {rule}" for rule in self.rules)])


def explain(version: Version, attributes: Mapping[str, Any], cost: Any = 1) -> Explanation:
    """Explain what a hit with these attributes would meet; raise what the hit would raise."""
    return explain_applied(version.apply("peek", attributes, cost), attributes)


def explain_applied(applied: Applied, attributes: Mapping[str, Any]) -> Explanation:
    """Explain what a call by these demands meets."""
    version = applied.version
    texts = as_texts(attributes)
    effect, by = version.override(texts)
    demands = {demand.binding.name: demand for demand in applied}
    blocked = {rule.name for rule in applied.blocked}
    explained = []
    for given, rule in zip(version.policy.rules, version.rules, strict=True):
        limit = effect if isinstance(effect, str) else (effect or {}).get(rule.name, rule.limit)
        text = limit if isinstance(limit, str) else limit.rule.text
        is_out = rule.when is not None and not rule.when.matches(texts)
        if is_out:
            told = ExplainedRule(rule.name, False, limit_text(given.limit), f"its condition is not met: {rule.when}")
        elif text == "unlimited":
            told = ExplainedRule(rule.name, False, text, "unlimited")
        elif rule.name in blocked:
            told = ExplainedRule(rule.name, True, text, "")
        elif rule.name in demands:
            demand = demands[rule.name]
            told = ExplainedRule(rule.name, True, text, "", key_text(demand.key), demand.cost)
        else:
            reason = "another rule blocks the request" if blocked else "its cost is 0"
            told = ExplainedRule(rule.name, False, text, reason)
        explained.append(told._replace(shadow=not rule.binds))
    applies = any(rule.applies or rule.reason == "unlimited" for rule in explained)
    return Explanation(version.policy.name, _title(version, by) if applies else None, tuple(explained))


def _title(version: Version, by: Any) -> str | None:
    if by is None:
        return None
    if isinstance(by, int):
        return f"overrides[{by}] ({version.policy.overrides[by].when})"
    return f"override {by.id!r} ({by.when})"


def key_text(key: Key) -> str:
    """Write a key for people: its parts, of which defaults are marked."""
    if not isinstance(key, tuple):
        return str(key)
    if isinstance(key[0], bytes):
        return f"(hashed) {key[0].hex()}"
    defaults = key[-1] if isinstance(key[-1], int) else 0
    parts = [part for part in key if isinstance(part, str)]
    return " / ".join(f"{part} (default)" if defaults >> at & 1 else part for at, part in enumerate(parts))
