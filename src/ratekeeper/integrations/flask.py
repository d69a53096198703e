"""Rate limits for Flask, as an extension.

    limiter = RateLimiter(app, default="200/day; 50/hour", store="redis://localhost")

    @app.get("/slow")
    @limiter.limit("1/day")
    def slow(): ...

A view's own limits replace those of its blueprint, which replace the `default`. `application` counts all requests of
a client together. A denied request raises `RateLimitExceeded`, which `app.errorhandler(429)` can handle.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from flask import Blueprint, Flask, Request, Response, current_app, request
from werkzeug.exceptions import TooManyRequests

from ratekeeper import stores
from ratekeeper.decision import Decision
from ratekeeper.errors import InvalidRule, RateLimited
from ratekeeper.http import Admission, Answer, Gate, Headers, Notices, Reply, Route
from ratekeeper.http.client_keys import KeyFunction
from ratekeeper.http.gate import for_several
from ratekeeper.http.matching import SWITCHED_OFF
from ratekeeper.http.routes import CostFunction, Limit, SettleFunction, is_rules_function
from ratekeeper.integrations.wsgi import MAX_HELD, Counted, EnvironRequest
from ratekeeper.rates import show
from ratekeeper.ruleset import Costs

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ratekeeper.http import Options

__all__ = ["RateLimitExceeded", "RateLimiter", "Route"]

_Limitable = TypeVar("_Limitable", bound=Callable[..., Any] | Blueprint)
_PASSED = "ratekeeper.passed"  # the key in the environ for the limits that a request has passed
_STRATEGIES = ("fixed-window", "moving-window", "sliding-window-counter")


class RateLimitExceeded(RateLimited, TooManyRequests):
    """A denied request: an HTTP error of status 429 that carries its `decision`."""

    def __init__(self, decision: Decision, reply: Reply) -> None:
        RateLimited.__init__(self, decision)
        response = current_app.response_class(reply.body, reply.status, reply.headers)
        TooManyRequests.__init__(self, f"Rate limit exceeded; {decision.advice}", response)


class RateLimiter:
    """The extension. Its options are those of `ratekeeper.http.Gate`, and override the application's config.

    Settings: `RATELIMIT_ENABLED`, `RATELIMIT_DEFAULT`, `RATELIMIT_APPLICATION`, `RATELIMIT_STORAGE_URI`,
    `RATELIMIT_KEY_PREFIX`, `RATELIMIT_STRATEGY` (the algorithm of rates that name none),
    `RATELIMIT_HEADERS_ENABLED`, `RATELIMIT_SWALLOW_ERRORS` (admit everything while the store is unavailable),
    `RATELIMIT_IN_MEMORY_FALLBACK_ENABLED` (count in this process meanwhile; the default), `RATELIMIT_ON_ERROR` and
    `RATELIMIT_DEADLINE`.
    """

    def __init__(
        self, app: Flask | None = None, *, default: Limit = None, application: Limit = None, **options: Unpack[Options]
    ) -> None:
        self.notices = options.get("notices") or Notices()
        """Counters of the requests that the rules in the store did not decide, and why."""
        self._options = for_several({**options, "notices": self.notices})
        _check(self._options)
        self._default = default
        self._application = application
        self._of_blueprint: dict[Blueprint, list[_Spec]] = {}
        self._exempt: set[Blueprint] = set()
        self._specs: list[_Spec] = []
        self._states: weakref.WeakSet[_State] = weakref.WeakSet()
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Limit an application, using its current configuration."""
        default, application, is_enabled, strategy, options = _configured(app.config)
        is_enabled = self._options.get("enabled", is_enabled)
        state = _State(
            app.view_functions,
            default if self._default is None else self._default,
            application if self._application is None else self._application,
            strategy,
            {**options, **self._options, "enabled": is_enabled},
        )
        app.extensions.setdefault("ratekeeper", {})[self] = state if is_enabled else None
        if is_enabled:
            for spec in self._specs:
                state.check(spec)
            self._states.add(state)
            app.before_request(functools.partial(self._before_request, state))
            app.after_request(_tell)
        else:
            app.before_request(functools.partial(self.notices.note, "unlimited", SWITCHED_OFF))

    def limit(
        self,
        limit: Limit,
        *,
        key: KeyFunction | None = None,
        cost: Costs | CostFunction | None = None,
        settle: SettleFunction | None = None,
        methods: Collection[str] | None = None,
        name: str | None = None,
    ) -> Callable[[_Limitable], _Limitable]:
        """Limit a view, or each view of a blueprint; views with the same `name` share their usage."""
        spec = _Spec(Route("*", limit, methods, key, cost, settle, name=""), name)
        _check({"routes": [spec.route]})
        for state in self._states:
            state.check(spec)
        self._specs.append(spec)

        def decorate(limited: _Limitable) -> _Limitable:
            if isinstance(limited, Blueprint):
                self._of_blueprint.setdefault(limited, []).append(spec)
                return limited
            return self._wrapped(limited, spec)  # type: ignore[return-value]

        return decorate

    def exempt(self, view: _Limitable) -> _Limitable:
        """Exempt a view, or the views of a blueprint, from all limits but its own."""
        if isinstance(view, Blueprint):
            self._exempt.add(view)
        else:
            view.ratekeeper_exempt = True  # type: ignore[attr-defined]
        return view

    def _wrapped(self, view: Callable[..., Any], spec: _Spec) -> Callable[..., Any]:
        is_async = inspect.iscoroutinefunction(view)
        title = getattr(view, "__qualname__", type(view).__qualname__)

        @functools.wraps(view)
        def call(*args: Any, **kwargs: Any) -> Any:
            state = self._state()
            if state is not None:
                own = _current()
                state.admit(own, spec, f"{own.endpoint} {title}")
            return (current_app.ensure_sync(view) if is_async else view)(*args, **kwargs)

        call.ratekeeper_limited = True  # type: ignore[attr-defined]
        return call

    def _state(self) -> _State | None:
        try:
            return current_app.extensions["ratekeeper"][self]  # type: ignore[no-any-return]
        except KeyError:
            raise RuntimeError("init_app was not called for this application, which has a limited view") from None

    def _before_request(self, state: _State) -> None:
        own = _current()
        endpoint = own.endpoint or ""
        view = state.views.get(endpoint)
        if hasattr(view, "ratekeeper_exempt"):
            return
        specs = state.defaults
        if "." in endpoint and (self._exempt or self._of_blueprint):
            blueprints = [current_app.blueprints[name] for name in own.blueprints]
            if not self._exempt.isdisjoint(blueprints):
                return
            specs = next((self._of_blueprint[each] for each in blueprints if each in self._of_blueprint), specs)
        if state.application is not None:
            _admit(own, state.application)
        if view is None or hasattr(view, "ratekeeper_limited") or _is_static(endpoint):
            return
        for spec in specs:
            state.admit(own, spec, endpoint)


