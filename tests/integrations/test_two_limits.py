"""Two limits on one request: whichever is tighter, the response reports that one, once, in every framework."""

import asyncio

import flask
import httpx
import pytest
from fastapi import Depends, FastAPI
from starlette.responses import JSONResponse, PlainTextResponse
from werkzeug.test import Client

from ratekeeper import FixedWindow
from ratekeeper.http import Headers
from ratekeeper.integrations import asgi, fastapi, wsgi
from ratekeeper.integrations import flask as flask_integration
from ratekeeper.integrations.fastapi import RateLimit, limited

LONG = "400 days"  # a window that does not end while the tests run
NAMES = ("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "ratelimit-policy", "ratelimit")


def rules(name, limit):
    return {name: FixedWindow(limit, LONG)}


def two_asgi_middlewares(outer, inner):
    return asgi.RateLimitMiddleware(asgi.RateLimitMiddleware(PlainTextResponse("hello"), inner), outer)


def a_fastapi_app(outer, **route):
    app = FastAPI()
    app.add_middleware(fastapi.RateLimitMiddleware, limit=outer)
    return app, app.get("/", **route)


def a_middleware_and_a_dependency(outer, inner):
    app, get = a_fastapi_app(outer, dependencies=[Depends(RateLimit(inner))])
    get(lambda: "hello")
    return app


def a_middleware_and_a_dependency_of_a_view_that_returns_a_response(outer, inner):
    app, get = a_fastapi_app(outer, dependencies=[Depends(RateLimit(inner))])
    get(lambda: PlainTextResponse("hello"))
    return app


def a_middleware_and_a_decorator(outer, inner):
    app, get = a_fastapi_app(outer)
    get(limited(inner)(lambda: "hello"))
    return app


def two_dependencies(outer, inner):
    app = FastAPI(dependencies=[Depends(RateLimit(outer))])
    app.get("/", dependencies=[Depends(RateLimit(inner))])(lambda: "hello")
    return app


def two_decorators(outer, inner):
    app = FastAPI()
    app.get("/")(limited(outer)(limited(inner)(lambda: PlainTextResponse("hello"))))
    return app


def a_dependency_and_a_decorator(outer, inner):
    app = FastAPI(dependencies=[Depends(RateLimit(outer))])
    app.get("/")(limited(inner)(lambda: "hello"))
    return app


def a_middleware_and_a_mounted_one(outer, inner):
    app, _ = a_fastapi_app(outer)
    mounted, get = a_fastapi_app(inner)
    get(lambda: "hello")
    app.mount("/", mounted)
    return app


def two_wsgi_middlewares(outer, inner):
    def hello(_, start_response):
        start_response("200 OK", [])
        return [b"hello"]

    return wsgi.RateLimitMiddleware(wsgi.RateLimitMiddleware(hello, inner), outer)


def flask_app(default=None, application=None):
    app = flask.Flask(__name__)
    limiter = flask_integration.RateLimiter(app, default=default, application=application)
    return app, limiter


def a_flask_application_and_its_default(outer, inner):
    app, _ = flask_app(inner, outer)
    app.get("/")(lambda: "hello")
    return app


def two_flask_decorators(outer, inner):
    app, limiter = flask_app()
    app.get("/")(limiter.limit(outer)(limiter.limit(inner)(lambda: "hello")))
    return app


def a_wsgi_middleware_around_flask(outer, inner):
    app, _ = flask_app(inner)
    app.get("/")(lambda: "hello")
    return wsgi.RateLimitMiddleware(app, outer)


ASGI = (
    two_asgi_middlewares,
    a_middleware_and_a_dependency,
    a_middleware_and_a_dependency_of_a_view_that_returns_a_response,
    a_middleware_and_a_decorator,
    two_dependencies,
    two_decorators,
    a_dependency_and_a_decorator,
    a_middleware_and_a_mounted_one,
)
WSGI = (two_wsgi_middlewares, a_flask_application_and_its_default, two_flask_decorators, a_wsgi_middleware_around_flask)


def get(app):
    """Ask an application, and return the status and the lines of its headers."""
    if isinstance(app, flask.Flask | wsgi.RateLimitMiddleware):
        response = Client(app).get("/")
        return response.status_code, [(name.lower(), value) for name, value in response.headers]

    async def ask():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
            return await http.get("/")

    response = asyncio.run(ask())
    return response.status_code, response.headers.multi_items()


def reported(lines):
    return [(name, value) for name, value in lines if "ratelimit" in name or name == "retry-after"]


@pytest.mark.parametrize("make", [*ASGI, *WSGI], ids=lambda make: make.__name__)
@pytest.mark.parametrize(("outer", "inner"), [(10, 2), (2, 10)])
def test_the_tighter_of_two_limits_is_reported_once(make, outer, inner):
    tight = "outer" if outer < inner else "inner"
    app = make(rules("outer", outer), rules("inner", inner))
    for remaining in ("1", "0"):
        status, lines = get(app)
        told = dict(reported(lines))
        assert (status, [name for name, _ in reported(lines)]) == (200, list(NAMES))
        assert (told["x-ratelimit-limit"], told["x-ratelimit-remaining"]) == ("2", remaining)
        assert told["ratelimit"].startswith(f'"{tight}";r={remaining};t=')
        assert told["ratelimit-policy"] == f'"{tight}";q=2;w=34560000'
    status, lines = get(app)
    told = dict(reported(lines))
    assert (status, [name for name, _ in reported(lines)]) == (429, [*NAMES, "retry-after"])
    assert told["ratelimit-policy"] == f'"{tight}";q=2;w=34560000'


@pytest.mark.parametrize("make", [a_middleware_and_a_dependency, a_middleware_and_a_decorator])
def test_a_denial_that_the_application_answers_itself_is_still_reported(make):
    app = make(rules("outer", 10), rules("inner", 1))

    @app.exception_handler(429)
    async def sorry(*_):
        return JSONResponse("sorry", 429)

    get(app)
    status, lines = get(app)
    told = dict(reported(lines))
    assert (status, [name for name, _ in reported(lines)]) == (429, [*NAMES, "retry-after"])
    assert told["ratelimit-policy"] == '"inner";q=1;w=34560000'


def test_of_two_limits_that_write_different_headers_only_those_of_the_tighter_are_left():
    app = FastAPI(dependencies=[Depends(RateLimit(rules("outer", 10)))])
    app.get("/", dependencies=[Depends(RateLimit(rules("inner", 2), headers=Headers(legacy=False)))])(lambda: "hello")
    assert [name for name, _ in reported(get(app)[1])] == ["ratelimit-policy", "ratelimit"]


def test_headers_that_a_limited_view_sets_itself_are_kept():
    app = FastAPI()
    own = {"X-RateLimit-Limit": "7", "Retry-After": "30"}
    app.get("/")(limited(rules("inner", 2))(lambda: PlainTextResponse("hello", 202, headers=own)))
    told = dict(reported(get(app)[1]))
    assert (told["x-ratelimit-limit"], told["retry-after"], told["x-ratelimit-remaining"]) == ("7", "30", "1")
