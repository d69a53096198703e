"""The current decision, as views of each framework get it: the tightest of all limits so far."""

import asyncio

import django
import flask
import pytest
from asgiref.sync import iscoroutinefunction
from django.http import HttpResponse
from django.test import AsyncRequestFactory, RequestFactory, override_settings
from fastapi import Depends, FastAPI, Request
from starlette.testclient import TestClient
from werkzeug.test import Client

from ratekeeper import FixedWindow
from ratekeeper.http import current_decision
from ratekeeper.integrations import asgi, fastapi, wsgi
from ratekeeper.integrations import django as django_integration
from ratekeeper.integrations import flask as flask_integration

django.setup()

from rest_framework.response import Response  # noqa: E402 - only now there are models
from rest_framework.views import APIView  # noqa: E402

from ratekeeper.integrations.rest_framework import RateLimitThrottle  # noqa: E402

LONG = "400 days"  # a window that does not end while the tests run
OUTER, INNER = {"outer": FixedWindow(9, LONG)}, {"inner": FixedWindow(5, LONG)}


def text(request):
    decision = current_decision(request)
    return "none" if decision is None else f"{decision.rule} {decision.remaining}"


def in_asgi(limited):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": text(scope).encode()})

    if limited:
        app = asgi.RateLimitMiddleware(asgi.RateLimitMiddleware(app, INNER), OUTER)
    return TestClient(app).get("/").text


def in_fastapi(limited):
    app = FastAPI()
    if limited:
        app.add_middleware(fastapi.RateLimitMiddleware, limit=OUTER)
    dependencies = [Depends(fastapi.RateLimit(INNER))] if limited else []

    @app.get("/", dependencies=dependencies)
    def view(request: Request):
        return text(request)

    return TestClient(app).get("/").json()


def in_wsgi(limited):
    def app(environ, start_response):
        start_response("200 OK", [])
        return [text(environ).encode()]

    if limited:
        app = wsgi.RateLimitMiddleware(wsgi.RateLimitMiddleware(app, INNER), OUTER)
    return Client(app).get("/").text


def in_flask(limited):
    app = flask.Flask(__name__)
    limiter = flask_integration.RateLimiter(app, application=OUTER if limited else None)
    view = limiter.limit(INNER)(lambda: text(flask.request)) if limited else lambda: text(flask.request)
    app.add_url_rule("/", view_func=view, endpoint="view")
    return app.test_client().get("/").text


def in_django(limited):
    def view(request):
        return HttpResponse(text(request))

    with override_settings(RATEKEEPER={"limit": OUTER if limited else None}):
        view = django_integration.limited(INNER)(view) if limited else view
        return django_integration.RateLimitMiddleware(view)(RequestFactory().get("/")).content.decode()


def in_asynchronous_django(limited):
    async def view(request):
        return HttpResponse(text(request))

    with override_settings(RATEKEEPER={"limit": OUTER if limited else None}):
        view = django_integration.limited(INNER)(view) if limited else view
        middleware = django_integration.RateLimitMiddleware(view)
        assert iscoroutinefunction(middleware)
        return asyncio.run(middleware(AsyncRequestFactory().get("/"))).content.decode()


def in_the_rest_framework(limited):
    class Inner(RateLimitThrottle):
        limit = INNER

    class View(APIView):
        authentication_classes = permission_classes = ()
        throttle_classes = (Inner,) if limited else ()

        def get(self, request):
            return Response(text(request))

    with override_settings(RATEKEEPER={"limit": OUTER if limited else None}):
        middleware = django_integration.RateLimitMiddleware(View.as_view())
        return middleware(RequestFactory().get("/")).data


@pytest.mark.parametrize(
    "view",
    [in_asgi, in_fastapi, in_wsgi, in_flask, in_django, in_asynchronous_django, in_the_rest_framework],
    ids=lambda view: view.__name__,
)
def test_a_view_gets_the_tightest_decision_on_its_request(view):
    assert view(limited=True) == "inner 4"
    assert view(limited=False) == "none"


def test_what_is_no_request_has_come_to_no_limit():
    assert current_decision(object()) is None
