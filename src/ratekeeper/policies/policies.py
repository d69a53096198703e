"""Policies in use: the limiters that follow them, and how they change while calls run."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from ratekeeper import arguments
from ratekeeper.clock import Clock, wall_clock
from ratekeeper.decision import Decision
from ratekeeper.errors import InvalidRule
from ratekeeper.fallback import OnError
from ratekeeper.limiter import AsyncLimiter, Limiter
from ratekeeper.notices import Notices
from ratekeeper.policies.build import MAX_OVERRIDES, build
from ratekeeper.policies.documents import Document, Format, read
from ratekeeper.policies.explaining import Explanation, explain
from ratekeeper.policies.model import NO_OPTIONS, NO_STORE_OPTIONS, Policy, PolicyStoreOptions, StoreOptions
from ratekeeper.policies.policy_rules import PolicyRules
from ratekeeper.policies.runtime_overrides import RuntimeOverride, read_override
from ratekeeper.rates import show
from ratekeeper.ruleset import Shadow
from ratekeeper.spelling import nearest
from ratekeeper.stores.protocol import Store

_SHOWN = 20


class UnknownPolicy(InvalidRule):
    """No policy of this name is in force."""


class Policies(Mapping[str, Policy]):
    """The policies of one file, by name. Limiters made from them follow every later change.

        >>> policies = Policies.load('''
        ...     [[policies.api.rules]]
        ...     name = "user"
        ...     limit = "fixed-window 2/minute"
        ...     key = "{user}"
        ... ''')
        >>> limiter = policies.limiter("api")
        >>> [limiter.hit({"user": 42}).allowed, limiter.hit({"user": "42"}, cost=2).allowed]
        [True, False]

    A change is all or nothing: a call is decided by what was in force when it began, and a file with a mistake changes
    nothing. Usage is kept where a rule's algorithm and window are the same.
    """

    def __init__(self, document: Document, clock: Clock | None = None) -> None:
        """Use `Policies.load`."""
        self._clock = clock or wall_clock
        self._lock = threading.RLock()
        self._policies: Mapping[str, Policy] = build(document)
        self._document = document
        self._overrides: dict[str, RuntimeOverride] = {}  # the newest last
        self._followers: weakref.WeakSet[PolicyRules] = weakref.WeakSet()

    @classmethod
    def load(
        cls,
        path_or_text: str | os.PathLike[str],
        format: Format | None = None,  # noqa: A002 - the usual word
        clock: Clock | None = None,
    ) -> Policies:
        """Read a file or a text, in TOML, YAML or JSON; raise InvalidPolicies, with all its mistakes, if it has any.

        `clock`, which returns integer nanoseconds, determines when runtime overrides end.
        """
        return cls(read(path_or_text, format), clock)

    @classmethod
    def load_file(cls, path: str | os.PathLike[str], clock: Clock | None = None) -> Policies:
        """Read a file, whatever its name looks like."""
        return cls.load(Path(path), None, clock)

    @property
    def text(self) -> str:
        """The text that is in force."""
        return self._document.text

    @property
    def format(self) -> Format:
        """The format of the text."""
        return self._document.format

    @property
    def document(self) -> Document:
        """What is in force, as text and as plain data."""
        return self._document

    @property
    def clock(self) -> Clock:
        """The clock that determines when runtime overrides end."""
        return self._clock

    @property
    def path(self) -> Path | None:
        """The file that the text is from."""
        return self._document.path

    def __getitem__(self, name: str) -> Policy:
        return self._policies[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._policies)

    def __len__(self) -> int:
        return len(self._policies)

    def __contains__(self, name: object) -> bool:  # which a mapping has, too, but much slower
        return name in self._policies

    def __repr__(self) -> str:
        return f"Policies({list(self._policies)}, path={None if self.path is None else str(self.path)!r})"

    __hash__ = object.__hash__
    __eq__ = object.__eq__

    def limiter(
        self,
        policy: str,
        store: str | Store = "memory://",
        *,
        clock: Clock | None = None,
        prefix: str = "ratekeeper",
        on_error: OnError | None = None,
        deadline: float = 0.1,
        enabled: bool = True,
        shadow: Shadow = False,
        on_decision: Callable[[Any, Decision], object] | None = None,
        local_share: float | Fraction | None = None,
        lease: float | None = None,
        defaults: StoreOptions = NO_STORE_OPTIONS,
        notices: Notices | None = None,
    ) -> Limiter:
        """Return a limiter by a policy, whose keys are the attributes of requests.

        `on_error`, `local_share` and `lease` count before the policy's own, and `defaults` where it has none; `shadow`
        adds to what the policy tries out. The other options are those of a `Limiter`.
        """
        limiter: Limiter = self._limiter(
            Limiter,
            *(policy, store, PolicyStoreOptions(_checked(on_error, local_share, lease), defaults), shadow),
            clock=clock,
            prefix=prefix,
            deadline=deadline,
            enabled=enabled,
            on_decision=on_decision,
            notices=notices,
        )
        return limiter

    def async_limiter(
        self,
        policy: str,
        store: str | Store = "memory://",
        *,
        clock: Clock | None = None,
        prefix: str = "ratekeeper",
        on_error: OnError | None = None,
        deadline: float = 0.1,
        enabled: bool = True,
        shadow: Shadow = False,
        on_decision: Callable[[Any, Decision], object] | None = None,
        local_share: float | Fraction | None = None,
        lease: float | None = None,
        defaults: StoreOptions = NO_STORE_OPTIONS,
        notices: Notices | None = None,
    ) -> AsyncLimiter:
        """Return a `limiter` whose methods are awaited."""
        limiter: AsyncLimiter = self._limiter(
            AsyncLimiter,
            *(policy, store, PolicyStoreOptions(_checked(on_error, local_share, lease), defaults), shadow),
            clock=clock,
            prefix=prefix,
            deadline=deadline,
            enabled=enabled,
            on_decision=on_decision,
            notices=notices,
        )
        return limiter

    def replace(self, by: Policies | str | os.PathLike[str], format: Format | None = None) -> None:  # noqa: A002
        """Put another file or text in force, in every limiter at once; if it has mistakes, nothing changes.

        A limiter whose policy no longer exists keeps its rules.
        """
        if isinstance(by, Policies):
            self._put_in_force(by.document, dict(by))
        else:
            document = read(by, format)
            self._put_in_force(document, build(document))

    def reload(self) -> bool:
        """Read the file again, and put it in force if it has changed; tell whether it has."""
        if self.path is None:
            raise InvalidRule("policies that were loaded from a text cannot be reloaded; use replace()")
        document = read(self.path, self.format)
        if document.text == self.text:
            return False
        self._put_in_force(document, build(document))
        return True

    def explain(self, policy: str, attributes: Mapping[str, Any], cost: Any = 1) -> Explanation:
        """Say which rules a hit with these attributes would meet, with which keys and limits; change nothing."""
        self._check_known(policy)
        alike = (rules for rules in list(self._followers) if not rules.own_shadow)
        known = (rules for rules in alike if rules.version.policy is self._policies[policy])
        rules = next(known, None) or self._rules(policy)
        return explain(rules.version, attributes, cost)

    @property
    def overrides(self) -> list[RuntimeOverride]:
        """The runtime overrides that are in force, the newest first."""
        now = self._clock()
        with self._lock:
            return [each for each in reversed(list(self._overrides.values())) if now < each.ends_ns]

    def set_override(
        self,
        id: str,  # noqa: A002 - the usual word
        *,
        policy: str,
        when: Mapping[str, Any],
        limits: Any,
        expires_in: float,
    ) -> RuntimeOverride:
        """Put an override in force for `expires_in` seconds, before all others; one with the same id is replaced."""
        given = {"policy": policy, "when": when, "limits": limits, "expires_in": expires_in}
        with self._lock:
            override = read_override(id, given, self._policies, self._clock())
            kept = (each for each in reversed(self.overrides) if each.id != id)
            self.replace_overrides([*kept, override])
        return override

    def remove_override(self, id: str) -> bool:  # noqa: A002 - the usual word
        """End an override; tell whether it was in force."""
        with self._lock:
            known = self.overrides
            self.replace_overrides([each for each in reversed(known) if each.id != id])
        return any(each.id == id for each in known)

    def replace_overrides(self, overrides: Iterable[RuntimeOverride]) -> None:
        """Put these overrides in force instead of all others, the newest last; they may be of unknown policies."""
        now = self._clock()
        given = {each.id: each for each in overrides if now < each.ends_ns}
        if len(given) > MAX_OVERRIDES:
            raise InvalidRule(f"at most {MAX_OVERRIDES} runtime overrides are allowed, not {len(given)}")
        with self._lock:
            self._switch(self._policies, given)
            self._overrides = given

    def _put_in_force(self, document: Document, policies: Mapping[str, Policy]) -> None:
        with self._lock:
            self._switch(policies, self._overrides)
            self._policies, self._document = policies, document

    def _switch(self, policies: Mapping[str, Policy], overrides: Mapping[str, RuntimeOverride]) -> None:
        """Prepare the next version of every limiter, and only then let all of them switch."""
        prepared = []
        by_policy = _by_policy(overrides)
        for rules in list(self._followers):
            name = rules.version.policy.name
            policy = policies.get(name, rules.version.policy)
            runtime = by_policy.get(name, [])
            if policy != rules.version.policy or runtime != rules.version.runtime.overrides:
                prepared.append((rules, rules.version_of(policy, runtime)))
        for rules, version in prepared:
            rules.switch_to(version)

    def _limiter(
        self, kind: Any, policy: str, store: str | Store, options: PolicyStoreOptions, shadow: Shadow, **more: Any
    ) -> Any:
        self._check_known(policy)
        if options.own.lease is not None and not self._policies[policy].may_lease:
            raise InvalidRule("lease needs a policy with one rule that does not shape")
        own = {"on_error": options.own.on_error or "local", "local_share": options.own.local_share or 1}
        return kind(_Source(self, policy, options, shadow), store, **own, **more)

    def follow(self, policy: str, prefix: str, options: PolicyStoreOptions, shadow: Shadow) -> PolicyRules:
        """Return the rules of a new limiter, which follow every change from now on."""
        with self._lock:
            rules = self._rules(policy, prefix, options, shadow)
            self._followers.add(rules)
        return rules

    def _rules(
        self, policy: str, prefix: str = "", options: PolicyStoreOptions = NO_OPTIONS, shadow: Shadow = False
    ) -> PolicyRules:
        runtime = _by_policy(self._overrides).get(policy, [])
        return PolicyRules(self._policies[policy], prefix, runtime, self._clock, options, shadow)

    def _check_known(self, policy: str) -> None:
        if not isinstance(policy, str) or policy not in self._policies:
            raise unknown_policy(policy, self._policies)


def unknown_policy(policy: object, known: Iterable[str]) -> UnknownPolicy:
    """Return the error for a policy that is not in force, with the nearest name that is."""
    names = list(known)
    hint = nearest(policy, names)
    said = "" if hint is None else f"; did you mean {hint!r}?"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return UnknownPolicy(f"policy {show(policy)} is unknown; the policies are {', '.join(names[:_SHOWN])}{more}{said}")


class _Source:
    """What a limiter makes its rules from."""

    def __init__(self, policies: Policies, policy: str, options: PolicyStoreOptions, shadow: Shadow) -> None:
        self._policies = policies
        self._policy = policy
        self._options = options
        self._shadow = shadow

    def ruleset(self, prefix: str) -> PolicyRules:
        return self._policies.follow(self._policy, prefix, self._options, self._shadow)


def _checked(on_error: Any, local_share: Any, lease: Any) -> StoreOptions:
    return StoreOptions(
        None if on_error is None else arguments.check_on_error(on_error),
        None if local_share is None else arguments.check_share(local_share),
        None if lease is None else arguments.check_lease_seconds(lease),
    )


def _by_policy(overrides: Mapping[str, RuntimeOverride]) -> dict[str, list[RuntimeOverride]]:
    """Return the overrides of each policy, the newest first."""
    found: dict[str, list[RuntimeOverride]] = {}
    for override in reversed(list(overrides.values())):
        found.setdefault(override.policy, []).append(override)
    return found
