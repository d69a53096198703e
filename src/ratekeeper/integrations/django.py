"""Rate limits for Django: a middleware, and a decorator for single views, sync and async.

    MIDDLEWARE = [..., "ratekeeper.integrations.django.RateLimitMiddleware"]  # after authentication, to limit by user
    INSTALLED_APPS = [..., "ratekeeper.integrations.django.RatekeeperConfig"]  # lets `manage.py check` report errors
    RATEKEEPER = {"limit": "100/minute", "exempt": ["/healthz"], "store": "redis://localhost"}

    @limited("5/minute", methods=["POST"])
    def login(request): ...

The setting takes a `limit` and the options of `ratekeeper.http.Gate`; functions may be given by dotted name.
`"enabled": False` switches all limits off.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, MutableMapping
from typing import TYPE_CHECKING, Any, TypeVar

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.apps import AppConfig
from django.conf import settings
from django.core import checks
from django.core.signals import setting_changed
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.module_loading import import_string

from ratekeeper import stores
from ratekeeper.errors import InvalidRule
from ratekeeper.http import Admission, Answer, AsyncGate, Gate, Notices, Options, Reply, Route
from ratekeeper.http.client_keys import KeyFunction
from ratekeeper.http.gate_options import no_option
from ratekeeper.http.policy_limits import loaded
from ratekeeper.http.reports import Report
from ratekeeper.http.routes import CostFunction, Deny, Limit, SettleFunction, is_by_policy, is_rules_function
from ratekeeper.integrations import django_settlement
from ratekeeper.integrations.wsgi import MAX_HELD, EnvironRequest
from ratekeeper.rates import show
from ratekeeper.ruleset import Costs, Shadow
from ratekeeper.stores import Store

if TYPE_CHECKING:
    from ratekeeper.policies import Policies

__all__ = [
    "AsyncDjangoRequest",
    "DjangoRequest",
    "RateLimitMiddleware",
    "RatekeeperConfig",
    "Route",
    "limited",
    "notices",
]

notices = Notices()
"""Counters of the requests that the rules in the store did not decide, and why."""

_View = TypeVar("_View", bound=Callable[..., Any])
_FUNCTIONS = ("key", "cost", "settle", "deny")
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
_ON_A_CLASS = "@method_decorator(limited(...), name='dispatch')"
_ON_A_METHOD = "@method_decorator(limited(...))"


class RatekeeperConfig(AppConfig):
    """Lets `manage.py check` report invalid settings, if it is in INSTALLED_APPS."""

    name = __name__
    label = "ratekeeper"


@checks.register
def check_settings(**_: Any) -> list[checks.CheckMessage]:
    """Report an invalid setting `RATEKEEPER`, and limits that come before CORS."""
    try:
        gate_for(Gate)
    except Exception as error:  # noqa: BLE001 - whatever it is, it would end the server
        told = f"{error}" if "settings.RATEKEEPER" in f"{error}" else f"settings.RATEKEEPER: {error}"
        return [checks.Error(told, id="ratekeeper.E001")]
    own, cors = f"{__name__}.{RateLimitMiddleware.__name__}", "corsheaders.middleware.CorsMiddleware"
    listed = list(settings.MIDDLEWARE)
    if own in listed and cors in listed and listed.index(own) < listed.index(cors):
        problem = (
            "settings.MIDDLEWARE: the rate limits come before CORS, so preflights count and pages cannot read a 429"
        )
        return [checks.Warning(problem, hint=f"Put {cors} before {own}.", id="ratekeeper.W001")]
    return []


class RateLimitMiddleware:
    """Limits a project, configured by the setting `RATEKEEPER`."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self._is_async = iscoroutinefunction(get_response)
        self._gate: Any = gate_for(AsyncGate if self._is_async else Gate)
        if self._is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        """Serve one request."""
        serve_it = serve_async if self._is_async else serve
        return serve_it(self._gate, request, functools.partial(self.get_response, request))


