"""Requests from pages of other origins: preflights are not counted, and a page can read its 429."""

import asyncio

import django
import flask
import httpx
import pytest
from django.core import checks
from django.test import override_settings
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route as Path

from ratekeeper import FixedWindow
from ratekeeper.integrations import asgi, fastapi, starlette
from ratekeeper.integrations import django as django_integration
from ratekeeper.integrations import flask as flask_integration
from tests.integrations.attacked.asgi_app import KeepsTheApplication

django.setup()

TWO = FixedWindow(2, "400 days")
PAGE = "https://page.example"
PREFLIGHT = {"Origin": PAGE, "Access-Control-Request-Method": "GET", "Access-Control-Request-Headers": "x-a"}
POLICY = {"allow_origins": [PAGE], "allow_headers": ["x-a"], "expose_headers": ["Retry-After"]}


async def view(request):
    request.app.state.ran.append(request.method)
    return PlainTextResponse("hello")


def routes():
    return [Path("/", view, methods=["GET", "OPTIONS"])]


def served(app):
    app.state.ran = []
    return app


def limits_added_last(**options):
    app = served(FastAPI(routes=routes()))
    app.add_middleware(CORSMiddleware, **POLICY)
    app.add_middleware(GZipMiddleware)
    app.add_middleware(fastapi.RateLimitMiddleware, limit=TWO, **options)
    return app, app


def default_added_last():
    app = served(FastAPI(routes=routes()))
    app.add_middleware(CORSMiddleware, **POLICY)
    app.add_middleware(fastapi.RateLimitMiddleware, default=TWO)
    return app, app


def limits_around(**options):
    app = served(FastAPI(routes=routes()))
    around = asgi.RateLimitMiddleware(GZipMiddleware(app), TWO, **options)
    app.add_middleware(CORSMiddleware, **POLICY)
    return around, app


def cors_added_last(**options):
    app = served(FastAPI(routes=routes()))
    app.add_middleware(fastapi.RateLimitMiddleware, limit=TWO, **options)
    app.add_middleware(CORSMiddleware, **POLICY)
    return app, app


def without_cors(*more, **options):
    limits = Middleware(starlette.RateLimitMiddleware, limit=TWO, **options)
    app = served(Starlette(routes=routes(), middleware=[limits, *more]))
    return app, app


def ask(app, method, path="/", headers=()):
    async def request():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
            return await http.request(method, path, headers=headers)

    return asyncio.run(request())


@pytest.mark.parametrize(
    "make", [limits_added_last, default_added_last, limits_around, cors_added_last], ids=lambda make: make.__name__
)
def test_preflights_are_not_counted_and_a_page_can_read_its_denial(make):
    app, inner = make()
    for status in (200, 200, 429, 429):
        preflight = ask(app, "OPTIONS", headers=PREFLIGHT)
        assert (preflight.status_code, preflight.headers["access-control-allow-origin"]) == (200, PAGE)
        assert preflight.headers["access-control-allow-headers"].endswith("x-a")
        answer = ask(app, "GET", headers={"Origin": PAGE})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, PAGE)
    assert answer.headers["access-control-expose-headers"] == "Retry-After"
    assert int(answer.headers["retry-after"]) > 0
    assert answer.json()["status"] == 429
    assert inner.state.ran == ["GET", "GET"]


@pytest.mark.parametrize("make", [limits_added_last, limits_around, cors_added_last], ids=lambda make: make.__name__)
def test_options_that_are_no_preflights_are_counted(make):
    app, inner = make()
    incomplete = [{"Origin": PAGE}, {"Access-Control-Request-Method": "GET"}, {}]
    answers = [ask(app, "OPTIONS", headers=headers) for headers in incomplete]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert inner.state.ran == ["OPTIONS", "OPTIONS"]


