"""Makes the limiters of a gate: for rules, and for policies. All of them use one store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ratekeeper import stores
from ratekeeper.errors import InvalidRule
from ratekeeper.fallback import OnError
from ratekeeper.http.address import ClientAddress
from ratekeeper.http.client_keys import address_of
from ratekeeper.http.headers import Headers
from ratekeeper.http.http_limiter import HttpLimiter
from ratekeeper.http.policy_limits import RoutePolicy, Unidentified, loaded
from ratekeeper.http.request_attributes import AttributeFunction, RequestAttributes
from ratekeeper.http.routes import Route
from ratekeeper.limiter import AsyncLimiter, Limiter
from ratekeeper.notices import Notices
from ratekeeper.rates import show
from ratekeeper.rules import named
from ratekeeper.stores.protocol import Store

AnyShadow = bool | tuple[str, ...]


class LimiterMaker:
    """Makes limiters with the options of a gate."""

    def __init__(
        self,
        kind: type[Limiter | AsyncLimiter],
        store: str | Store,
        *,
        prefix: str,
        on_error: OnError | None,
        policies: Any,
        attributes: Mapping[str, AttributeFunction],
        headers: Headers,
        unidentified: Unidentified,
        notices: Notices,
        **options: Any,
    ) -> None:
        self._store = store
        self.own_store: Store | None = None
        """The store, if it was made here."""
        self._kind = kind
        self._prefix = prefix
        self._on_error = on_error
        self._policies = None if policies is None else loaded(policies)
        self.by_policy: dict[Any, Limiter | AsyncLimiter] = {}
        """The limiters by policy, which siblings share."""
        self._attributes = attributes
        self._headers = headers
        self._unidentified = unidentified
        self._notices = notices
        self._options = {"notices": notices, **options}

    @property
    def store(self) -> Store:
        """The store, one for all limiters; a URL becomes a store when it is needed first."""
        if isinstance(self._store, str):
            self._store = self.own_store = stores.from_url(self._store, for_asyncio=self._kind is AsyncLimiter)
        return self._store

    def http_limiter(self, limit: Any, name: str, shadow: AnyShadow, *, is_one_of_many: bool = False) -> HttpLimiter:
        """Return the limiter for rules, or one that is given."""
        if isinstance(limit, Limiter | AsyncLimiter):
            return HttpLimiter(self._given(limit, shadow), self._headers)
        prefix = f"{self._prefix}:{name}" if name else self._prefix
        group = prefix if is_one_of_many else None
        if not isinstance(shadow, bool):
            names = named(limit)
            shadow = tuple(rule for rule in shadow if rule in names)  # the others are those of other routes
        options = {"group": group, "shadow": shadow, "on_error": self._on_error or "local", **self._options}
        return HttpLimiter(self._kind(limit, self.store, prefix=prefix, **options), self._headers)

    def policy_limit(self, route: Route, key: Any, shadow: AnyShadow) -> RoutePolicy:
        """Return the policy that a route names, or whose limiter is given; `key` may say how addresses are found."""
        limiter: Any = route.limit
        limiter = self._of_policy(route.policy, shadow) if route.policy is not None else self._given(limiter, shadow)
        for_asyncio = self._kind is AsyncLimiter
        title = f"policy {limiter.policy!r}"
        attributes = RequestAttributes(
            self._attributes, address_of(key) or ClientAddress(), title, for_asyncio=for_asyncio
        )
        return RoutePolicy(limiter, self._headers, attributes, self._unidentified, self._notices)

    def _given(self, limiter: Any, shadow: AnyShadow) -> Limiter | AsyncLimiter:
        if not isinstance(limiter, self._kind):
            raise TypeError(f"limit must be rules or of type {self._kind.__name__} here, not {show(limiter)}")
        if shadow:
            raise InvalidRule("shadow cannot be combined with a limiter; write Limiter(..., shadow=True)")
        self._notices.include(limiter.notices)
        return limiter

    def _of_policy(self, policy: str, shadow: AnyShadow) -> Limiter | AsyncLimiter:
        """Return the one limiter for all routes with this policy: its usage is that of the policy, wherever it is."""
        if self._policies is None:
            raise InvalidRule(f"policy {policy!r} needs `policies`: policies='limits.toml', or Policies.load(...)")
        known = self.by_policy.get((policy, shadow))
        if known is not None:
            return known
        make = self._policies.async_limiter if self._kind is AsyncLimiter else self._policies.limiter
        if not isinstance(shadow, bool) and policy in self._policies:
            names = [rule.name for rule in self._policies[policy].rules]
            shadow = tuple(rule for rule in shadow if rule in names)
        made = make(policy, self.store, prefix=self._prefix, on_error=self._on_error, shadow=shadow, **self._options)
        self.by_policy[policy, shadow] = made
        return made
