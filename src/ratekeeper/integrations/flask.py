"""Rate limits for Flask, as an extension.

    limiter = RateLimiter(app, default="200/day; 50/hour", store="redis://localhost")

    @app.get("/slow")
    @limiter.limit("1/day")
    def slow(): ...

A view's own limits replace those of its blueprint, which replace the `default`, unless `override_defaults=False`.
`application` counts all requests of a client together. A denied request raises `RateLimitExceeded`, which
`app.errorhandler(429)` can handle. Inside a view, `with limiter.limit("5/minute"):` limits a part of it.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from flask import Blueprint, Flask, Request, current_app

from ratekeeper import stores
from ratekeeper.decision import Decision
from ratekeeper.errors import InvalidRule
from ratekeeper.http import Gate, Notices, Options, Route
from ratekeeper.http.client_keys import KeyFunction
from ratekeeper.http.gate_options import for_several, no_option
from ratekeeper.http.matching import SWITCHED_OFF
from ratekeeper.http.policy_limits import loaded
from ratekeeper.http.routes import CostFunction, Deny, Limit, SettleFunction, is_rules_function
from ratekeeper.integrations.decorator_order import bypassed
from ratekeeper.integrations.flask_requests import RateLimitExceeded, admit, answers_preflight, current, is_static, tell
from ratekeeper.integrations.flask_settings import configured, with_strategy
from ratekeeper.integrations.views import Declared, mark, own_limits
from ratekeeper.integrations.wsgi import MAX_HELD
from ratekeeper.rates import show
from ratekeeper.ruleset import Costs, Shadow

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["RateLimitExceeded", "RateLimiter", "Route", "ViewLimit"]

_Limitable = TypeVar("_Limitable", bound=Callable[..., Any] | Blueprint)
_MAX_GATES = 1000  # for limits that are made anew for each request


class RateLimiter:
    """The extension. Its options are those of `ratekeeper.http.Gate`, and override the application's config.

    `default` and `application` may be a `Route`, which has options of its own. The config may have the settings of
    Flask-Limiter; those that have no meaning here are rejected with what to use instead.
    """

    def __init__(
        self,
        app: Flask | None = None,
        *,
        default: Limit | Route = None,
        application: Limit | Route = None,
        **options: Unpack[Options],
    ) -> None:
        self.notices = options.get("notices") or Notices()
        """Counters of the requests that the rules in the store did not decide, and why."""
        for option in options:
            if option not in Options.__annotations__:
                raise no_option(option, ["default", "application", *Options.__annotations__])
        self._options = for_several({**options, "notices": self.notices})
        if self._options.get("policies") is not None:
            self._options["policies"] = loaded(self._options["policies"])
        _check(self._options)
        self._default = default
        self._application = application
        self._of_blueprint: dict[Blueprint, list[ViewLimit]] = {}
        self._exempt: set[Blueprint] = set()
        self._declared: list[ViewLimit] = []
        self._limited: list[tuple[Callable[..., Any], Callable[..., Any]]] = []
        self._states: weakref.WeakSet[_State] = weakref.WeakSet()
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Limit an application, using its current configuration."""
        if not isinstance(app, Flask):
            raise TypeError(
                f"app must be a Flask application, not {show(app)}; pass limits as default=... or application=..."
            )
        if self in app.extensions.get("ratekeeper", ()):
            raise RuntimeError("this application is limited already, so init_app would count each request twice")
        default, application, is_enabled, strategy, options = configured(app.config)
        is_enabled = self._options.get("enabled", is_enabled)
        state = _State(
            self,
            app.view_functions,
            default=default if self._default is None else self._default,
            application=application if self._application is None else self._application,
            strategy=strategy,
            options={**options, **self._options, "enabled": is_enabled},
        )
        app.extensions.setdefault("ratekeeper", {})[self] = state if is_enabled else None
        if is_enabled:
            for declared in self._declared:
                state.check(declared)
            self._states.add(state)
            app.before_request(functools.partial(self._before_request, state))
            app.after_request(tell)
        else:
            app.before_request(functools.partial(self.notices.note, "unlimited", SWITCHED_OFF))

    def limit(
        self,
        limit: Limit = None,
        *,
        policy: str | None = None,
        key: KeyFunction | None = None,
        cost: Costs | CostFunction | None = None,
        settle: SettleFunction | None = None,
        methods: Collection[str] | None = None,
        per_method: bool | None = None,
        deny: Deny = None,
        shadow: Shadow | None = None,
        name: str | None = None,
        override_defaults: bool = True,
    ) -> ViewLimit:
        """Limit a view, each view of a blueprint or a `with` block; limits with the same `name` share their usage.

        A `policy`, in place of rules, has one usage wherever it is used. With `override_defaults=False`, the limits of
        the blueprint and the default apply as well.
        """
        if policy is not None and name is not None:
            raise TypeError("a policy counts by its own keys, wherever it is used; it has no other name")
        listed = tuple(methods) if isinstance(methods, list | set | frozenset) else methods  # which can be hashed
        route = Route("*", limit, listed, key, cost, settle, "", per_method, deny, shadow, policy)
        return ViewLimit(self, Declared(route, name, override_defaults))

    def exempt(self, view: _Limitable) -> _Limitable:
        """Exempt a view, or the views of a blueprint, from all limits but its own."""
        if isinstance(view, Blueprint):
            self._exempt.add(view)
        else:
            view.ratekeeper_exempt = True  # type: ignore[attr-defined]
        return view

    def note_limited(self, view: Callable[..., Any], limited: Callable[..., Any]) -> None:
        """Note that a view was limited, so that it can be told if a route has the view as it was."""
        self._limited.append((view, limited))

    def declare(self, limit: ViewLimit, blueprint: Blueprint | None = None) -> None:
        """Check a limit with the settings of each application, those to come as well; apply it to a blueprint."""
        for state in self._states:
            state.check(limit)
        self._declared.append(limit)
        if blueprint is not None:
            self._of_blueprint.setdefault(blueprint, []).append(limit)

    def admit(self, limit: ViewLimit, scope: str) -> Decision | None:
        """Apply a limit to the current request; unless the limit has a name, its usage is that of the scope."""
        state = self._state()
        own = current()
        return None if state is None else state.admit(own, limit, f"{own.endpoint} {scope}")

    def _state(self) -> _State | None:
        try:
            return current_app.extensions["ratekeeper"][self]  # type: ignore[no-any-return]
        except KeyError:
            raise RuntimeError("init_app was not called for this application, which has a limited view") from None

    def _before_request(self, state: _State) -> None:
        if not state.is_started:
            state.is_started = True
            self._tell_bypassed(state)
        own = current()
        if own.method == "OPTIONS" and not state.count_preflights and answers_preflight(own):
            return
        endpoint = own.endpoint or ""
        view = state.views.get(endpoint)
        if hasattr(view, "ratekeeper_exempt"):
            return
        blueprints: list[Any] = []
        if "." in endpoint and (self._exempt or self._of_blueprint):
            blueprints = [current_app.blueprints[name] for name in own.blueprints]
            if not self._exempt.isdisjoint(blueprints):
                return
        if state.application is not None:
            admit(own, state.application)
        if view is None or is_static(endpoint):
            return
        for limit in self._inherited(own.method, view, [*map(self._limits_of, blueprints), state.defaults]):
            state.admit(own, limit, endpoint)

    def _tell_bypassed(self, state: _State) -> None:
        for view in bypassed(self._limited, state.views.values()):
            name = getattr(view, "__qualname__", view)
            self.notices.note(
                "unlimited", f"view {name!r} is not limited; write its limit below @app.route(...), not above"
            )

    def _limits_of(self, blueprint: Blueprint) -> list[ViewLimit]:
        return self._of_blueprint.get(blueprint, [])

    def _inherited(self, method: str, view: Any, levels: list[list[ViewLimit]]) -> list[ViewLimit]:
        """Return the limits of these levels, innermost first, that no inner limit for the method replaces."""
        limits: list[ViewLimit] = []
        inner = [each for each in own_limits(view, method) if isinstance(each, ViewLimit) and each.limiter is self]
        for level in levels:
            if any(each.declared.replaces_defaults(method) for each in inner):
                break
            limits += level
            inner = level
        return limits


