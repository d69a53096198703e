"""Routes: rules for some of an application's paths and methods."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ratekeeper.decision import Decision
from ratekeeper.errors import InvalidRule
from ratekeeper.http.client_keys import KeyFunction
from ratekeeper.http.request import Answer, Reply
from ratekeeper.http.url_paths import PathTest, exact_test, lenient_test
from ratekeeper.limiter import AsyncLimiter, Limiter
from ratekeeper.rates import show
from ratekeeper.rules import Rules
from ratekeeper.ruleset import Costs, Shadow

RulesFunction = Callable[[Any], "Rules | Awaitable[Rules | None] | None"]
CostFunction = Callable[[Any], "Costs | Awaitable[Costs]"]
SettleFunction = Callable[[Any, Answer], "Costs | Awaitable[Costs | None] | None"]
DenyFunction = Callable[[Any, Decision], "Reply | str | None"]
Deny = DenyFunction | str | None
ExemptFunction = Callable[[Any], "bool | Awaitable[bool]"]
Limit = Rules | Limiter | AsyncLimiter | RulesFunction | None

MISSING: Any = object()
_METHOD = re.compile(r"[A-Za-z]+")


@dataclass(frozen=True)
class Route:
    """Rules for the paths that `path` matches; of several routes, the first match applies.

    In a path, `{name}` matches one segment, and a `*` at the end matches anything: `/users/{id}`, `/api/*`. Write it as
    in the application's own routes, without the path of a mount. A limit applies however a client writes the path; a
    route without a limit matches the exact path only. Options that are left out are those of the whole application.
    """

    path: str
    limit: Limit = MISSING
    """Rules, a limiter, or a function that returns the rules for a request; None means no limit."""
    methods: Collection[str] | None = None
    """The methods, which may include "WEBSOCKET"; None means all."""
    key: KeyFunction | None = None
    cost: Costs | CostFunction | None = None
    settle: SettleFunction | None = None
    """Returns the real cost for a request and its answer; the difference is charged or given back."""
    name: str | None = None
    """Routes with the same name share their usage; without a name, each route has its own."""
    per_method: bool | None = None
    """Whether each method has its own usage. A HEAD counts as a GET, and methods that clients make up count as one."""
    deny: Deny = None
    """What a denied request gets: a text, or a function of the request and the decision. See `ratekeeper.http.Gate`."""
    shadow: Shadow | None = None
    """True if the rules, or a list of their names if some of them, are only tried out: they deny nothing."""
    policy: str | None = None
    """The name of a policy, in place of `limit`."""

    def __post_init__(self) -> None:
        if self.limit is MISSING:
            if self.policy is None:
                raise TypeError("a route needs a limit, which may be None, or a policy")
            object.__setattr__(self, "limit", None)
        _check_path(self.path)
        if isinstance(self.methods, str):
            raise TypeError(f"a route's methods must be a list such as ['POST'], not {show(self.methods)}")
        for method in self.methods or ():
            if not isinstance(method, str) or not _METHOD.fullmatch(method):
                raise InvalidRule(f"route {self.title!r}: {show(method)} is not a method")
        if self.policy is not None:
            self._check_policy()
        if self.per_method is not None and not isinstance(self.per_method, bool):
            raise TypeError(f"route {self.title!r}: per_method must be True or False, not {show(self.per_method)}")

    def _check_policy(self) -> None:
        if not isinstance(self.policy, str):
            raise TypeError(f"route {self.title!r}: policy must be the name of a policy, not {show(self.policy)}")
        if self.limit is not None:
            raise InvalidRule(f"route {self.title!r}: limit and policy cannot be combined")
        if self.per_method:
            raise InvalidRule(f"route {self.title!r}: a policy counts by its own keys; write {{method}} into them")

    @property
    def title(self) -> str:
        """The route as text, such as "POST /login"."""
        return " ".join((*sorted(map(str.upper, self.methods or ())), self.path))

    def matcher(self) -> Matcher:
        """Return the test of whether a request matches this route."""
        methods = None if self.methods is None else _with_head(self.methods)
        return Matcher(methods, exact_test(self.path), lenient_test(self.path), methods is None and self.path == "*")

    def is_for(self, method: str) -> bool:
        """Tell whether requests with this method match."""
        return self.methods is None or method.upper() in _with_head(self.methods)


def _check_path(path: Any) -> None:
    if not isinstance(path, str) or not path.startswith(("/", "*")):
        raise InvalidRule(f"a route's path must begin with '/', unlike {show(path)}")
    if path.endswith(".*"):
        raise InvalidRule(f"a route's path is no regular expression; for all below it, write '*', unlike {show(path)}")
    if "<" in path:
        raise InvalidRule(f"a route's path has its parts in braces, as in '/users/{{id}}', unlike {show(path)}")
    if "*" in path[:-1]:
        raise InvalidRule(f"a route's path may have a '*' only at its end, unlike {show(path)}")


def _with_head(methods: Collection[str]) -> set[str]:
    upper = {method.upper() for method in methods}
    return upper | {"HEAD"} if "GET" in upper else upper  # frameworks answer a HEAD wherever they answer a GET


class Matcher(NamedTuple):
    """The test of whether a request matches a route."""

    methods: Collection[str] | None
    is_path: PathTest
    """Whether a path matches as it is written."""
    may_be_path: PathTest
    """Whether a path, normalized and folded, may be read as one that matches."""
    is_all: bool
    """Whether every request matches."""


def exemption(text: str) -> Route:
    """Return the route of an exemption such as "/healthz" or "GET /healthz"."""
    method, space, path = text.partition(" ") if isinstance(text, str) else (text, "", "")
    return Route(path.strip(), None, methods=[method]) if space else Route(text, None)


def is_by_policy(limit: Any) -> bool:
    """Tell whether a limit is a limiter by policy."""
    return isinstance(limit, Limiter | AsyncLimiter) and limit.version is not None


def is_rules_function(limit: Any) -> bool:
    """Tell whether a limit is a function of the request."""
    return callable(limit) and not isinstance(limit, Limiter | AsyncLimiter | str | Mapping)
