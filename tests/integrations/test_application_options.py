"""FastAPI and Starlette: what limits of endpoints have from the middleware, and its default for each endpoint."""

import asyncio
import contextlib
from typing import Annotated

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, WebSocket
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.responses import PlainTextResponse
from starlette.routing import Mount
from starlette.routing import Route as Path
from starlette.staticfiles import StaticFiles
from starlette.testclient import TestClient, WebSocketDenialResponse

from ratekeeper import FixedWindow, InvalidRule
from ratekeeper.http import Headers, Notices, by_header
from ratekeeper.integrations.fastapi import RateLimit, RateLimitMiddleware, Route, limited
from ratekeeper.stores import MemoryStore
from ratekeeper.testing import ManualClock

ONE, TWO = FixedWindow(1, "400 days"), FixedWindow(2, "400 days")  # windows that do not end while the tests run


@pytest.fixture
def app():
    return FastAPI()


def get(app, *paths, method="GET", **headers):
    """Send one request after another, and return the statuses."""
    return [response.status_code for response in ask(app, *paths, method=method, **headers)]


def ask(app, *paths, method="GET", **headers):
    async def main():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
            return [await http.request(method, path, headers=headers) for path in paths]

    return asyncio.run(main())


def start(app):
    """Begin the lifespan of an application, and return what it tells the server."""
    told = []

    async def receive():
        return {"type": "lifespan.startup"}

    async def send(message):
        told.append(message)

    with contextlib.suppress(TypeError, InvalidRule):  # for test clients
        asyncio.run(app({"type": "lifespan", "state": {}}, receive, send))
    return told


def add(app, path, function=None, **options):
    app.add_api_route(path, function or (lambda: "hello"), **options)


def own_limits(app, limit=ONE, **options):
    """Add an endpoint with a dependency, and one with a decorator."""
    add(app, "/dependency", dependencies=[Depends(RateLimit(limit, **options))])
    add(app, "/decorator", limited(limit, **options)(lambda: "hello"))


# --- Options


@pytest.mark.parametrize("path", ["/dependency", "/decorator"])
def test_a_limit_has_the_key_the_store_the_prefix_and_the_headers_of_the_middleware(path, app):
    store = MemoryStore()
    app.add_middleware(
        RateLimitMiddleware, key=by_header("x-client"), store=store, prefix="shop", headers=Headers(legacy=False)
    )
    own_limits(app, name="all")
    assert get(app, path, path, **{"x-client": "ada"}) == [200, 429]
    (response,) = ask(app, path, **{"x-client": "bob"})
    assert (response.status_code, "ratelimit" in response.headers) == (200, True)
    assert "x-ratelimit-limit" not in response.headers
    assert store.size == 2


@pytest.mark.parametrize("path", ["/dependency", "/decorator"])
def test_what_a_limit_says_itself_holds_for_it(path, app):
    app.add_middleware(RateLimitMiddleware, key=by_header("x-client"), deny="Not now.")
    own_limits(app, key=by_header("x-other"), deny="Later.")
    answers = ask(app, path, path, **{"x-client": "ada", "x-other": "a"})
    assert [answer.status_code for answer in answers] == [200, 429]
    assert "Later." in answers[1].text
    assert get(app, path, **{"x-client": "ada", "x-other": "b"}) == [200]


def test_limits_with_one_name_share_their_usage_in_memory_as_well(app):
    own_limits(app, TWO, name="database")
    assert get(app, "/dependency", "/decorator", "/dependency", "/decorator") == [200, 200, 429, 429]


def test_a_limit_counts_for_each_application_by_itself():
    limit = RateLimit(ONE)
    apps = [FastAPI(dependencies=[Depends(limit)]) for _ in range(2)]
    for app in apps:
        add(app, "/")
    assert [get(app, "/", "/") for app in apps] == [[200, 429]] * 2


def test_a_limit_with_a_clock_of_its_own_has_counts_of_its_own(app):
    clock = ManualClock()
    own_limits(app, FixedWindow(1, 60), clock=clock)
    add(app, "/other", dependencies=[Depends(RateLimit(ONE))])
    assert get(app, "/other", "/decorator", "/decorator") == [200, 200, 429]
    clock.advance(60)
    assert get(app, "/other", "/decorator") == [429, 200]


def test_exempt_requests_are_exempt_from_the_limits_of_endpoints_as_well(app):
    app.add_middleware(RateLimitMiddleware, exempt=["/dependency", lambda request: "x-house" in request.headers])
    own_limits(app)
    assert get(app, "/dependency", "/dependency") == [200, 200]
    assert get(app, "/decorator", "/decorator", **{"x-house": "1"}) == [200, 200]
    assert get(app, "/decorator", "/decorator") == [200, 429]


def test_enabled_false_switches_everything_off_and_counts_each_request_once(app):
    notices = Notices()
    app.add_middleware(RateLimitMiddleware, limit=ONE, default=ONE, enabled=False, notices=notices)
    own_limits(app)
    assert get(app, "/dependency", "/dependency", "/decorator", "/decorator") == [200] * 4
    assert notices.counts["unlimited"] == 4