class ViewLimit:
    """A limit as declared: decorates a view or a blueprint, or limits a `with` block inside a view."""

    def __init__(self, limiter: RateLimiter, declared: Declared) -> None:
        self.limiter = limiter
        self.declared = declared
        self.known_as: object = declared
        """Limits that are made anew for each request, and are alike, are known as the same."""
        try:
            hash(declared)
        except TypeError:  # a list of rules, say
            self.known_as = self
        declared.check()

    def __call__(self, limited: _Limitable) -> _Limitable:
        """Limit a view, or each view of a blueprint."""
        self.known_as = self  # which takes less time to compare
        self.limiter.declare(self, limited if isinstance(limited, Blueprint) else None)
        return limited if isinstance(limited, Blueprint) else self._wrapped(limited)  # type: ignore[return-value]

    @property
    def __name__(self) -> str:
        """There is none: Flask asks for it if a decorator was written without its limit."""
        raise AttributeError("this limit limits no view yet; write it with a limit, as in @limiter.limit('10/minute')")

    def __enter__(self) -> Decision | None:
        return self.limiter.admit(self, "with")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass

    def _wrapped(self, view: Callable[..., Any]) -> Callable[..., Any]:
        is_async = inspect.iscoroutinefunction(view)
        title = getattr(view, "__qualname__", type(view).__qualname__)

        @functools.wraps(view)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.limiter.admit(self, title)
            return (current_app.ensure_sync(view) if is_async else view)(*args, **kwargs)

        mark(call, view, self)
        self.limiter.note_limited(view, call)
        return call


