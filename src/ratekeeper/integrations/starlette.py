"""Rate limits for Starlette, and the base of the FastAPI integration: middleware, and a decorator for endpoints.

@limited("10/minute")
async def search(request): ...
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException, WebSocketException
from starlette.requests import HTTPConnection
from starlette.responses import Response

from ratekeeper import stores
from ratekeeper.decision import Decision
from ratekeeper.errors import RateLimited
from ratekeeper.http import Admission, AsyncGate, Reply, Route, by_address
from ratekeeper.http.asgi_types import Scope
from ratekeeper.http.client_keys import of_request, within
from ratekeeper.http.headers import Fields
from ratekeeper.http.reports import reported
from ratekeeper.http.routes import Limit, is_by_policy
from ratekeeper.http.users import user_id
from ratekeeper.integrations import asgi
from ratekeeper.integrations.asgi import ScopeRequest
from ratekeeper.integrations.decorator_order import is_endpoint
from ratekeeper.stores import Store

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ratekeeper.http import Options

__all__ = ["Connection", "RateLimit", "RateLimitExceeded", "RateLimitMiddleware", "Route", "limited"]

_View = TypeVar("_View", bound=Callable[..., Any])
_CONNECTION, _RESPONSE = "ratekeeper_connection", "ratekeeper_response"
_TOLD = "ratekeeper.told"  # the key in the scope for the headers that are set on the response
_ADDED = {_CONNECTION: HTTPConnection, _RESPONSE: Response}
_POLICY_VIOLATION = 1008


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
    """Limits an application of Starlette or FastAPI. `limit` and the options are those of `ratekeeper.http.Gate`."""

    request_type = Connection


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
    one usage wherever it is used.
    """

    def __init__(self, limit: Limit = None, *, name: str | None = None, **options: Unpack[Options]) -> None:
        for option in ("routes", "exempt", "settle"):
            if option in options:
                raise TypeError(f"{option} is an option of RateLimitMiddleware, not of a limit for single endpoints")
        if options.get("policy") is not None or is_by_policy(limit):
            if name is not None:
                raise TypeError("a policy counts by its own keys, wherever it is used; it has no other name")
        elif name is None:
            options["key"] = within(_endpoint, of_request("key", options.get("key") or by_address()))
        else:
            options["prefix"] = f"{options.get('prefix', 'ratekeeper')}:{name}"
        url = options.get("store")
        if isinstance(url, str) and not url.startswith("memory") and options.get("enabled", True):
            options["store"] = _store(url)
        self.gate = AsyncGate(limit, **options)

    async def admit(self, connection: HTTPConnection, *, user: Any = None) -> Admission | None:
        """Admit a request, after its delay if any, or raise `RateLimitExceeded`; None means that it is not limited.

        `user` is the user for `by_user()`, if the request itself does not tell who is signed in.
        """
        own = Connection(connection.scope, user=user)
        admission = await self.gate.admit(own)
        if admission is None:
            return None
        if not admission.decision.allowed:
            raise self._refusal(own, admission)
        self.gate.report(connection.scope, admission)
        if admission.decision.delay:
            try:
                await asyncio.sleep(admission.decision.delay)
            finally:
                self.gate.leave(admission)
        return admission

    async def correct(self, admission: Admission | None, real_cost: int | Mapping[str, int]) -> None:
        """Charge what a request cost above its estimate, or give back what it cost below."""
        if admission is not None:
            await self.gate.correct(admission, real_cost)

    def _refusal(self, connection: Connection, admission: Admission) -> Exception:
        extensions = connection.scope.get("extensions") or ()
        if connection.scope["type"] == "websocket" and "websocket.http.response" not in extensions:
            return WebSocketException(_POLICY_VIOLATION, "rate limit exceeded")
        # Without a handler of the application, the response is the problem document itself.
        handlers = connection.scope.get("starlette.exception_handlers")
        if handlers is not None:
            handlers[0].setdefault(RateLimitExceeded, _answer)
        return RateLimitExceeded(admission.decision, self.gate.denial(connection, admission))


@functools.cache
def _store(url: str) -> Store:
    """Return one store for all limits in this process."""
    return stores.from_url(url, for_asyncio=True)


def limited(limit: Limit = None, *, name: str | None = None, **options: Unpack[Options]) -> Callable[[_View], _View]:
    """Limit one endpoint of Starlette or FastAPI, sync or async, whether or not it takes the request."""
    rate_limit = RateLimit(limit, name=name, **options)

    def decorate(view: _View) -> _View:
        if not callable(view):  # limited has decorated a view, which was taken for a limit
            raise TypeError("a view was limited without a limit; write it as in @limited('10/minute')")
        if is_endpoint(view):
            what = f"{view.__qualname__!r} was a route before it was limited"
            rate_limit.gate.notices.note("unlimited", f"{what}; write @limited(...) below the route's decorator")
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
        call.ratekeeper_limit = rate_limit  # type: ignore[attr-defined]
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
    endpoint = connection.scope.get("endpoint")
    path = getattr(connection.scope.get("route"), "path", "")
    return f"{getattr(endpoint, '__module__', '')}.{getattr(endpoint, '__qualname__', '')} {path}"


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
