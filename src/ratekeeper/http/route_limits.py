"""What a gate knows of one route: its limiters, its key function, its cost."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from ratekeeper import arguments
from ratekeeper.errors import InvalidRule
from ratekeeper.http.client_keys import KeyFunction, check_function
from ratekeeper.http.http_limiter import HttpLimiter
from ratekeeper.http.request import Request
from ratekeeper.http.routes import CostFunction, Route, SettleFunction, is_rules_function
from ratekeeper.rates import show

_MAX_LIMITERS = 1000  # for rules that depend on the request; usage is kept in the store
Unidentified = Literal["shared", "deny", "skip"]
_CONSEQUENCES = {
    "shared": "all such requests share one key",
    "deny": "such requests are denied",
    "skip": "such requests are not limited",
}
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
        unidentified: Unidentified,
        make_limiter: Callable[[Any, str], HttpLimiter],
        for_asyncio: bool,
    ) -> None:
        self.title = route.title
        self.matches = None if route.matches_all else route.matcher()
        self.key = route.key or key
        self.unidentified = unidentified
        self.settle = route.settle or settle
        self._name = self.title if route.name is None else route.name
        self._make_limiter = make_limiter
        self._by_rules: dict[Any, HttpLimiter] = {}
        self._logged: set[str] = set()
        given = cost if route.cost is None else route.cost
        self.cost_function: CostFunction | None = given if callable(given) else None
        self.cost: Any = 1 if callable(given) else given
        self.rules_function: Any = route.limit if is_rules_function(route.limit) else None
        self.http_limiter: HttpLimiter | None = None
        self.otherwise: HttpLimiter | None = None  # what applies when the rules function fails
        try:
            for argument, function in (("key", self.key), ("cost", self.cost_function), ("limit", self.rules_function)):
                if function is not None:
                    check_function(argument, function, for_asyncio=for_asyncio)
            if self.settle is not None:
                check_function("settle", self.settle, "the answer", for_asyncio=for_asyncio)
            if route.limit is not None and self.rules_function is None:
                self.http_limiter = make_limiter(route.limit, self._name)
                arguments.by_name("cost", self.cost, list(self.http_limiter.rules), arguments.check_cost)
        except InvalidRule as error:
            raise InvalidRule(f"{self._shown}: {error}") from None
        except TypeError as error:
            raise TypeError(f"{self._shown}: {error}") from None
        # What nearly all applications have: known rules and a known cost, nothing to hold and nothing to settle.
        is_simple = self.http_limiter is not None and not self.http_limiter.shapes
        self.simple = self.http_limiter if is_simple and self.cost_function is None and self.settle is None else None

    def find_key(self, request: Request) -> Any:
        """Return what the key function returns; None, which is logged, if there is no key or the function fails."""
        try:
            key = self.key(request)
        except Exception:  # noqa: BLE001 - an error in the application's function must not fail the request
            self.log_no_key("the key function failed")
            return None
        if key is None:
            self.log_no_key("a request has no key", error=False)
        return key

    def limiter_for(self, rules: Any) -> HttpLimiter:
        """Return the limiter for the rules that a rules function returned."""
        if isinstance(rules, Mapping):
            known: Any = tuple(rules.items())
        else:
            known = rules = rules if isinstance(rules, str) or not isinstance(rules, Iterable) else tuple(rules)
        limiter = self._by_rules.get(known)
        if limiter is None:
            limiter = self._make_limiter(rules, self._name)
            while len(self._by_rules) >= _MAX_LIMITERS:
                self._by_rules.pop(next(iter(self._by_rules)), None)
            self._by_rules[known] = limiter
        return limiter

    def checked_cost(self, cost: Any, limiter: HttpLimiter) -> Any:
        """Return what a cost function returned, if it is a valid cost; 0 means free."""
        if not isinstance(cost, Mapping):
            return arguments.check_cost(cost)
        costs = arguments.by_name("cost", cost, list(limiter.rules), arguments.check_cost)
        is_free = len(costs) == len(limiter.rules) and not any(costs.values())
        return 0 if is_free else costs

    def log_no_key(self, why: str, *, error: bool = True) -> None:
        """Log, the first time, what happens to requests without a key."""
        self.log_once(f"{why}: {_CONSEQUENCES[self.unidentified]}", error=error)

    def log_once(self, what: str, *, error: bool = True) -> None:
        """Log, the first time, what went wrong in a function of the application."""
        if what not in self._logged:
            self._logged.add(what)
            _log.warning("%s: %s; this is logged once", self._shown, what, exc_info=error)

    @property
    def _shown(self) -> str:
        return f"route {show(self.title)}"