def limited(
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
) -> Callable[[_View], _View]:
    """Limit a view; views with the same `name` share their usage. Other options come from the settings.

    A `policy`, in place of rules, is one of the setting's `policies`, and has one usage wherever it is used.

    On a class, use `method_decorator(limited(...), name="dispatch")`.
    """
    spec = Spec(Route("*", limit, methods, key, cost, settle, "", per_method, deny, shadow, policy))
    if spec.is_by_policy and name is not None:
        raise TypeError("a policy counts by its own keys, wherever it is used; it has no other name")
    checked: set[Any] = set()

    def decorate(view: _View) -> _View:
        if inspect.isclass(view):
            raise TypeError(f"{view.__name__} is a class; write {_ON_A_CLASS}")
        if not callable(view):  # limited has decorated a view, which was taken for a limit
            raise TypeError("a view was limited without a limit; write it as in @limited('10/minute')")
        is_async = iscoroutinefunction(view)
        kind: Any = AsyncGate if is_async else Gate
        if kind not in checked:  # a method_decorator runs this for each request
            if policy is None:
                kind(routes=[spec.route])
            if settings.configured:
                gate_for(kind, spec if spec.is_by_policy else None)  # raises if the settings are invalid
            checked.add(kind)

        @functools.wraps(view)
        def call(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            if not hasattr(request, "META"):
                raise TypeError(f"{view.__qualname__} got no request first; on a method, write {_ON_A_METHOD}")
            scope = "" if spec.is_by_policy else _title(request, view) if name is None else name
            gate = gate_for(kind, spec, scope)
            return (serve_async if is_async else serve)(gate, request, lambda: view(request, *args, **kwargs))

        return markcoroutinefunction(call) if is_async else call  # type: ignore[return-value]

    return decorate


class Spec:
    """A limit as declared; gates are made from it and the settings."""

    def __init__(self, route: Route) -> None:
        self.route = route
        self.is_by_policy = route.policy is not None or is_by_policy(route.limit)
        """Whether it counts by a policy, whose usage is the same for all views."""


class DjangoRequest(EnvironRequest):
    """A request of Django or the REST framework as a request of `ratekeeper.http`."""

    __slots__ = ()

    def __init__(self, request: Any) -> None:
        super().__init__(request.META, request)

    @property
    def method(self) -> str:
        return self.raw.method  # type: ignore[no-any-return]

    @property
    def path(self) -> str:
        return self.raw.path_info  # type: ignore[no-any-return]

    @property
    def root_path(self) -> str:
        return self.raw.path.removesuffix(self.raw.path_info)  # type: ignore[no-any-return]

    @property
    def context(self) -> MutableMapping[str, Any]:
        return getattr(self.raw, "scope", self.environ)

    @property
    def user_id(self) -> str | Awaitable[str | None] | None:
        return _user_id(getattr(self.raw, "user", None))


class AsyncDjangoRequest(DjangoRequest):
    """A request whose user is awaited."""

    __slots__ = ()

    @property
    def user_id(self) -> Awaitable[str | None]:
        return self._user_id()

    async def _user_id(self) -> str | None:
        find = getattr(self.raw, "auser", None)
        return _user_id(getattr(self.raw, "user", None) if find is None else await find())


def serve(gate: Gate, request: HttpRequest, view: Callable[[], HttpResponseBase]) -> HttpResponseBase:
    """Serve a request with a view, if the gate admits it."""
    own = DjangoRequest(request)
    admission = gate.admit(own, correctable=False)
    if admission is None:
        return view()
    if not admission.decision.allowed:
        return _answer(gate.denial(own, admission))
    if admission.decision.delay:
        gate.hold(admission)
    report = gate.report(own.context, admission)
    settle = functools.partial(gate.settle, own, admission) if admission.settles else None
    try:
        response = view()
    except Exception:
        if settle is not None:
            settle(Answer(500, 0))
        raise
    _tell(response, report)
    if settle is not None:
        django_settlement.at_end(response, settle)
    return response


async def serve_async(
    gate: AsyncGate, request: HttpRequest, view: Callable[[], Awaitable[HttpResponseBase]]
) -> HttpResponseBase:
    """Serve a request with a view, if the gate admits it."""
    own = AsyncDjangoRequest(request)
    admission = await gate.admit(own)
    if admission is None:
        return await view()

    async def settle(answer: Answer) -> None:  # perhaps in another event loop than the view
        try:
            await gate.settle(own, admission, answer)
        finally:
            await _close_connections(request, admission)

    report = gate.report(own.context, admission)
    settles = admission.settles
    try:
        if not admission.decision.allowed:
            return _answer(gate.denial(own, admission))
        if admission.decision.delay:
            try:
                await asyncio.sleep(admission.decision.delay)
            finally:
                gate.leave(admission)
        try:
            response = await view()
        except Exception:
            if settles:
                await settle(Answer(500, 0))
            raise
        _tell(response, report)
        if settles:
            await django_settlement.at_end_async(response, settle)
        return response
    finally:
        await _close_connections(request, admission)


async def _close_connections(request: HttpRequest, admission: Admission) -> None:
    """Close connections that belong to an event loop that Django made for one view only, as it does under WSGI."""
    if hasattr(request, "scope"):
        return
    for each in admission.all:
        limiter = each.http_limiter.limiter
        if limiter is not None and limiter.store.is_per_loop:
            await limiter.store.close()


@functools.cache
def gate_for(kind: Any, spec: Spec | None = None, scope: str = "") -> Any:
    """Return the gate of a limit, or that of the project; `kind` is Gate or AsyncGate."""
    limit, options = _configured(kind)
    options["notices"] = options.get("notices") or notices
    if spec is None:
        return kind(limit, **options, shares_options=True)
    if limit is not None and not is_rules_function(limit):
        options["fallback"] = limit
    options["routes"] = [spec.route]
    options.pop("policy", None)
    if not spec.is_by_policy:
        options["prefix"] = f"{options.get('prefix', 'ratekeeper')}:{scope}"
    return kind(**options, shares_options=True, sibling=gate_for(kind))


def _configured(kind: Any) -> tuple[Limit, dict[str, Any]]:
    """Read the setting for a sync or an async gate."""
    given = getattr(settings, "RATEKEEPER", {})
    if not isinstance(given, dict):
        raise TypeError(f"settings.RATEKEEPER must be a dict, not {show(given)}")
    known = ["limit", *Options.__annotations__]
    for name, value in given.items():
        if name not in known:
            raise InvalidRule(f"settings.RATEKEEPER: {no_option(name, known)}")
        if isinstance(value, Iterator):  # would be empty for the second gate
            raise TypeError(f"settings.RATEKEEPER[{name!r}] must be a list, not {show(value)}")
    values = {name: _function(name, each) if name in _FUNCTIONS else each for name, each in given.items()}
    if isinstance(values.get("attributes"), dict):
        values["attributes"] = {name: _function(name, each) for name, each in values["attributes"].items()}
    if isinstance(values.get("policies"), str | os.PathLike):
        values["policies"] = _policies(values["policies"])
    url = values.get("store", "memory://")
    if isinstance(url, str) and values.get("enabled", True):
        values["store"] = _store(url, kind is AsyncGate and not url.startswith("memory"))
    if kind is Gate:
        values.setdefault("max_waiters", MAX_HELD)
    return values.pop("limit", None), values


def _function(name: str, given: Any) -> Any:
    """Return a function, given by itself or by its dotted name; what a denial says may be a text, too."""
    if not isinstance(given, str) or (name == "deny" and not _DOTTED.fullmatch(given)):
        return given
    try:
        return import_string(given)
    except ImportError as error:
        what = f"{name!r} must be a function or its dotted name, not {show(given)}"
        raise InvalidRule(f"settings.RATEKEEPER: {what}: {error}") from None


@functools.cache
def _store(url: str, for_asyncio: bool) -> Store:
    """Return one store for all limits; in memory, sync and async views share it."""
    return stores.from_url(url, for_asyncio=for_asyncio)


@functools.cache
def _policies(path: str | os.PathLike[str]) -> Policies:
    """Return the same policies for all gates."""
    return loaded(path)


def _forget(*, setting: str, **_: Any) -> None:
    if setting == "RATEKEEPER":  # a test has changed it
        gate_for.cache_clear()
        _policies.cache_clear()
        _store.cache_clear()


setting_changed.connect(_forget)


def _title(request: HttpRequest, view: Any) -> str:
    """Return the name of a view, with its class, because methods are inherited."""
    match = getattr(request, "resolver_match", None)
    owner = getattr(getattr(match, "func", None), "view_class", None)
    title = f"{view.__module__}.{getattr(view, '__qualname__', view.__name__)}"
    return title if owner is None else f"{owner.__module__}.{owner.__qualname__} {title}"


def _user_id(user: Any) -> str | None:
    if user is None or not user.is_authenticated:
        return None
    return str(user.pk)


def _tell(response: HttpResponseBase, report: Report) -> None:
    for name, value in report.fields():
        response.headers.setdefault(name, value)


def _answer(reply: Reply) -> HttpResponse:
    return HttpResponse(reply.body, status=reply.status, headers=dict(reply.headers))
