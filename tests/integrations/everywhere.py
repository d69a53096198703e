"""One application in every integration, in this process: what works in one place has to work in each.

A place is a context manager that takes the options of a gate, and gives a function which asks the application.
"""

import asyncio
import contextlib
from types import SimpleNamespace
from typing import NamedTuple

import django
import httpx
from django.http import HttpResponse
from django.test import AsyncRequestFactory, RequestFactory, override_settings
from fastapi import Depends, FastAPI
from flask import Flask
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route as StarletteRoute
from werkzeug.test import Client

from ratekeeper.integrations import asgi, fastapi, starlette, wsgi
from ratekeeper.integrations import django as for_django
from ratekeeper.integrations.flask import RateLimiter
from tests.faces import loop

django.setup()

from rest_framework.authentication import BaseAuthentication  # noqa: E402 - only now there are settings
from rest_framework.response import Response  # noqa: E402
from rest_framework.views import APIView  # noqa: E402

from ratekeeper.integrations.rest_framework import RateLimitThrottle  # noqa: E402

METHODS = ["GET", "POST", "PUT", "DELETE"]
OF_A_VIEW = ("limit", "policy", "shadow", "cost", "key")
"""The options that a limit of a single view has of its own; the others are those of the application."""


class Answered(NamedTuple):
    status: int
    headers: dict[str, str]


def answered(response):
    return Answered(response.status_code, {name.lower(): value for name, value in response.headers.items()})


def split(options):
    """Return the options of a view, and those of its application."""
    own = {name: value for name, value in options.items() if name in OF_A_VIEW}
    return own, {name: value for name, value in options.items() if name not in own}


def of_asgi(app):
    """A function that asks an ASGI application."""

    async def with_user(user, scope, receive, send):
        await app(scope if user is None else {**scope, "user": user}, receive, send)

    async def ask(method, path, headers, peer, user):
        transport = httpx.ASGITransport(lambda *asgi: with_user(user, *asgi), client=(peer, 123))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return answered(await client.request(method, path, headers=headers))

    def call(path="/", method="GET", headers=(), peer="192.0.2.1", user=None):
        return loop.run_until_complete(ask(method, path, headers, peer, user))

    return call


def of_wsgi(app):
    """A function that asks a WSGI application."""

    def call(path="/", method="GET", headers=(), peer="192.0.2.1", user=None):
        environ = {"REMOTE_ADDR": peer} | ({} if user is None else {"REMOTE_USER": user})
        return answered(Client(app).open(path, method=method, headers=dict(headers), environ_overrides=environ))

    return call


@contextlib.contextmanager
def in_asgi(**options):
    yield of_asgi(asgi.RateLimitMiddleware(PlainTextResponse("hello"), **options))


@contextlib.contextmanager
def in_starlette_s_middleware(**options):
    app = Starlette(routes=[StarletteRoute("/{path:path}", lambda _: PlainTextResponse("hello"), methods=METHODS)])
    app.add_middleware(starlette.RateLimitMiddleware, **options)
    yield of_asgi(app)


@contextlib.contextmanager
def in_a_decorator(**options):
    @starlette.limited(**options)
    async def hello(_):
        return PlainTextResponse("hello")

    yield of_asgi(Starlette(routes=[StarletteRoute("/{path:path}", hello, methods=METHODS)]))


@contextlib.contextmanager
def in_a_dependency(**options):
    app = FastAPI(dependencies=[Depends(fastapi.RateLimit(**options))])
    app.api_route("/{path:path}", methods=METHODS)(lambda: "hello")
    yield of_asgi(app)


@contextlib.contextmanager
def in_wsgi(**options):
    def hello(_, start_response):
        start_response("200 OK", [])
        return [b"hello"]

    yield of_wsgi(wsgi.RateLimitMiddleware(hello, **options))


@contextlib.contextmanager
def in_flask(**options):
    app = Flask(__name__)
    limit = options.pop("limit", None)
    RateLimiter(app, **({} if limit is None else {"default": limit}), **options)
    app.add_url_rule("/", "root", lambda: "hello", methods=METHODS)
    app.add_url_rule("/<path:path>", "hello", lambda path: "hello", methods=METHODS)
    yield of_wsgi(app)


@contextlib.contextmanager
def in_a_view_of_flask(**options):
    app = Flask(__name__)
    own, others = split(options)
    limiter = RateLimiter(app, **others)
    hello = limiter.limit(**own)(lambda path="": "hello")
    app.add_url_rule("/", "root", hello, methods=METHODS)
    app.add_url_rule("/<path:path>", "hello", hello, methods=METHODS)
    yield of_wsgi(app)


def of_django(view):
    def call(path="/", method="GET", headers=(), peer="192.0.2.1", user=None):
        made = RequestFactory().generic(method, path, REMOTE_ADDR=peer, headers=dict(headers))
        if user is not None:
            made.user = SimpleNamespace(is_authenticated=True, is_active=True, pk=user)
        return answered(view(made))

    return call


@contextlib.contextmanager
def in_django_s_middleware(**options):
    with override_settings(RATEKEEPER=options):
        yield of_django(for_django.RateLimitMiddleware(lambda _: HttpResponse("hello")))


@contextlib.contextmanager
def in_django_s_async_middleware(**options):
    async def hello(_):
        return HttpResponse("hello")

    def call(path="/", method="GET", headers=(), peer="192.0.2.1", user=None):
        made = AsyncRequestFactory().generic(method, path, headers=dict(headers))
        made.META["REMOTE_ADDR"] = peer

        async def find():
            await asyncio.sleep(0)
            return None if user is None else SimpleNamespace(is_authenticated=True, pk=user)

        made.auser = find
        return answered(loop.run_until_complete(middleware(made)))

    with override_settings(RATEKEEPER=options):
        middleware = for_django.RateLimitMiddleware(hello)
        yield call


@contextlib.contextmanager
def in_a_view_of_django(**options):
    own, others = split(options)
    with override_settings(RATEKEEPER=others):
        yield of_django(for_django.limited(**own)(lambda _: HttpResponse("hello")))


class AsDjangoSays(BaseAuthentication):
    """The user is the one of Django's own request."""

    def authenticate(self, request):
        user = getattr(request._request, "user", None)  # noqa: SLF001 - third-party, documented
        return None if user is None else (user, None)


@contextlib.contextmanager
def in_the_rest_framework(**options):
    own, others = split(options)
    with override_settings(RATEKEEPER=others):
        throttle = type("Throttle", (RateLimitThrottle,), own)

        def hello(view, request):
            return Response("hello")

        attributes = {"throttle_classes": (throttle,), "authentication_classes": (AsDjangoSays,)}
        view = type("Hello", (APIView,), attributes | {method.lower(): hello for method in METHODS})
        yield of_django(view.as_view())


PLACES = {name.removeprefix("in_"): place for name, place in list(globals().items()) if name.startswith("in_")}
