"""What a gate knows of one route: its limiters, its key function, its cost."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ratekeeper import arguments
from ratekeeper.decision import Decision
from ratekeeper.errors import InvalidRule
from ratekeeper.http.chosen_rules import chosen
from ratekeeper.http.client_keys import (
    KeyFunction,
    address_of,
    check_function,
    method_of,
    of_key,
    of_request,
    unscoped,
    why_none,
    within,
)
from ratekeeper.http.headers import Headers
from ratekeeper.http.http_limiter import BLOCKED, HttpLimiter
from ratekeeper.http.policy_limits import RoutePolicy, Unidentified
from ratekeeper.http.request import Reply, Request
from ratekeeper.http.routes import CostFunction, Deny, Route, SettleFunction, is_by_policy, is_rules_function
from ratekeeper.notices import Kind, Notices
from ratekeeper.rates import show
from ratekeeper.ruleset import Shadow

_MAX_LIMITERS = 1000  # for rules that depend on the request; usage is kept in the store
_log = logging.getLogger("ratekeeper")


class RouteLimit:
    """The limit of one route, with the functions that the application gave for it."""

    def __init__(
        self,
        route: Route,
        key: KeyFunction,
        cost: Any,
        settle: SettleFunction | None,
        *,
        per_method: bool,
        deny: Deny,
        unidentified: Unidentified,
        shadow: Shadow,
        make_limiter: Callable[..., HttpLimiter],
        make_policy_limit: Callable[[Route, Any, bool | tuple[str, ...]], RoutePolicy],
        notices: Notices,
        prefix: str,
        for_asyncio: bool,
    ) -> None:
        self.title = route.title
        self._shown = f"route {show(self.title)}" + ("" if prefix == "ratekeeper" else f" under {show(prefix)}")
        self.matcher = route.matcher()
        self.is_exempt = route.limit is None and route.policy is None
        self.unidentified = unidentified
        self.settle = route.settle or settle
        self._name = self.title if route.name is None else route.name
        self._limit = route.limit
        self._make_limiter = make_limiter
        self._notices = notices
        self._by_rules: dict[Any, HttpLimiter | None] = {}
        self._logged: set[str] = set()
        given = cost if route.cost is None else route.cost
        self.cost_function: CostFunction | None = None
        self.cost: Any = 1 if callable(given) else given
        self.rules_function: Any = None
        self._shadow = arguments.as_shadow(shadow if route.shadow is None else route.shadow)
        self._deny = deny if route.deny is None else route.deny
        self._counted_by = route.key or key, per_method if route.per_method is None else route.per_method
        self.http_limiter: HttpLimiter | None = None
        self.otherwise: HttpLimiter | None = None  # what applies when the rules function fails
        self.policy: RoutePolicy | None = None
        try:
            self.key = of_request("key", self._counted_by[0], for_asyncio=for_asyncio)
            if self._counted_by[1]:
                self.key = within(method_of, self.key)
            if callable(given):
                self.cost_function = of_request("cost", given, for_asyncio=for_asyncio)
            if is_rules_function(route.limit):
                function = of_request("limit", route.limit, for_asyncio=for_asyncio)
                self.rules_function = of_key(function, unscoped(self.key))
            _check_deny(self._deny)
            if self.settle is not None:
                check_function("settle", self.settle, "the answer", for_asyncio=for_asyncio)
            if route.policy is not None or is_by_policy(route.limit):
                self._check_for_policy(route)
                self.policy = make_policy_limit(route, route.key or key, self._shadow)
            elif route.limit is not None and self.rules_function is None:
                self.http_limiter = self._limiter_for_all(route)
        except InvalidRule as error:
            raise InvalidRule(f"{self._shown}: {error}") from None
        except TypeError as error:
            raise TypeError(f"{self._shown}: {error}") from None
        # What nearly all applications have: known rules and a known cost, nothing to hold and nothing to settle.
        is_simple = self.http_limiter is not None and not self.http_limiter.shapes
        self.simple = self.http_limiter if is_simple and self.cost_function is None and self.settle is None else None

    def _limiter_for_all(self, route: Route) -> HttpLimiter:
        """Return the limiter of a route whose rules are the same for all requests."""
        limiter = self.limiter_of(route.limit)
        if route.shadow is not None:
            arguments.check_shadow(route.shadow, list(limiter.rules))
        _check_cost(self.cost, limiter)
        return limiter

    def _check_for_policy(self, route: Route) -> None:
        if self._counted_by[1]:
            raise InvalidRule("per_method does not apply to a policy, which counts by its own keys: use {method} there")
        if route.key is not None and address_of(route.key) is None:
            raise InvalidRule(
                "a policy has keys of its own; `key` can only be by_address(...), which says how `ip` is found"
            )
        if self.cost_function is None and isinstance(self.cost, Mapping):
            for each in self.cost.values():
                arguments.check_cost(each)
        elif self.cost_function is None:
            arguments.by_name("cost", self.cost, (), arguments.check_cost)

    @property
    def rules(self) -> Iterable[str]:
        """The names of the rules, as far as they are known before there is a request."""
        return () if self.http_limiter is None else self.http_limiter.rules

    def limiter_of(self, rules: Any) -> HttpLimiter:
        """Return a limiter of this route: its usage is that of all limiters of the route with the same rules."""
        return self._make_limiter(rules, self._name, self._shadow, is_one_of_many=self.rules_function is not None)

    def counts_as(self, other: RouteLimit) -> bool:
        """Tell whether another route counts the same requests together with this one's."""
        if self._counted_by != other._counted_by:
            return False
        own, others = self.http_limiter or self.policy, other.http_limiter or other.policy
        if own is not None and others is not None and own.limiter is others.limiter:
            return True
        return (self._name, self._limit) == (other._name, other._limit)

    def find_key(self, request: Request) -> Any:
        """Return what the key function returns; None if there is no key or the function fails."""
        try:
            key = self.key(request)
        except Exception as error:  # noqa: BLE001 - an error in the application's function must not fail the request
            self.note_no_key(error)
            return None
        if key is None:
            self.note_no_key()
        return key

    def limiter_for(self, rules: Any) -> HttpLimiter | None:
        """Return the limiter for the rules that a rules function returned; None if they limit nothing."""
        if isinstance(rules, Mapping):
            known: Any = tuple(rules.items())
        else:
            known = rules = rules if isinstance(rules, str) or not isinstance(rules, Iterable) else tuple(rules)
        try:
            limiter = self._by_rules[known]
        except KeyError:
            limiter = self._chosen_limiter(rules)
            for oldest in list(self._by_rules)[: max(0, len(self._by_rules) + 1 - _MAX_LIMITERS)]:
                self._by_rules.pop(oldest, None)
            self._by_rules[known] = limiter
        return limiter

    def _chosen_limiter(self, rules: Any) -> HttpLimiter | None:
        choice = chosen(rules)
        would_block: list[str] = []
        if choice.is_blocked:
            rules, would_block = self._enforced(rules)
            choice = chosen(rules)
            if choice.is_blocked:
                return BLOCKED
        limiter = None if choice.rules is None else self.limiter_of(choice.rules)
        if limiter is None and would_block:
            limiter = HttpLimiter(None, Headers.off())
        if limiter is not None:
            limiter.unlimited, limiter.would_block = (*choice.unlimited, *would_block), would_block
        return limiter

    def _enforced(self, rules: Any) -> tuple[Any, list[str]]:
        """Return rules without those that block everything but are only tried out, and their names."""
        if not isinstance(rules, Mapping):
            return (None, ["blocked"]) if self._shadow is True else (rules, [])
        in_shadow = rules if self._shadow is True else self._shadow or ()
        names = [name for name, rule in rules.items() if name in in_shadow and chosen(rule).is_blocked]
        return {name: rule for name, rule in rules.items() if name not in names} or None, names

    def checked_cost(self, cost: Any, limiter: HttpLimiter) -> Any:
        """Return what a cost function returned, if it is a valid cost; 0 means free."""
        if not isinstance(cost, Mapping):
            return arguments.check_cost(cost)
        costs = arguments.by_name("cost", limiter.without_unlimited(cost), list(limiter.rules), arguments.check_cost)
        is_free = len(costs) == len(limiter.rules) and not any(costs.values())
        return 0 if is_free else costs

    def answer_to(self, request: Request, decision: Decision) -> Reply | str | None:
        """Return what the application answers to a denied request; None means the usual response."""
        deny = self._deny
        if deny is None or isinstance(deny, str):
            return deny
        try:
            answer = deny(request, decision)
            if not (answer is None or isinstance(answer, Reply | str)):
                raise TypeError(f"deny must return a Reply, a text or None, not {show(answer)}")
        except Exception as error:  # noqa: BLE001 - an error in the application's function must not fail the request
            self.log_once("the deny function failed; the usual response is sent", error)
            return None
        return answer

    def note_no_key(self, error: Exception | None = None) -> None:
        """Count a request without a key, and log the first one."""
        why = why_none(self.key) if error is None else "the key function failed"
        if self.unidentified == "deny":
            self.log_once(f"{why}: such requests are denied", error)
        elif self.unidentified == "shared":
            self._note("shared", f"{why}: all such requests share one key", error)
        else:
            self._note("skipped", f"{why}: such requests are not limited", error)

    def note_free(self) -> None:
        """Count a request that costs nothing, and log the first one."""
        self._note("skipped", "a request has no cost: such requests are not limited")

    def note_shadow(self, rules: Iterable[str]) -> None:
        """Count a request that these rules would have denied without asking the store."""
        for rule in rules:
            self._notices.shadow_denied(rule)

    def note_unlimited(self) -> None:
        """Count a request for which the rules function has chosen no limit, and log the first one."""
        self._note("unlimited", "the rules function returned no limit for a request: such requests are not limited")

    def note_failure(self, error: Exception) -> None:
        """Count a request for which the rules function failed, and log the first one."""
        rules = "" if self.otherwise is None else "; ".join(rule.text for rule in self.otherwise.rules.values())
        self._note("degraded", f"the rules function failed; the default limit applies, {rules}", error)

    def _note(self, kind: Kind, what: str, error: Exception | None = None) -> None:
        self._notices.note(kind, f"{self._shown}: {what}", error=error)

    def log_once(self, what: str, error: Exception | None) -> None:
        """Log, the first time, what went wrong in a function of the application."""
        if what not in self._logged:
            self._logged.add(what)
            _log.warning("%s: %s; this is logged once", self._shown, what, exc_info=error)


def _check_deny(deny: Any) -> None:
    if deny is None or isinstance(deny, str):
        return
    if not callable(deny):
        raise TypeError(f"deny must be a text, or a function that returns a Reply, not {show(deny)}")
    check_function("deny", deny, "the decision", for_asyncio=False)


def _check_cost(cost: Any, limiter: HttpLimiter) -> None:
    """Raise unless rules can admit a cost that is the same for all requests."""
    costs = arguments.by_name("cost", cost, list(limiter.rules), arguments.check_cost)
    for name, rule in limiter.enforced.items():
        if costs.get(name, 1) > rule.limit:
            raise InvalidRule(
                f"cost {costs[name]} is above the limit of {rule.text!r}, so every request would be denied"
            )
