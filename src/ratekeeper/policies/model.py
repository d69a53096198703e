"""Policies as frozen values: what a file says, once it has been read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, NamedTuple

from ratekeeper import rates
from ratekeeper.algorithms import Rule
from ratekeeper.fallback import OnError
from ratekeeper.policies.conditions import When
from ratekeeper.policies.templates import CostTemplate, KeyTemplate

Word = Literal["unlimited", "blocked"]
PolicyLimit = Rule | Word
Effect = Mapping[str, PolicyLimit] | Word
"""What an override puts in place of the rules' own limits: by rule, or one word for all rules."""

ALWAYS = When({})


@dataclass(frozen=True)
class PolicyRule:
    """One rule of a policy."""

    name: str
    limit: PolicyLimit
    key: KeyTemplate
    when: When = ALWAYS
    cost: CostTemplate | None = None
    shadow: bool = False


@dataclass(frozen=True)
class Override:
    """Other limits for the requests that meet its conditions."""

    when: When
    limits: Effect


@dataclass(frozen=True)
class StoreOptions:
    """How a policy uses its store; None where something else says so."""

    on_error: OnError | None = None
    local_share: Fraction | None = None
    lease: float | None = None

    def or_else(self, others: StoreOptions) -> StoreOptions:
        """Return these options, and the others where these are None."""
        return StoreOptions(
            self.on_error or others.on_error, self.local_share or others.local_share, self.lease or others.lease
        )


NO_STORE_OPTIONS = StoreOptions()


class PolicyStoreOptions(NamedTuple):
    """The options of a limiter by policy."""

    own: StoreOptions = NO_STORE_OPTIONS
    """What counts, whatever the file says."""
    defaults: StoreOptions = NO_STORE_OPTIONS
    """What counts where the file says nothing."""

    def of(self, policy: Policy) -> StoreOptions:
        """Return what counts for a policy."""
        options = self.own.or_else(policy.store_options).or_else(self.defaults)
        return options if policy.may_lease else replace(options, lease=None)


NO_OPTIONS = PolicyStoreOptions()


@dataclass(frozen=True)
class Policy:
    """A named set of rules that are decided together."""

    name: str
    rules: tuple[PolicyRule, ...]
    overrides: tuple[Override, ...] = ()
    store_options: StoreOptions = NO_STORE_OPTIONS
    shadow: bool = False
    callers: frozenset[str] = frozenset()
    """The hashes of the tokens with which the service may be called; none: whoever may call the service."""

    @property
    def may_lease(self) -> bool:
        """Whether usage may be taken ahead: of one rule that does not shape."""
        return len(self.rules) == 1 and not (isinstance(self.rules[0].limit, Rule) and self.rules[0].limit.shapes)

    @property
    def in_shadow(self) -> frozenset[str]:
        """The names of the rules that are only tried out."""
        return frozenset(rule.name for rule in self.rules if self.shadow or rule.shadow)


def limit_text(limit: PolicyLimit) -> str:
    """Write a limit as a file has it."""
    return limit if isinstance(limit, str) else limit.text


def stored_name(policy: str, rule: str, limit: Rule) -> str:
    """Return the name under which a rule's usage is stored.

    A changed limit takes over the usage where that means the same: always in a bucket. A count in one window means
    nothing in a window of another length, so each length has a name of its own.
    """
    name = f"{policy}/{rule}"
    is_windowed = any(field.kind == "window" for field in limit.fields)
    return f"{name}/{rates.duration_text(limit.window_us)}" if is_windowed else name