def test_without_a_limit_of_its_own_the_middleware_counts_the_requests_that_come_to_none(app):
    notices = Notices()
    app.add_middleware(RateLimitMiddleware, notices=notices)
    own_limits(app)
    add(app, "/free")
    assert get(app, "/dependency", "/free", "/free") == [200] * 3
    assert notices.counts["unlimited"] == 2


def test_a_mounted_application_has_options_of_its_own(app):
    inside = FastAPI()
    inside.add_middleware(RateLimitMiddleware, key=by_header("x-inner"))
    own_limits(inside)
    app.add_middleware(RateLimitMiddleware, key=by_header("x-outer"))
    own_limits(app)
    app.mount("/inside", inside)
    assert get(app, "/inside/decorator", **{"x-outer": "a", "x-inner": "1"}) == [200]
    assert get(app, "/inside/decorator", **{"x-outer": "b", "x-inner": "1"}) == [429]
    assert get(app, "/decorator", **{"x-outer": "a"}) == [200]


def test_a_function_of_the_key_gets_the_key_of_the_client_alone(app):
    app.add_middleware(RateLimitMiddleware, key=by_header("x-client"))
    own_limits(app, lambda key: TWO if key == "header:x-client:ada" else ONE)
    assert [get(app, *["/decorator"] * 3, **{"x-client": name}) for name in ("ada", "bob")] == [
        [200, 200, 429],
        [200, 429, 429],
    ]


def test_the_policies_of_the_middleware_are_those_of_endpoints_and_of_the_default(app, tmp_path):
    file = tmp_path / "limits.toml"
    file.write_text(
        '[policies.api]\nrules = [{name = "each", key = "{header:x-client}", limit = "fixed-window 2/400d"}]\n'
    )
    app.add_middleware(RateLimitMiddleware, policies=file, default=Route("*", policy="api"))
    own_limits(app, None, policy="api")
    add(app, "/other")
    paths = ("/decorator", "/other", "/dependency")  # a policy has one usage, wherever it is
    assert [get(app, *paths, **{"x-client": name}) for name in ("ada", "bob")] == [[200, 200, 429]] * 2


# --- The default


def test_the_default_counts_each_endpoint_and_each_client_by_itself(app):
    app.add_middleware(RateLimitMiddleware, default=TWO, key=by_header("x-client"))
    add(app, "/users/{number}")
    add(app, "/search")
    ada, bob = {"x-client": "ada"}, {"x-client": "bob"}
    assert get(app, "/users/1", "/users/2", "/users/3", "/search", **ada) == [200, 200, 429, 200]
    assert get(app, "/users/1", **bob) == [200]


def test_the_default_and_a_limit_for_all_requests_apply_together(app):
    app.add_middleware(RateLimitMiddleware, limit={"all": FixedWindow(3, "400 days")}, default={"each": TWO})
    for path in ("/a", "/b"):
        add(app, path)
    answers = ask(app, "/a", "/a", "/a", "/b", "/b")
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429, 429]
    assert [answer.json()["violated-policies"] for answer in answers[2:]] == [["each"], ["all"], ["all"]]


def test_what_no_endpoint_answers_is_not_counted_by_the_default(app, tmp_path):
    (tmp_path / "page.txt").write_text("static")
    app.add_middleware(RateLimitMiddleware, default=ONE)
    add(app, "/view")
    app.mount("/static", StaticFiles(directory=tmp_path))
    assert get(app, "/nothing", "/nothing", "/view/", "/static/page.txt", "/static/page.txt") == [
        404,
        404,
        307,
        200,
        200,
    ]
    assert get(app, "/view", method="PUT") == [405]
    assert get(app, "/view", "/view") == [200, 429]


def limit_of_a_router(app, limit):
    router = APIRouter(prefix="/router", dependencies=[Depends(limit)])
    add(router, "/view")
    outer = APIRouter(prefix="/outer")
    outer.include_router(router)
    app.include_router(outer)
    return "/outer/router/view"


def limit_of_a_route(app, limit):
    add(app, "/view", dependencies=[Depends(limit)])
    return "/view"


def limit_of_a_dependency(app, limit):
    def dependency(_: Annotated[object, Depends(limit)]): ...

    add(app, "/view", dependencies=[Depends(dependency)])
    return "/view"


@pytest.mark.parametrize("declare", [limit_of_a_router, limit_of_a_route, limit_of_a_dependency])
@pytest.mark.parametrize(("override_defaults", "expected"), [(True, [200, 200, 429]), (False, [200, 429, 429])])
def test_the_limits_of_an_endpoint_replace_the_default_unless_they_say_otherwise(
    declare, override_defaults, expected, app
):
    app.add_middleware(RateLimitMiddleware, default=ONE)
    path = declare(app, RateLimit(TWO, override_defaults=override_defaults))
    add(app, "/other")
    assert get(app, path, path, path) == expected
    assert get(app, "/other", "/other") == [200, 429]