class _Spec:
    """A limit as declared; each application makes gates from it."""

    def __init__(self, route: Route, name: str | None) -> None:
        self.route = route
        self.name = name


class _Passed(NamedTuple):
    """A limit that a request has passed, and its decision."""

    gate: Gate
    request: EnvironRequest
    admission: Admission


class _State:
    """The state of the extension for one application."""

    def __init__(
        self, views: Mapping[str, Any], default: Limit, application: Limit, strategy: str | None, options: Options
    ) -> None:
        store = options.get("store", "memory://") if options["enabled"] else "memory://"
        options["store"] = stores.from_url(store) if isinstance(store, str) else store
        options.setdefault("max_waiters", MAX_HELD)
        self._strategy = strategy
        self._first = Gate(self._rules(application), **options)
        routes = options.pop("routes", None)
        self.application = None if application is None and not routes else self._first
        self.views = views
        self._options = options
        if default is not None and not is_rules_function(default):
            options["fallback"] = self._rules(default)
        self._prefix = options.get("prefix", "ratekeeper")
        self._gates: dict[tuple[_Spec, str], Gate] = {}
        self.defaults = [] if default is None else [_Spec(Route("*", default, name=""), None)]
        for spec in self.defaults:
            self._gate(spec, "")

    def admit(self, own: Request, spec: _Spec, scope: str) -> None:
        """Apply a limit to a request; unless the limit has a name, its usage is that of the scope."""
        scope = scope if spec.name is None else spec.name
        _admit(own, self._gates.get((spec, scope)) or self._gate(spec, scope))

    def check(self, spec: _Spec) -> None:
        """Raise if a limit cannot work with the settings of this application."""
        _check({"routes": [self._route(spec)]})

    def _route(self, spec: _Spec) -> Route:
        return replace(spec.route, limit=self._rules(spec.route.limit))

    def _gate(self, spec: _Spec, scope: str) -> Gate:
        options: Options = {**self._options, "routes": [self._route(spec)], "prefix": f"{self._prefix}:{scope}"}
        gate = self._gates[spec, scope] = Gate(**options)
        gate.share_held_requests(self._first)
        return gate

    def _rules(self, limit: Any) -> Any:
        """Apply the strategy to rates that name no algorithm."""
        if self._strategy is None:
            return limit
        if is_rules_function(limit):
            return lambda request: self._rules(limit(request))
        if isinstance(limit, str):
            parts = (part.strip() for part in limit.replace(",", ";").replace("|", ";").split(";"))
            return "; ".join(f"{self._strategy} {part}" if part[:1].isdigit() else part for part in parts)
        if isinstance(limit, Mapping):
            return {name: self._rules(rule) for name, rule in limit.items()}
        if isinstance(limit, list | tuple):
            return [self._rules(rule) for rule in limit]
        return limit


