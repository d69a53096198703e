"""A route made ready: its limiter or the limiters that its rules ask for, its key, its cost."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from ratekeeper import arguments
from ratekeeper.errors import InvalidRule
from ratekeeper.http.headers import Headers, HeaderWriter
from ratekeeper.http.keys import KeyFunction, check_function
from ratekeeper.http.request import Request
from ratekeeper.http.routes import CostFunction, Route, SettleFunction, is_rules_function
from ratekeeper.rates import show

_MAX_LIMITERS = 1000  # for rules that depend on the request; what they count is in the store
Unidentified = Literal["shared", "deny", "skip"]
_OUTCOMES = {
    "shared": "all such requests share one key",
    "deny": "such requests are denied",
    "skip": "such requests are not limited",
}
_log = logging.getLogger("ratekeeper")


class Limited:
    """A limiter, and what is known of its rules."""

    def __init__(self, limiter: Any, headers: Headers) -> None:
        self.limiter = limiter
        self.rules = limiter.rules
        self.shapes = any(rule.shapes for rule in self.rules.values())
        self.writer = HeaderWriter(self.rules, headers)


class Plan:
    """One route, with all that the application gives it."""

    def __init__(
        self,
        route: Route,
        key: KeyFunction,
        cost: Any,
        settle: SettleFunction | None,
        *,
        unidentified: Unidentified,
        make_limited: Callable[[Any, str], Limited],
        for_asyncio: bool,
    ) -> None:
        self.title = route.title
        self.matches = None if route.matches_all else route.matcher()
        self.key = route.key or key
        self.unidentified = unidentified
        self.settle = route.settle or settle
        self._name = self.title if route.name is None else route.name
        self._make_limited = make_limited
        self._by_rules: dict[Any, Limited] = {}
        self._logged: set[str] = set()
        given = cost if route.cost is None else route.cost
        self.cost_function: CostFunction | None = given if callable(given) else None
        self.cost: Any = 1 if callable(given) else given
        self.rules_function: Any = route.limit if is_rules_function(route.limit) else None
        self.limited: Limited | None = None
        self.otherwise: Limited | None = None  # what applies if the rules function fails
        try:
            for argument, function in (("key", self.key), ("cost", self.cost_function), ("limit", self.rules_function)):
                if function is not None:
                    check_function(argument, function, for_asyncio=for_asyncio)
            if self.settle is not None:
                check_function("settle", self.settle, "the answer", for_asyncio=for_asyncio)
            if route.limit is not None and self.rules_function is None:
                self.limited = make_limited(route.limit, self._name)
                arguments.by_name("cost", self.cost, list(self.limited.rules), arguments.check_cost)
        except InvalidRule as error:
            raise InvalidRule(f"{self._place}: {error}") from None
        except TypeError as error:
            raise TypeError(f"{self._place}: {error}") from None
        # What nearly all applications have: rules and a cost that are known, nothing to wait for and nothing to settle.
        is_plain = self.limited is not None and not self.limited.shapes
        self.plain = self.limited if is_plain and self.cost_function is None and self.settle is None else None

    def find_key(self, request: Request) -> Any:
        """Return what the key function gives; None, which is logged, if it gives nothing or fails."""
        try:
            key = self.key(request)
        except Exception:  # noqa: BLE001 - the application's function: its trouble is no reason to fail the request
            self.log_no_key("the key function failed")
            return None
        if key is None:
            self.log_no_key("a request has no key", error=False)
        return key

    def limited_by(self, rules: Any) -> Limited:
        """Return the limiter for rules that depend on the request."""
        if isinstance(rules, Mapping):
            known: Any = tuple(rules.items())
        else:
            known = rules = rules if isinstance(rules, str) or not isinstance(rules, Iterable) else tuple(rules)
        limited = self._by_rules.get(known)
        if limited is None:
            limited = self._make_limited(rules, self._name)
            while len(self._by_rules) >= _MAX_LIMITERS:
                self._by_rules.pop(next(iter(self._by_rules)), None)
            self._by_rules[known] = limited
        return limited

    def checked_cost(self, cost: Any, limited: Limited) -> Any:
        """Return what a cost function gave, if it can be a cost; 0 is free."""
        if not isinstance(cost, Mapping):
            return arguments.check_cost(cost)
        costs = arguments.by_name("cost", cost, list(limited.rules), arguments.check_cost)
        is_free = len(costs) == len(limited.rules) and not any(costs.values())
        return 0 if is_free else costs

    def log_no_key(self, why: str, *, error: bool = True) -> None:
        """Say what becomes of a request without a key, the first time."""
        self.log_once(f"{why}: {_OUTCOMES[self.unidentified]}", error=error)

    def log_once(self, what: str, *, error: bool = True) -> None:
        """Say what went wrong with a function of the application's, the first time."""
        if what not in self._logged:
            self._logged.add(what)
            _log.warning("%s: %s; this is said once", self._place, what, exc_info=error)

    @property
    def _place(self) -> str:
        return f"route {show(self.title)}"
