"""What functions of the request get: within one integration the same everywhere, with all that the framework has."""

import asyncio
import logging
import re
from pathlib import Path
from typing import Annotated, NamedTuple

import django
import flask
import httpx
import pytest
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpResponse
from django.test import AsyncRequestFactory, RequestFactory, override_settings
from fastapi import Depends, FastAPI, Header, Request
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route as StarletteRoute
from werkzeug.test import Client

from ratekeeper import FixedWindow
from ratekeeper.http import Options, by_address, by_user, first_of
from ratekeeper.integrations import asgi, fastapi, starlette, wsgi
from ratekeeper.integrations import django as django_integration
from ratekeeper.integrations import flask as flask_integration

django.setup()

from rest_framework.response import Response  # noqa: E402 - only now there are models
from rest_framework.views import APIView  # noqa: E402

from ratekeeper.integrations.rest_framework import RateLimitThrottle  # noqa: E402

ONE = FixedWindow(1, "400 days")
HEADERS = {"X-Tenant": "acme", "Cookie": "session=s1"}


def asgi_views(view):
    yield asgi.RateLimitMiddleware(PlainTextResponse("hello"), ONE, key=view)


def starlette_views(view):
    yield Starlette(
        routes=[StarletteRoute("/a/b", PlainTextResponse("hello"))],
        middleware=[Middleware(starlette.RateLimitMiddleware, limit=ONE, key=view)],
    )

    @starlette.limited(ONE, key=view)
    async def hello(_):
        return PlainTextResponse("hello")

    yield Starlette(routes=[StarletteRoute("/a/b", hello)])


def fastapi_views(view):
    app = FastAPI()
    app.get("/a/b")(lambda: "hello")
    app.add_middleware(fastapi.RateLimitMiddleware, limit=ONE, key=view)
    yield app
    app = FastAPI()
    app.get("/a/b", dependencies=[Depends(fastapi.RateLimit(ONE, key=view))])(lambda: "hello")
    yield app
    app = FastAPI()
    app.get("/a/b")(fastapi.limited(ONE, key=view)(lambda: "hello"))
    yield app


def wsgi_views(view):
    def hello(_, start_response):
        start_response("200 OK", [])
        return [b"hello"]

    yield wsgi.RateLimitMiddleware(hello, ONE, key=view)


def flask_views(view):
    for options in ({"application": ONE}, {"default": ONE}, {}):
        app = flask.Flask(__name__)
        limiter = flask_integration.RateLimiter(app, key=view, **options)
        app.get("/a/b")((lambda: "hello") if options else limiter.limit(ONE)(lambda: "hello"))
        yield app


def hello(_):
    return HttpResponse("hello")


def django_views(view):
    yield django_integration.RateLimitMiddleware(hello)
    yield django_integration.limited(ONE)(hello)

    class Throttle(RateLimitThrottle):
        limit = ONE
        key = staticmethod(view)

    class Api(APIView):
        throttle_classes = (Throttle,)

        def get(self, _):
            return Response({})

    yield Api.as_view()


def async_django_views(view):
    async def hello(_):
        return HttpResponse("hello")

    async def through(request):
        return await django_integration.RateLimitMiddleware(hello)(request)

    yield markcoroutinefunction(through)
    yield django_integration.limited(ONE)(hello)


def ask(app, headers=HEADERS, path="/a/b?q=7"):
    """Ask an application or a view of Django, and return the status."""
    if isinstance(app, flask.Flask | wsgi.RateLimitMiddleware):
        base = {"REMOTE_ADDR": "127.0.0.1"}
        return Client(app, use_cookies=False).get(path, headers=headers, environ_base=base).status_code
    if not hasattr(app, "router") and not isinstance(app, asgi.RateLimitMiddleware):
        factory = AsyncRequestFactory() if iscoroutinefunction(app) else RequestFactory()
        response = app(factory.get(path, headers=headers))
        return (asyncio.run(response) if iscoroutinefunction(app) else response).status_code

    async def get():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
            return await http.get(path, headers=headers)

    return asyncio.run(get()).status_code


class Seen(NamedTuple):
    """What every request has, whatever the integration."""

    method: str
    path: str
    root_path: str
    peer: str
    lines: list
    tenant: str
    missing: object
    names: bool


