"""Runtime overrides: they take precedence over those in the file, and expire on their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratekeeper.policies.build import NAME, Reader
from ratekeeper.policies.conditions import When
from ratekeeper.policies.documents import Document
from ratekeeper.policies.mistakes import InvalidPolicies, Mistake
from ratekeeper.policies.model import Effect, Policy, limit_text
from ratekeeper.rates import show
from ratekeeper.spelling import nearest

FIELDS = ("policy", "when", "limits", "expires_in")
LONGEST = 10 * 366 * 86_400  # seconds


@dataclass(frozen=True)
class RuntimeOverride:
    """Other limits for the requests that meet its conditions, until it ends."""

    id: str
    policy: str
    when: When
    limits: Effect
    ends_ns: int
    """When it ends, in nanoseconds since the epoch."""

    @property
    def conditions(self) -> dict[str, list[str]]:
        """Its `when`, as `stored_override` reads it."""
        return {name: list(patterns) for name, patterns in self.when.given.items()}

    @property
    def limit_texts(self) -> str | dict[str, str]:
        """Its `limits`, as `stored_override` reads them."""
        if isinstance(self.limits, str):
            return self.limits
        return {rule: limit_text(limit) for rule, limit in self.limits.items()}


def read_override(id: str, given: Any, policies: Mapping[str, Policy], now_ns: int) -> RuntimeOverride:  # noqa: A002
    """Read an override from `{"policy", "when", "limits", "expires_in"}`; raise InvalidPolicies with all mistakes."""
    mistakes: list[Mistake] = []
    if not isinstance(id, str) or not NAME.fullmatch(id):
        mistakes.append(Mistake(None, "id", f"must have from 1 to 64 letters, digits, '_', '.' or '-', not {show(id)}"))
    if not isinstance(given, Mapping):
        raise InvalidPolicies([*mistakes, Mistake(None, "", f"an override must be a table, not {show(given)}")])
    for name in given:
        if name not in FIELDS:
            reason = f"is not a field of an override; its fields are {', '.join(FIELDS)}"
            mistakes.append(Mistake(None, str(name)[:100], reason, nearest(name, FIELDS)))
    policy = given.get("policy")
    if not isinstance(policy, str) or policy not in policies:
        known = ", ".join(policies)
        reason = f"must be one of the policies {known}, not {show(policy)}"
        mistakes.append(Mistake(None, "policy", reason, nearest(policy, policies)))
    seconds = given.get("expires_in")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= LONGEST:
        reason = f"must be a number of seconds above 0 and at most {LONGEST}, not {show(seconds)}"
        mistakes.append(Mistake(None, "expires_in", reason))
    if mistakes or not isinstance(policy, str) or not isinstance(seconds, int | float):
        raise InvalidPolicies(mistakes)
    reader = Reader(Document("", "json", given, {}))
    data = {name: given[name] for name in ("when", "limits") if name in given}
    override = reader.override((), data, [rule.name for rule in policies[policy].rules])
    reader.raise_mistakes()
    return RuntimeOverride(id, policy, override.when, override.limits, now_ns + round(seconds * 1e9))


def stored_override(id: str, policy: str, when: Any, limits: Any, ends_ns: int) -> RuntimeOverride:  # noqa: A002
    """Make an override from what was stored of it; its policy and rules may be gone.

    Raise InvalidPolicies if it is damaged.
    """
    reader = Reader(Document("", "json", None, {}))
    rules = list(limits) if isinstance(limits, Mapping) else []
    override = reader.override((), {"when": when, "limits": limits}, rules)
    reader.raise_mistakes()
    return RuntimeOverride(id, policy, override.when, override.limits, ends_ns)
