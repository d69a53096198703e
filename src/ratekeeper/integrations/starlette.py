"""Rate limits for Starlette, and the base of the FastAPI integration: middleware, and a decorator for endpoints.

@limited("10/minute")
async def search(request): ...
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import weakref
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException, WebSocketException
from starlette.requests import HTTPConnection
from starlette.responses import Response

from ratekeeper import stores
from ratekeeper.decision import Decision
from ratekeeper.errors import RateLimited
from ratekeeper.flows import run_async
from ratekeeper.http import Admission, AsyncGate, Notices, Reply, Route
from ratekeeper.http.admission import correct
from ratekeeper.http.asgi_types import AsgiApp, Receive, Scope, Send
from ratekeeper.http.gate_options import for_several
from ratekeeper.http.headers import Fields
from ratekeeper.http.reports import reported
from ratekeeper.http.routes import Limit
from ratekeeper.http.users import user_id
from ratekeeper.integrations import asgi
from ratekeeper.integrations.application_options import IN_SCOPE, Application, application_of
from ratekeeper.integrations.asgi import ScopeRequest
from ratekeeper.integrations.decorator_order import is_endpoint
from ratekeeper.integrations.endpoints import MatchedEndpoint, all_limits, find_endpoint, limits_of, titled
from ratekeeper.integrations.views import Declared, mark
from ratekeeper.stores import Store

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ratekeeper.http import Options

__all__ = ["Connection", "RateLimit", "RateLimitExceeded", "RateLimitMiddleware", "Route", "limited"]

_View = TypeVar("_View", bound=Callable[..., Any])
_CONNECTION, _RESPONSE = "ratekeeper_connection", "ratekeeper_response"
_ENDPOINT = "ratekeeper.endpoint"  # the key in the scope for the endpoint that the default is applied to
_TOLD = "ratekeeper.told"  # the key in the scope for the headers that are set on the response
_ADDED = {_CONNECTION: HTTPConnection, _RESPONSE: Response}
_POLICY_VIOLATION = 1008
_OF_MIDDLEWARE = ("routes", "exempt", "settle")
_NO_LIMIT = "a request came to no limit; pass a limit or a default to RateLimitMiddleware, or limit its endpoint"


class Connection(ScopeRequest, HTTPConnection):
    """A Starlette request or WebSocket, which is also a request of `ratekeeper.http`."""

    headers = HTTPConnection.headers

    def __init__(self, scope: Scope, own_root_path: str = "", user: Any = None) -> None:
        """`user` is the user that a dependency has found."""
        HTTPConnection.__init__(self, scope)
        ScopeRequest.__init__(self, scope, own_root_path)
        self._user = user

    @property
    def user_id(self) -> str | None:
        return user_id(self._user) or super().user_id


class RateLimitMiddleware(asgi.RateLimitMiddleware):
    """Limits an application of Starlette or FastAPI. `limit` and the options are those of `ratekeeper.http.Gate`.

    `limit` counts all requests together. `default` counts each endpoint for itself, and is replaced by the limits that
    an endpoint has itself unless they have `override_defaults=False`; it may be a `Route("*", ...)`, which has options
    of its own. The limits of endpoints have the options of the middleware, and count in its store, unless they have
    their own.
    """

    request_type = Connection

    def __init__(
        self, app: AsgiApp, limit: Limit = None, *, default: Limit | Route = None, **options: Unpack[Options]
    ) -> None:
        options = for_several(options)
        options["notices"] = options.get("notices") or Notices()
        super().__init__(app, limit, **options)
        first = limit if default is None else default
        self._application = Application(options, self.gate, first.limit if isinstance(first, Route) else first)
        self._has_default = default is not None and self._application.is_enabled
        has_limit = limit is not None or options.get("policy") is not None or bool(options.get("routes"))
        has_failed = type(self.gate) is not AsyncGate
        self._only_options = self._application.is_enabled and not has_limit and not has_failed
        if self._has_default:
            self.app = _DefaultMiddleware(app, default, self._application)

    def make_gate(self, limit: Limit, options: Options) -> AsyncGate:
        """Return the gate; an error fails the start of the server."""
        policies_are_for_endpoints = options.get("policies") is not None and options.get("policy") is None
        return AsyncGate(limit, **options, shares_options=policies_are_for_endpoints)

    def check(self) -> None:
        """Raise what is wrong with the limits, those of the endpoints, too; called when the server starts."""
        super().check()
        for limit in all_limits(self.app, RateLimit):
            limit.gate_in(self._application)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, connection or lifespan."""
        if scope["type"] in ("http", "websocket"):
            scope[IN_SCOPE] = self._application
            if self._only_options:
                await self.app(scope, receive, send)
                if not self._has_default and reported(scope) is None:
                    self.gate.notices.note("unlimited", _NO_LIMIT)
                return
        await super().__call__(scope, receive, send)