def common(request):
    return Seen(
        request.method,
        request.path,
        request.root_path,
        request.peer,
        list(request.header("x-tenant")),
        request.headers["X-TENANT"],
        request.headers.get("x-other"),
        {"x-tenant", "cookie"} <= {name.lower() for name in request.headers.keys()},  # noqa: SIM118 - werkzeug's headers
    )


OWN = {  # what the framework's own request has
    asgi_views: lambda request: (request.raw["query_string"], request.scope["type"]) == (b"q=7", "http"),
    starlette_views: lambda request: (
        (request.client.host, request.cookies["session"], request.query_params["q"], hasattr(request.state, "a"))
        == ("127.0.0.1", "s1", "7", False)
    ),
    fastapi_views: lambda request: (
        (request.client.host, request.cookies["session"], request.query_params["q"], request.url.path)
        == ("127.0.0.1", "s1", "7", "/a/b")
    ),
    wsgi_views: lambda request: request.raw["QUERY_STRING"] == "q=7",
    flask_views: lambda request: (
        (request.cookies["session"], request.args["q"], request.remote_addr, request.raw.args["q"])
        == ("s1", "7", "127.0.0.1", "7")
    ),
    django_views: lambda request: (
        (request.COOKIES["session"], request.GET["q"], request.META["REMOTE_ADDR"], request.raw.GET["q"])
        == ("s1", "7", "127.0.0.1", "7")
    ),
    async_django_views: lambda request: (request.content_params, request.GET["q"]) == ({}, "7"),
}


@pytest.mark.parametrize("make", OWN, ids=lambda make: make.__name__)
def test_a_function_gets_the_same_request_wherever_it_is_used(make):
    seen = []

    def key(request):
        seen.append((common(request), OWN[make](request), type(request)))
        return "key"

    expected = Seen("GET", "/a/b", "", "127.0.0.1", ["acme"], "acme", None, True)
    with override_settings(RATEKEEPER={"limit": ONE, "key": key}):
        for number, app in enumerate(make(key), 1):
            assert [ask(app), ask(app)] == [200, 429]
            assert [each[:2] for each in seen] == [(expected, True)] * 2 * number
    assert len({each[2] for each in seen}) == 1


