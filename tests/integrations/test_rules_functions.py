"""A function of the request that returns bad rules, or none that admit anything, through every integration."""

import asyncio
import contextlib

import django
import httpx
import pytest
from django.http import HttpResponse
from django.test import AsyncRequestFactory, RequestFactory, override_settings
from fastapi import Depends, FastAPI
from flask import Flask
from starlette.responses import PlainTextResponse

from ratekeeper import FixedWindow
from ratekeeper.http import Route
from ratekeeper.integrations import asgi, fastapi, wsgi
from ratekeeper.integrations import django as for_django
from ratekeeper.integrations.flask import RateLimiter

django.setup()

from rest_framework.response import Response  # noqa: E402 - only now there are settings
from rest_framework.views import APIView  # noqa: E402

from ratekeeper.integrations.rest_framework import RateLimitThrottle  # noqa: E402

FALLBACK = FixedWindow(1, "400 days")


@contextlib.contextmanager
def through_asgi(rules):
    app = asgi.RateLimitMiddleware(PlainTextResponse("hello"), rules, fallback=FALLBACK)
    yield lambda: asyncio.run(asked(app))


@contextlib.contextmanager
def through_a_dependency(rules):
    app = FastAPI(dependencies=[Depends(fastapi.RateLimit(rules, fallback=FALLBACK))])
    app.add_api_route("/", lambda: "hello")
    yield lambda: asyncio.run(asked(app))


@contextlib.contextmanager
def through_a_decorator(rules):
    app = FastAPI()
    app.add_api_route("/", fastapi.limited(rules, fallback=FALLBACK)(lambda: "hello"))
    yield lambda: asyncio.run(asked(app))


async def asked(app):
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
        answer = await client.get("/")
        return answer.status_code, answer.headers


@contextlib.contextmanager
def through_wsgi(rules):
    def hello(environ, start_response):
        start_response("200 OK", [])
        return [b"hello"]

    app = wsgi.RateLimitMiddleware(hello, rules, fallback=FALLBACK)
    with httpx.Client(transport=httpx.WSGITransport(app), base_url="http://x") as client:
        yield lambda: answered(client.get("/"))


@contextlib.contextmanager
def through_flask(rules):
    app = Flask(__name__)
    app.add_url_rule("/", "hello", RateLimiter(app, default=FALLBACK).limit(rules)(lambda: "hello"))
    yield lambda: answered(app.test_client().get("/"))


@contextlib.contextmanager
def through_flask_s_default(rules):
    app = Flask(__name__)
    RateLimiter(app, default=rules, fallback=FALLBACK)
    app.add_url_rule("/", "hello", lambda: "hello")
    yield lambda: answered(app.test_client().get("/"))


@contextlib.contextmanager
def through_django(rules):
    with override_settings(
        RATEKEEPER={"limit": FALLBACK, "routes": [Route("/", None)]}
    ):  # a view's limit has no routes
        view = for_django.limited(rules)(lambda request: HttpResponse("hello"))
        yield lambda: answered(view(RequestFactory().get("/")))


@contextlib.contextmanager
def through_async_django(rules):
    async def hello(request):
        return HttpResponse("hello")

    with override_settings(RATEKEEPER={"limit": rules, "fallback": FALLBACK}):
        middleware = for_django.RateLimitMiddleware(hello)
        yield lambda: answered(asyncio.run(middleware(AsyncRequestFactory().get("/"))))


@contextlib.contextmanager
def through_the_rest_framework(rules):
    with override_settings(RATEKEEPER={"limit": FALLBACK}):

        class Throttle(RateLimitThrottle):
            limit = staticmethod(rules)

        class Hello(APIView):
            throttle_classes = (Throttle,)

            def get(self, request):
                return Response("hello")

        yield lambda: answered(Hello.as_view()(RequestFactory().get("/")))


def answered(response):
    return response.status_code, response.headers


WAYS = {name.removeprefix("through_"): way for name, way in list(globals().items()) if name.startswith("through_")}


def raises(request):
    raise LookupError("no plan")


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (lambda request: "0/m", [429, 429]),
        (lambda request: "blocked", [429, 429]),
        (lambda request: "unlimited", [200, 200]),
        (lambda request: None, [200, 200]),
        (lambda request: "nonsense", [200, 429]),
        (raises, [200, 429]),
    ],
    ids=["0/m", "blocked", "unlimited", "None", "nonsense", "an exception"],
)
def test_bad_rules_never_mean_no_limit(way, rules, expected):
    with way(rules) as ask:
        answers = [ask() for _ in range(2)]
    assert [status for status, _ in answers] == expected
    if expected == [429, 429]:
        assert "Retry-After" not in answers[0][1]