class _DefaultMiddleware(asgi.RateLimitMiddleware):
    """Applies a default to each endpoint that has no limits itself."""

    request_type = Connection

    def __init__(self, app: AsgiApp, default: Limit | Route, application: Application) -> None:
        self._default = default
        self._application = application
        super().__init__(app)

    def make_gate(self, *_: object) -> AsyncGate:
        """Return the gate; an error fails the start of the server."""
        route = self._default if isinstance(self._default, Route) else Route("*", self._default)
        declared = Declared(route, route.name or None)
        return self._application.gate(declared, lambda own: f"default {own.scope[_ENDPOINT]}", {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, connection or lifespan."""
        if scope["type"] in ("http", "websocket"):
            endpoint = find_endpoint(self.app, {**scope, "root_path": Connection(scope, self._root_path).root_path})
            if endpoint is None or _is_limited(endpoint, scope.get("method", "WEBSOCKET")):
                await self.app(scope, receive, send)
                return
            scope[_ENDPOINT] = endpoint.title
        await super().__call__(scope, receive, send)


def _is_limited(endpoint: MatchedEndpoint, method: str) -> bool:
    """Tell whether the limits of an endpoint replace the default."""
    own = limits_of(endpoint.route, endpoint.answers, method, RateLimit)
    return any(limit.declared.replaces_defaults(method) for limit in own)


class RateLimitExceeded(RateLimited, HTTPException):
    """A denied request: an `HTTPException` that becomes the 429 response."""

    def __init__(self, decision: Decision, reply: Reply) -> None:
        told = {name: value for name, value in reply.headers if not name.lower().startswith("content-")}
        HTTPException.__init__(self, reply.status, reply.body.decode("utf-8", "replace"), told)
        self.decision = decision
        self.reply = reply


class RateLimit:
    """A limit for single endpoints; `limit` and the options are those of `ratekeeper.http.Gate`.

    With a `name`, all endpoints with this limit share their usage; otherwise each endpoint has its own. A `policy` has
    one usage wherever it is used. With `methods`, other methods are not limited. Options that are left out are those of
    the application's `RateLimitMiddleware`, whose `default` it replaces unless `override_defaults=False`.
    """

    def __init__(
        self,
        limit: Limit = None,
        *,
        name: str | None = None,
        methods: Collection[str] | None = None,
        override_defaults: bool = True,
        **options: Unpack[Options],
    ) -> None:
        for option in _OF_MIDDLEWARE:
            if option in options:
                raise TypeError(f"{option} is an option of RateLimitMiddleware, not of a limit for single endpoints")
        policy = options.pop("policy", None)
        self.declared = Declared(Route("*", limit, methods, name="", policy=policy), name, override_defaults)
        """The limit as it was declared."""
        if name is not None and self.declared.is_by_policy:
            raise TypeError("a policy counts by its own keys, wherever it is used; it has no other name")
        self._options = options
        self._notices = options.get("notices") or Notices()
        self._gates: weakref.WeakKeyDictionary[Application, AsyncGate] = weakref.WeakKeyDictionary()
        if policy is None or "policies" in options:  # otherwise the application knows which policies there are
            checked: Options = {**options, "store": "memory://", "routes": [self.declared.route]}
            AsyncGate(**checked)  # raises what is wrong where the limit is declared

    @property
    def notices(self) -> Notices:
        """Counters of what was noted where the limit was declared."""
        return self._notices

    async def admit(self, connection: HTTPConnection, *, user: Any = None) -> Admission | None:
        """Admit a request, after its delay if any, or raise `RateLimitExceeded`; None means that it is not limited.

        `user` is the user for `by_user()`, if the request itself does not tell who is signed in.
        """
        own = Connection(connection.scope, user=user)
        application = application_of(own.scope, self)
        if self._is_switched_off(application):
            return None
        gate = self.gate_in(application)
        admission = await gate.admit(own)
        if admission is None:
            return None
        if not admission.decision.allowed:
            raise _refusal(own, admission.decision, gate.denial(own, admission))
        gate.report(own.context, admission)
        if admission.decision.delay:
            try:
                await asyncio.sleep(admission.decision.delay)
            finally:
                gate.leave(admission)
        return admission

    async def correct(self, admission: Admission | None, real_cost: int | Mapping[str, int]) -> None:
        """Charge what a request cost above its estimate, or give back what it cost below."""
        if admission is not None:
            await run_async(correct(admission, real_cost))

    def gate_in(self, application: Application) -> AsyncGate:
        """Return the gate of this limit in an application."""
        gate = self._gates.get(application)
        if gate is None:
            own: Options = {"settle": None, **self._options}
            url = own.get("store")
            if isinstance(url, str) and not url.startswith("memory") and own.get("enabled", True):
                own["store"] = _store(url)
            gate = self._gates[application] = application.gate(self.declared, _endpoint, own)
        return gate

    def _is_switched_off(self, application: Application) -> bool:
        """Tell whether the middleware, which has counted the request, switches this limit off."""
        return not (application.is_enabled or "enabled" in self._options)


def _refusal(connection: Connection, decision: Decision, reply: Reply) -> Exception:
    extensions = connection.scope.get("extensions") or ()
    if connection.scope["type"] == "websocket" and "websocket.http.response" not in extensions:
        return WebSocketException(_POLICY_VIOLATION, "rate limit exceeded")
    # Without a handler of the application, the response is the problem document itself.
    handlers = connection.scope.get("starlette.exception_handlers")
    if handlers is not None:
        handlers[0].setdefault(RateLimitExceeded, _answer)
    return RateLimitExceeded(decision, reply)


@functools.cache
def _store(url: str) -> Store:
    """Return one store for all limits in this process."""
    return stores.from_url(url, for_asyncio=True)


def limited(
    limit: Limit = None,
    *,
    name: str | None = None,
    methods: Collection[str] | None = None,
    override_defaults: bool = True,
    **options: Unpack[Options],
) -> Callable[[_View], _View]:
    """Limit one endpoint, sync or async, whether or not it takes the request; see `RateLimit`."""
    rate_limit = RateLimit(limit, name=name, methods=methods, override_defaults=override_defaults, **options)

    def decorate(view: _View) -> _View:
        if not callable(view):  # limited has decorated a view, which was taken for a limit
            raise TypeError("a view was limited without a limit; write it as in @limited('10/minute')")
        if is_endpoint(view):
            what = f"{view.__qualname__!r} was a route before it was limited"
            rate_limit.notices.note("unlimited", f"{what}; write @limited(...) below the route's decorator")
        if inspect.isgeneratorfunction(view) or inspect.isasyncgenfunction(view):
            raise TypeError(f"{view.__qualname__} is a generator; use the dependency Depends(RateLimit(...)) instead")
        is_async = inspect.iscoroutinefunction(view)
        signature = inspect.signature(view)

        @functools.wraps(view)
        async def call(*args: Any, **kwargs: Any) -> Any:
            connection = kwargs.get(_CONNECTION) or _connection(args, kwargs)
            response = kwargs.get(_RESPONSE)
            for added in _ADDED.keys() - signature.parameters.keys():  # another limit of the view may need them as well
                kwargs.pop(added, None)
            await rate_limit.admit(connection)
            result = await (view(*args, **kwargs) if is_async else run_in_threadpool(view, *args, **kwargs))
            tell(result if isinstance(result, Response) else response, connection)
            return result

        call.__signature__ = _with_connection(signature)  # type: ignore[attr-defined]
        mark(call, view, rate_limit)
        return call  # type: ignore[return-value]

    decorate.__annotations__["view"] = _Decorated
    return decorate


class _Decorated:
    """The type of what `limited` decorates; FastAPI asks for its schema if it takes the decorator for a view."""

    @staticmethod
    def __get_pydantic_core_schema__(*_: Any) -> NoReturn:
        raise TypeError("write limits as in @limited('10/minute') or dependencies=[Depends(RateLimit('10/minute'))]")


def tell(response: Response | None, connection: HTTPConnection) -> None:
    """Set the headers that report the tightest decision on a request; headers that the application has set are kept."""
    report = reported(connection.scope)
    if response is None or report is None:
        return
    earlier: Fields = connection.scope.get(_TOLD, [])  # by another dependency, on the response that all of them have
    headers = response.headers
    for name, value in earlier:
        if headers.get(name) == value:
            del headers[name]
    connection.scope[_TOLD] = own = [field for field in report.fields() if field[0] not in headers]
    headers.update(dict(own))


def _answer(_: HTTPConnection, error: Exception) -> Response:
    reply: Reply = error.reply  # type: ignore[attr-defined]
    return Response(reply.body, reply.status, dict(reply.headers))


def _endpoint(connection: Connection) -> str:
    return titled(connection.scope.get("endpoint"), getattr(connection.scope.get("route"), "path", ""))


def _connection(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> HTTPConnection:
    for each in (*args, *kwargs.values()):
        if isinstance(each, HTTPConnection):
            return each
    raise TypeError("a limited endpoint was called without a request; it can be called only by Starlette or FastAPI")


def _with_connection(signature: inspect.Signature) -> inspect.Signature:
    """Add parameters that FastAPI passes by type, after the endpoint's own parameters."""
    parameters = list(signature.parameters.values())
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind)
        for name, kind in _ADDED.items()
        if name not in signature.parameters
    ]
    if parameters and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD:
        return signature.replace(parameters=[*parameters[:-1], *added, parameters[-1]])
    return signature.replace(parameters=[*parameters, *added])