@pytest.mark.parametrize(
    ("make", "name"),
    [(starlette_views, "client"), (fastapi_views, "client"), (flask_views, "remote_addr")],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_a_function_that_was_written_for_the_framework_s_own_request_works(make, name, caplog):
    def key(request):  # as slowapi's get_remote_address
        return getattr(getattr(request, name), "host", getattr(request, name))

    for app in make(key):
        assert [ask(app), ask(app)] == [200, 429]
    assert caplog.records == []  # no key function has failed


def test_what_a_request_does_not_have_is_an_attribute_error():
    request = wsgi.EnvironRequest({"CONTENT_TYPE": "text/plain", "HTTP_X_A": "1", "REQUEST_METHOD": "GET"})
    with pytest.raises(AttributeError, match="the request has no attribute 'args'; see its `raw`"):
        request.args  # noqa: B018 - what is tested
    assert (dict(request.headers), len(request.headers)) == ({"content-type": "text/plain", "x-a": "1"}, 2)
    assert "Content-Type" in request.headers


def test_header_lines_with_one_name_are_joined():
    lines = [(b"x-a", b"1"), (b"x-a", b"2")]
    assert asgi.ScopeRequest({"type": "http", "headers": lines}).headers["X-A"] == "1, 2"


# --- who is signed in


class Account:
    def __init__(self, number):
        self.id = number


def state_user(app, user):
    """Let a middleware of the application find the user, as many applications do."""

    @app.middleware("http")
    async def find(request, call_next):
        request.state.user = user(request.headers)
        return await call_next(request)


def account(headers):
    name = headers.get("x-name")
    return None if name is None else Account(name)


USERS = {
    "an object": account,
    "a mapping, such as the claims of a token": lambda headers: {"sub": headers["x-name"]},
    "a name": lambda headers: headers["x-name"],
    "a number": lambda headers: ord(headers["x-name"]),
}


@pytest.mark.parametrize("user", USERS.values(), ids=USERS)
def test_users_of_a_middleware_are_found_in_the_state_of_the_request(user):
    for limit in fastapi_views(by_user()):
        state_user(limit, user)
        assert [ask(limit, {"x-name": name}) for name in "abab"] == [200, 200, 429, 429]


def test_users_of_starlette_s_authentication_are_found():
    class Backend(AuthenticationBackend):
        async def authenticate(self, conn):
            return AuthCredentials(), SimpleUser(conn.headers["x-name"])

    for limit in fastapi_views(by_user()):
        limit.add_middleware(AuthenticationMiddleware, backend=Backend())
        assert [ask(limit, {"x-name": name}) for name in "abab"] == [200, 200, 429, 429]


def current_user(name: Annotated[str | None, Header(alias="x-name")] = None):
    return None if name is None else Account(name)


def store_user(request: Request, user: Annotated[Account, Depends(current_user)]):
    request.state.user = user


def limit_with_a_user(**options):
    limit = fastapi.RateLimit(ONE, user=current_user, **options)
    app = FastAPI()
    app.get("/a/b", dependencies=[Depends(limit)])(lambda: "hello")
    return app


def limit_after_a_dependency_that_stores_the_user(**options):
    app = FastAPI()
    limit = fastapi.RateLimit(ONE, **options)
    app.get("/a/b", dependencies=[Depends(store_user), Depends(limit)])(lambda: "hello")
    return app


def decorated_with_a_dependency_that_stores_the_user(**options):
    app = FastAPI(dependencies=[Depends(store_user)])
    app.get("/a/b")(fastapi.limited(ONE, **options)(lambda: "hello"))
    return app


@pytest.mark.parametrize(
    "make",
    [
        limit_with_a_user,
        limit_after_a_dependency_that_stores_the_user,
        decorated_with_a_dependency_that_stores_the_user,
    ],
    ids=lambda make: make.__name__,
)
def test_users_of_dependencies_are_found(make):
    app = make(key=by_user())
    assert [ask(app, {"x-name": name}) for name in "abab"] == [200, 200, 429, 429]
    app = make(key=first_of(by_user(), by_address()))
    assert [ask(app, {}) for _ in range(2)] == [200, 429]


@pytest.mark.parametrize("options", [{}, {"user": current_user}])
def test_nobody_names_a_user_in_the_query(options):
    app = FastAPI()
    limit = fastapi.RateLimit(ONE, key=first_of(by_user(), by_address()), **options)
    app.get("/a/b", dependencies=[Depends(limit)])(lambda: "hello")
    assert [ask(app, {}, f"/a/b?user={name}") for name in "ab"] == [200, 429]
    assert [each["name"] for each in app.openapi()["paths"]["/a/b"]["get"].get("parameters", [])] == (
        ["x-name"] if options else []
    )


def test_a_user_that_is_no_dependency_is_refused():
    with pytest.raises(TypeError, match="user must be a dependency that returns the user, not 'ada'"):
        fastapi.RateLimit(ONE, user="ada")


def test_users_that_cannot_be_told_apart_share_a_key_and_the_log_says_what_to_write(caplog):
    app = next(fastapi_views(by_user()))
    state_user(app, lambda headers: object())
    with caplog.at_level(logging.WARNING, "ratekeeper"):
        assert [ask(app) for _ in range(2)] == [200, 429]
    (record,) = caplog.records
    assert "the key function failed: all such requests share one key" in record.message
    assert "cannot tell users of the type object apart: they have none of identity, id" in caplog.text
    assert "write a key function instead of by_user()" in caplog.text


@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_log_says_that_no_user_was_found_and_what_to_do(caplog, place):
    app = list(fastapi_views(by_user()))[place]
    with caplog.at_level(logging.WARNING, "ratekeeper"):
        ask(app)
    assert "by_user() has found no user (to limit anonymous requests by address, use first_of" in caplog.text


# --- the documents


def test_the_table_of_options_in_the_documents_has_them_all():
    text = (Path(__file__).parents[2] / "docs/http.md").read_text("utf-8")
    table = text.partition("### All options")[2].partition("###")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert {name for cell in cells for name in re.findall("`([a-z_]+)`", cell)} == {"limit", *Options.__annotations__}