def _current() -> Request:
    """Return the request itself, because each access through Flask's proxy costs as much as a decision."""
    return request._get_current_object()  # type: ignore[attr-defined, no-any-return]  # noqa: SLF001 - third-party, documented


def _is_static(endpoint: str) -> bool:
    """Tell whether an endpoint serves the static files of the application or a blueprint, and is no view named so."""
    owner, _, name = endpoint.rpartition(".")
    return name == "static" and (current_app.blueprints[owner] if owner else current_app).has_static_folder


def _admit(own: Request, gate: Gate) -> None:
    asked = EnvironRequest(own.environ, own)
    admission = gate.admit(asked, correctable=False)
    if admission is None:
        return
    own.environ.setdefault(_PASSED, []).append(_Passed(gate, asked, admission))
    if not admission.decision.allowed:
        raise RateLimitExceeded(admission.decision, gate.denial(asked, admission))
    if admission.decision.delay:
        gate.hold(admission)


def _tell(response: Response) -> Response:
    """Add the headers of the tightest limit, and schedule the settlement of all limits."""
    passed: list[_Passed] | None = _current().environ.pop(_PASSED, None)
    if passed is None:
        return response
    gate, _, admission = min(passed, key=_room) if len(passed) > 1 else passed[0]
    headers = response.headers
    names = {name.lower() for name, _ in headers}
    for name, value in gate.headers(admission):
        if name.lower() not in names:  # headers that the application has set are kept
            headers.add(name, value)
    for each in passed:
        if each.admission.settles:
            _settle_at_end(each, response)
    return response


def _room(passed: _Passed) -> tuple[bool, float]:
    return passed.admission.decision.allowed, passed.admission.decision.room


def _settle_at_end(passed: _Passed, response: Response) -> None:
    def settle(size: int) -> None:
        passed.gate.settle(passed.request, passed.admission, Answer(response.status_code, size))

    if response.is_streamed:
        response.response = Counted(response.iter_encoded(), settle)
    else:
        response.call_on_close(functools.partial(settle, response.calculate_content_length() or 0))


def _check(options: Options) -> None:
    """Raise errors where the limit is declared; the store is checked later."""
    options = {**options, "store": "memory://"}
    Gate(**options)


def _configured(config: Mapping[str, Any]) -> tuple[Limit, Limit, bool, str | None, Options]:
    """Read the settings of Flask-Limiter; settings that would be ignored are rejected."""
    given = {name: value for name, value in config.items() if name.startswith("RATELIMIT_")}
    options: Options = {}
    default, application = given.pop("RATELIMIT_DEFAULT", None), given.pop("RATELIMIT_APPLICATION", None)
    is_enabled = given.pop("RATELIMIT_ENABLED", True)
    strategy = given.pop("RATELIMIT_STRATEGY", None)
    if strategy is not None and strategy not in _STRATEGIES:
        raise InvalidRule(f"RATELIMIT_STRATEGY must be one of {', '.join(_STRATEGIES)}, not {show(strategy)}")
    if given.pop("RATELIMIT_SWALLOW_ERRORS", False):
        options["on_error"] = "open"
    if given.pop("RATELIMIT_IN_MEMORY_FALLBACK_ENABLED", False):
        options["on_error"] = "local"
    if not given.pop("RATELIMIT_HEADERS_ENABLED", True):
        options["headers"] = Headers.off()
    for name, option in _OPTIONS.items():
        if name in given:
            options[option] = given.pop(name)  # type: ignore[literal-required]
    if given:
        raise InvalidRule(f"{min(given)} is not a setting of this extension; see its documentation")
    return default, application, is_enabled, strategy, options


_OPTIONS = {
    "RATELIMIT_STORAGE_URI": "store",
    "RATELIMIT_KEY_PREFIX": "prefix",
    "RATELIMIT_ON_ERROR": "on_error",
    "RATELIMIT_DEADLINE": "deadline",
}