@pytest.mark.parametrize(("override_defaults", "expected"), [(True, [200, 200, 429]), (False, [200, 429, 429])])
def test_so_does_a_decorator(override_defaults, expected, app):
    app.add_middleware(RateLimitMiddleware, default=ONE)
    add(app, "/view", limited(TWO, override_defaults=override_defaults)(lambda: "hello"))
    assert get(app, "/view", "/view", "/view") == expected


def test_a_limit_that_equals_the_default_is_counted_apart_from_it(app):
    app.add_middleware(RateLimitMiddleware, default=TWO)
    own_limits(app, TWO, override_defaults=False)
    assert get(app, *["/dependency"] * 3) == get(app, *["/decorator"] * 3) == [200, 200, 429]


def test_a_limit_for_one_method_replaces_the_default_for_that_method_only(app):
    app.add_middleware(RateLimitMiddleware, default=ONE)
    add(app, "/view", limited(TWO, methods=["POST"])(lambda: "hello"), methods=["GET", "POST"])
    assert get(app, "/view", "/view", "/view", method="POST") == [200, 200, 429]
    assert get(app, "/view", "/view") == [200, 429]


def test_the_default_may_have_options_of_its_own(app):
    app.add_middleware(
        RateLimitMiddleware, limit=TWO, default=Route("*", ONE, key=by_header("x-client"), deny="Later.")
    )
    add(app, "/view")
    assert [get(app, "/view", **{"x-client": name}) for name in ("a", "b")] == [[200]] * 2
    (denied,) = ask(app, "/view", **{"x-client": "a"})
    assert denied.status_code == 429


def test_the_default_applies_where_a_function_of_an_endpoint_gives_no_rules(app):
    app.add_middleware(RateLimitMiddleware, default=TWO)
    add(app, "/view", limited(lambda request: "nonsense")(lambda: "hello"))
    assert get(app, "/view", "/view", "/view") == [200, 200, 429]


def test_the_default_applies_in_starlette_and_below_its_mounts():
    class View(HTTPEndpoint):
        async def get(self, request):
            return PlainTextResponse("hello")

        @limited(TWO)
        async def post(self, request):
            return PlainTextResponse("hello")

    async def raw(scope, receive, send):
        await PlainTextResponse("raw")(scope, receive, send)

    app = Starlette(routes=[Mount("/api", routes=[Path("/view", View)]), Mount("/raw", raw)])
    app.add_middleware(RateLimitMiddleware, default=ONE)
    assert get(app, "/api/view", "/api/view") == [200, 429]
    assert get(app, "/api/view", "/api/view", "/api/view", method="POST") == [200, 200, 429]
    assert get(app, "/raw/a", "/raw/b") == [200, 429]


def test_the_default_applies_around_an_application_with_a_root_path(app):
    add(app, "/view")
    client = TestClient(RateLimitMiddleware(app, default=ONE), root_path="/api")
    assert [client.get(path).status_code for path in ("/api/view", "/view")] == [200, 429]


def test_the_default_applies_to_websockets(app):
    app.add_middleware(RateLimitMiddleware, default=ONE)

    @app.websocket("/talk")
    async def talk(websocket: WebSocket):
        await websocket.accept()
        await websocket.close()

    client = TestClient(app)
    with client.websocket_connect("/talk"):
        pass
    with pytest.raises(WebSocketDenialResponse) as denied, client.websocket_connect("/talk"):
        pass
    assert denied.value.status_code == 429


# --- Mistakes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"default": "nonsense"}, "cannot read rule 'nonsense'"),
        ({"default": Route("*", ONE, key=3)}, "key must be a callable that takes the request, not 3"),
        ({"headers": "none"}, "headers must be Headers"),
        ({"store": "nowhere://"}, "store 'nowhere://' has an unknown scheme"),
        ({"default": Route("*", policy="api")}, "policy 'api' needs `policies`"),
        ({"cost": {"another": 2}}, "names an unknown rule 'another'"),
    ],
)
def test_options_that_do_not_fit_the_application_stop_the_server_when_it_starts(options, message, app):
    app.add_middleware(RateLimitMiddleware, **options)
    add(app, "/free")
    app.include_router(APIRouter(prefix="/router", dependencies=[Depends(RateLimit(ONE))]))
    own_limits(app)
    (told,) = start(app)
    assert told["type"] == "lifespan.startup.failed"
    assert message in told["message"]


def test_options_that_are_invalid_fail_each_request_if_the_server_starts_all_the_same(app):
    app.add_middleware(RateLimitMiddleware, headers="none")
    add(app, "/free")
    with pytest.raises(TypeError, match="headers must be Headers"):
        get(app, "/free")


@pytest.mark.parametrize("option", ["routes", "exempt", "settle"])
def test_an_option_of_the_middleware_is_refused_for_an_endpoint(option):
    with pytest.raises(TypeError, match=f"{option} is an option of RateLimitMiddleware"):
        RateLimit(ONE, **{option: []})


def test_an_invalid_limit_is_refused_where_it_is_declared():
    with pytest.raises(InvalidRule, match="cannot read rule"):
        limited("nonsense")
    with pytest.raises(TypeError, match="override_defaults must be True or False"):
        limited(ONE, override_defaults="no")
