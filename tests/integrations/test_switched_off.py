"""`enabled=False` in every integration: everything is admitted, no store is needed, and each request is counted."""

import asyncio
import subprocess
import sys

import flask
import httpx
import pytest
from fastapi import Depends, FastAPI
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route as StarletteRoute

from ratekeeper import AsyncLimiter, InvalidRule, Limiter
from ratekeeper.http import AsyncGate, Gate, Notices, Route
from ratekeeper.integrations import asgi, fastapi, starlette, wsgi
from ratekeeper.integrations import flask as flask_integration
from ratekeeper.integrations.httpx import AsyncLimitedTransport, LimitedTransport
from ratekeeper.integrations.requests import LimitedAdapter

NOWHERE = "redis://127.0.0.1:1"
"""A store that is not asked: decisions on it would be degraded."""


def asgi_app(**options):
    return asgi.RateLimitMiddleware(PlainTextResponse("hello"), "1/day", **options)


def starlette_app(**options):
    @starlette.limited("1/day", **options)
    async def hello(_):
        return PlainTextResponse("hello")

    return Starlette(routes=[StarletteRoute("/", hello)])


def fastapi_app(**options):
    app = FastAPI(dependencies=[Depends(fastapi.RateLimit("1/day", **options))])
    app.get("/")(lambda: "hello")
    return app


def wsgi_app(**options):
    def hello(_, start_response):
        start_response("200 OK", [])
        return [b"hello"]

    return wsgi.RateLimitMiddleware(hello, "1/day", **options)


def flask_app(**options):
    app = flask.Flask(__name__)
    limiter = flask_integration.RateLimiter(app, default="1/day", **options)
    app.get("/")(limiter.limit("1/day")(lambda: "hello"))
    return app


APPS = {each.__name__: each for each in (asgi_app, starlette_app, fastapi_app, wsgi_app, flask_app)}


def get(app, times):
    async def asked():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return [await client.get("/") for _ in range(times)]

    if "wsgi" in type(app).__module__ or isinstance(app, flask.Flask):
        with httpx.Client(transport=httpx.WSGITransport(app), base_url="http://test") as client:
            return [client.get("/") for _ in range(times)]
    return asyncio.run(asked())


@pytest.mark.parametrize("make", APPS.values(), ids=APPS)
def test_everything_is_admitted_without_headers_and_counted_as_unlimited(make):
    notices = Notices()
    answers = get(make(enabled=False, store=NOWHERE, notices=notices), 3)
    assert [(answer.status_code, "x-ratelimit-limit" in answer.headers) for answer in answers] == [(200, False)] * 3
    assert notices.counts == {"degraded": 0, "skipped": 0, "shared": 0, "unlimited": 3, "shadow_denied": 0}


@pytest.mark.parametrize("make", APPS.values(), ids=APPS)
def test_enabled_is_the_default(make):
    assert [answer.status_code for answer in get(make(enabled=True), 2)] == [200, 429]


@pytest.mark.parametrize("make", APPS.values(), ids=APPS)
@pytest.mark.parametrize("value", ["false", 0, None])
def test_a_value_that_may_mean_anything_is_refused(make, value):
    with pytest.raises(TypeError, match=r"^enabled must be True or False, not "):
        make(enabled=value)


@pytest.mark.parametrize("gate", [Gate, AsyncGate])
@pytest.mark.parametrize("options", [{"limit": "often"}, {"routes": [Route("/a", "often")]}])
def test_bad_rules_are_refused_all_the_same(gate, options):
    with pytest.raises(InvalidRule):
        gate(enabled=False, **options)


@pytest.mark.parametrize("gate", [Gate, AsyncGate])
def test_a_limiter_that_is_passed_is_not_asked_either(gate):
    limiter = (Limiter if gate is Gate else AsyncLimiter)("1/day", NOWHERE)
    notices = Notices()
    app = (wsgi if gate is Gate else asgi).RateLimitMiddleware
    answers = get(app(wsgi_app() if gate is Gate else asgi_app(), limiter, enabled=False, notices=notices), 1)
    assert (answers[0].status_code, notices.counts["unlimited"], limiter.notices.counts["degraded"]) == (200, 1, 0)


def test_it_needs_no_client_of_the_store():
    code = """
import sys
sys.modules["redis"] = None  # as if it were not installed
from ratekeeper.http import AsyncGate
from ratekeeper.integrations.fastapi import RateLimit
AsyncGate("1/day", store="redis://localhost", enabled=False)
RateLimit("1/day", store="redis://localhost", enabled=False)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_flask_s_argument_overrides_its_setting():
    for argument, setting in ((True, False), (False, True)):
        app = flask.Flask(__name__)
        app.config["RATELIMIT_ENABLED"] = setting
        flask_integration.RateLimiter(app, default="1/day", enabled=argument)
        app.get("/")(lambda: "hello")
        assert [answer.status_code for answer in get(app, 2)] == [200, 429 if argument else 200]


OUTGOING = {each.__name__: each for each in (LimitedTransport, AsyncLimitedTransport, LimitedAdapter)}


@pytest.mark.parametrize("make", OUTGOING.values(), ids=OUTGOING)
def test_a_limiter_for_outgoing_requests_is_switched_off_itself(make):
    kind = AsyncLimiter if make is AsyncLimitedTransport else Limiter
    with pytest.raises(InvalidRule, match="enabled cannot be combined with a limiter, which has its own"):
        make(kind("1/day"), enabled=False)
    with pytest.raises(TypeError, match=r"^enabled must be True or False, not 'no'$"):
        make("1/day", enabled="no")