@pytest.mark.parametrize("make", [limits_added_last, limits_around], ids=lambda make: make.__name__)
def test_preflights_are_counted_if_asked_for(make):
    app, inner = make(count_preflights=True)
    answers = [ask(app, "OPTIONS", headers=PREFLIGHT) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert inner.state.ran == []
    assert ask(app, "GET", headers={"Origin": PAGE}).headers["access-control-allow-origin"] == PAGE


def derived_cors(**options):
    return without_cors(Middleware(KeepsTheApplication, **POLICY), **options)


def derived_cors_around(**options):
    app = served(Starlette(routes=routes()))
    return asgi.RateLimitMiddleware(KeepsTheApplication(app, **POLICY), TWO, **options), app


@pytest.mark.parametrize("make", [derived_cors, derived_cors_around], ids=lambda make: make.__name__)
def test_what_a_class_derived_from_cors_passes_on_is_counted(make):
    app, inner = make()
    answers = [ask(app, "OPTIONS", headers=PREFLIGHT) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert inner.state.ran == ["OPTIONS", "OPTIONS"]


def test_pages_of_other_origins_get_no_permission():
    app, inner = limits_added_last()
    stranger = {**PREFLIGHT, "Origin": "https://stranger.example"}
    for _ in range(3):
        preflight = ask(app, "OPTIONS", headers=stranger)
        assert (preflight.status_code, "access-control-allow-origin" in preflight.headers) == (400, False)
    answers = [ask(app, "GET", headers={"Origin": "https://stranger.example"}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert "access-control-allow-origin" not in answers[2].headers
    assert inner.state.ran == ["GET", "GET"]


class Overriding:
    """Takes the method from a header, as some applications do."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        if (b"x-http-method-override", b"GET") in scope["headers"]:
            scope["method"] = "GET"
        await self.app(scope, receive, send)


class Partial(CORSMiddleware):
    """Answers preflights of some paths only."""

    async def __call__(self, scope, receive, send):
        await (self.app if scope["path"] == "/" else super().__call__)(scope, receive, send)


@pytest.mark.parametrize(
    ("more", "headers"),
    [
        ([], PREFLIGHT),
        ([Middleware(Partial, **POLICY)], PREFLIGHT),
        ([Middleware(Overriding), Middleware(CORSMiddleware, **POLICY)], PREFLIGHT | {"X-HTTP-Method-Override": "GET"}),
    ],
    ids=["no CORS", "CORS for other paths", "a method that is overridden"],
)
def test_no_view_runs_uncounted_for_what_looks_like_a_preflight(more, headers):
    app, inner = without_cors(*more)
    assert [ask(app, "GET").status_code for _ in range(3)] == [200, 200, 429]
    for method in ("OPTIONS", "options"):
        ask(app, method, headers=headers)
    assert inner.state.ran == ["GET", "GET"]


def test_a_denial_by_a_limit_of_one_route_can_be_read():
    app = FastAPI()
    app.get("/")(fastapi.limited(FixedWindow(1, "400 days"))(lambda: "hello"))
    app.add_middleware(CORSMiddleware, **POLICY)
    answers = [ask(app, "GET", headers={"Origin": PAGE}) for _ in range(2)]
    assert [(each.status_code, each.headers["access-control-allow-origin"]) for each in answers] == [
        (200, PAGE),
        (429, PAGE),
    ]


# --- Flask


def flask_app(**options):
    app = flask.Flask(__name__)
    app.ran = []
    limiter = flask_integration.RateLimiter(app, **(options or {"default": TWO}))

    def view():
        app.ran.append(flask.request.method)
        return "hello"

    app.add_url_rule("/", "automatic", view)
    app.add_url_rule("/limited", "limited", limiter.limit(TWO)(view))
    app.add_url_rule("/own", "own", view, methods=["GET", "OPTIONS"])

    @app.after_request
    def allow(response):  # as Flask-CORS does
        response.headers["Access-Control-Allow-Origin"] = PAGE
        return response

    return app


@pytest.mark.parametrize("options", [{"default": TWO}, {"application": TWO}])
@pytest.mark.parametrize("path", ["/", "/limited"])
def test_preflights_that_flask_answers_are_not_counted(options, path):
    app = flask_app(**options)
    client = app.test_client()
    for status in (200, 200, 429):
        preflight = client.options(path, headers=PREFLIGHT)
        assert (preflight.status_code, preflight.headers["Access-Control-Allow-Origin"]) == (200, PAGE)
        answer = client.get(path, headers={"Origin": PAGE})
        assert (answer.status_code, answer.headers["Access-Control-Allow-Origin"]) == (status, PAGE)
    assert app.ran == ["GET", "GET"]


@pytest.mark.parametrize(
    ("options", "path", "headers", "ran"),
    [
        ({"default": TWO}, "/own", PREFLIGHT, ["OPTIONS", "OPTIONS"]),  # a view answers these
        ({"default": TWO}, "/", {"Origin": PAGE}, []),
        ({"application": TWO}, "/nowhere", PREFLIGHT, []),
        ({"default": TWO, "count_preflights": True}, "/", PREFLIGHT, []),
    ],
)
def test_other_options_are_counted(options, path, headers, ran):
    app = flask_app(**options)
    statuses = [app.test_client().options(path, headers=headers).status_code for _ in range(3)]
    assert statuses[2] == 429
    assert 429 not in statuses[:2]
    assert app.ran == ran


# --- Django

OURS = f"{django_integration.__name__}.RateLimitMiddleware"
CORS = "corsheaders.middleware.CorsMiddleware"


@pytest.mark.parametrize(
    ("middleware", "found"), [([OURS, CORS], ["ratekeeper.W001"]), ([CORS, OURS], []), ([OURS], []), ([CORS], [])]
)
def test_a_check_says_if_limits_come_before_cors(middleware, found):
    with override_settings(MIDDLEWARE=middleware):
        reported = [each for each in checks.run_checks() if each.id.startswith("ratekeeper.")]
    assert [each.id for each in reported] == found
    assert [each.hint for each in reported] == [f"Put {CORS} before {OURS}."] * len(found)


def test_what_is_no_bool_is_refused():
    with pytest.raises(TypeError, match="count_preflights must be True or False, not 1"):
        asgi.RateLimitMiddleware(PlainTextResponse("hello"), TWO, count_preflights=1)