class _State:
    """The state of the extension for one application."""

    def __init__(
        self,
        limiter: RateLimiter,
        views: Mapping[str, Any],
        *,
        default: Limit | Route,
        application: Limit | Route,
        strategy: str | None,
        options: Options,
    ) -> None:
        store = options.get("store", "memory://") if options["enabled"] else "memory://"
        options["store"] = stores.from_url(store) if isinstance(store, str) else store
        options.setdefault("max_waiters", MAX_HELD)
        self._strategy = strategy
        self.is_started = False
        """Whether there was a request."""
        policy = options.pop("policy", None)
        if policy is not None and application is not None:
            raise InvalidRule("application and policy cannot be combined: both are for all requests")
        for_all = Route("*", policy=policy, name="") if policy is not None else application
        routes = [*options.pop("routes", ()), *([] if for_all is None else [_route(for_all)])]
        first: Options = {**options, "routes": [self._with_strategy(route) for route in routes]}
        self._first = Gate(**first, shares_options=True)
        self.count_preflights = self._first.count_preflights
        self.application = self._first if routes else None
        self.views = views
        self._options = options
        self.defaults: list[ViewLimit] = []
        if default is not None:
            route = _route(default)
            rules = with_strategy(route.limit, self._strategy)
            if rules is not None and not is_rules_function(rules):
                options["fallback"] = rules
            self.defaults = [ViewLimit(limiter, Declared(replace(route, name=""), route.name or None))]
        self._prefix = options.get("prefix", "ratekeeper")
        self._gates: dict[Any, Gate] = {}
        for limit in self.defaults:
            self._gate(limit.declared, "")

    def admit(self, own: Request, limit: ViewLimit, scope: str) -> Decision | None:
        """Apply a limit to a request; unless the limit has a name, its usage is that of the scope."""
        declared = limit.declared
        if declared.name is not None or declared.is_by_policy:
            scope = declared.name or ""
        known = limit.known_as, scope
        gate = self._gates.get(known)
        if gate is None:
            gate = self._gate(declared, scope)
            for oldest in list(self._gates)[: max(0, len(self._gates) + 1 - _MAX_GATES)]:
                self._gates.pop(oldest, None)
            self._gates[known] = gate
        return admit(own, gate)

    def check(self, limit: ViewLimit) -> None:
        """Raise if a limit cannot work with the settings of this application."""
        if limit.declared.is_by_policy:
            self._gate(limit.declared, "")
        else:
            replace(limit.declared, route=self._with_strategy(limit.declared.route)).check()

    def _with_strategy(self, route: Route) -> Route:
        return replace(route, limit=with_strategy(route.limit, self._strategy))

    def _gate(self, declared: Declared, scope: str) -> Gate:
        route = self._with_strategy(declared.route)
        prefix = self._prefix if declared.is_by_policy else f"{self._prefix}:{scope}"
        options: Options = {**self._options, "routes": [route], "prefix": prefix}
        return Gate(**options, shares_options=True, sibling=self._first)


def _route(limit: Limit | Route) -> Route:
    return limit if isinstance(limit, Route) else Route("*", limit, name="")


def _check(options: Options) -> None:
    """Raise errors where the limiter is declared; the store is checked later."""
    options = {**options, "store": "memory://"}
    Gate(**options, shares_options=True)
