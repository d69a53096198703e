"""FastAPI and Starlette: limits on routes, routers and applications, through a real server."""

import asyncio
import time

import httpx
import pytest
import websockets.asyncio.client
from fastapi import Depends, FastAPI
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse
from starlette.routing import Route as Path
from websockets.exceptions import InvalidStatus

from ratekeeper import FixedWindow, InvalidRule, RateLimited
from ratekeeper.http import by_header, by_path, by_user
from ratekeeper.integrations import starlette
from ratekeeper.integrations.fastapi import RESPONSES, Connection, RateLimit, RateLimitMiddleware, limited
from tests import servers
from tests.integrations import fastapi_app
from tests.integrations.processes import STORES, UVICORN, Process

ONE = FixedWindow(1, "400 days")


@pytest.fixture(scope="module", params=STORES)
def server(request):
    with Process("-m", *UVICORN, "tests.integrations.fastapi_app:app", store=request.param) as server:
        yield server


@pytest.fixture
def http(server, client):
    with httpx.Client(base_url=server.url, headers=client) as http:
        yield http


@pytest.mark.parametrize("path", ["/dependency", "/sync", "/async/1", "/response", "/stream"])
def test_the_third_of_two_is_denied(http, path):
    answers = [http.get(path) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [answer.headers.get_list("x-ratelimit-remaining") for answer in answers] == [["1"], ["0"], ["0"]]
    assert answers[2].headers["content-type"] == "application/problem+json"
    assert answers[2].json()["status"] == 429
    assert int(answers[2].headers["retry-after"]) > 0


def test_a_view_gets_its_arguments_and_needs_no_request(http):
    assert http.get("/dependency?number=7").json() == {"number": 7}
    assert http.get("/sync?number=7").json() == {"number": 7}
    assert http.get("/async/7").json() == {"number": 7}


def test_what_is_not_valid_is_still_told(http):
    assert http.get("/async/seven").status_code == 422


def test_a_view_may_have_two_limits(http):
    assert [http.get("/twice").status_code for _ in range(2)] == [200, 429]


def test_a_limit_with_a_name_counts_for_a_whole_router(http):
    assert [http.get(path).status_code for path in ("/router/a", "/router/b", "/router/a")] == [200, 200, 429]


def test_a_limit_without_a_name_counts_for_each_route(http):
    paths = ["/each/a", "/each/a", "/each/b", "/each/b"]
    assert [http.get(path).status_code for path in paths] == [200, 429, 200, 429]


def test_a_view_may_correct_its_cost(http):
    answers = [http.post("/complete", params={"real": real}) for real in (5, 0, 3)]
    assert [answer.headers["x-ratelimit-remaining"] for answer in answers] == ["7", "2", "2"]


def test_the_body_of_a_denial_follows_accept(http):
    http.get("/each/a")
    assert http.get("/each/a", headers={"accept": "text/html"}).headers["content-type"] == "text/html; charset=utf-8"


def test_a_handler_of_the_application_comes_first(http):
    assert [http.get("/own/").json() for _ in range(2)] == ["here", {"sorry": 1}]


def test_the_tighter_limit_speaks_and_no_header_is_said_twice(http):
    answers = [http.get("/both/") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [answer.headers.get_list("x-ratelimit-limit") for answer in answers] == [["2"], ["2"], ["2"]]


def test_a_shaped_request_is_held(http):
    started = time.monotonic()
    assert [http.get("/shaped").status_code for _ in range(3)] == [200, 200, 200]
    assert time.monotonic() - started >= 0.039  # two departures behind the first, at 50 a second


def test_a_websocket_is_denied_before_it_is_accepted(server, client):
    async def hear():
        url = f"ws://127.0.0.1:{server.port}/talk"
        async with websockets.asyncio.client.connect(url, additional_headers=client) as talk:
            return await talk.recv()

    assert asyncio.run(hear()) == "hi"
    with pytest.raises(InvalidStatus) as denied:
        asyncio.run(hear())
    assert denied.value.response.status_code == 429


def test_openapi_shows_the_denial_of_every_limited_route(http):
    operations = [
        (path, "429" in operation["responses"])
        for path, methods in http.get("/openapi.json").json()["paths"].items()
        for operation in methods.values()
    ]
    assert sorted(path for path, shown in operations if not shown) == ["/healthz"]
    assert len(operations) > 10


def test_openapi_shows_the_headers_and_the_body(http):
    schema = http.get("/openapi.json").json()
    shown = schema["paths"]["/dependency"]["get"]["responses"]["429"]
    assert shown == RESPONSES[429]
    assert set(shown["headers"]) == {
        *("Retry-After", "RateLimit-Policy", "RateLimit"),
        *("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"),
    }
    assert list(shown["content"]) == ["application/problem+json"]


def test_openapi_shows_no_parameter_of_ours(http):
    parameters = http.get("/openapi.json").json()["paths"]["/sync"]["get"]["parameters"]
    assert [parameter["name"] for parameter in parameters] == ["number"]


# --- Starlette, and what needs no server


def get(app, path, **headers):
    async def main():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            return await http.get(path, headers=headers)

    return asyncio.run(main())


def test_starlette_endpoints_of_all_kinds_are_limited():
    @starlette.limited(ONE)
    async def view(request):
        return PlainTextResponse(request.url.path)

    @starlette.limited(ONE)
    def sync_view(request):
        return PlainTextResponse(request.url.path)

    class Endpoint(HTTPEndpoint):
        @starlette.limited(ONE)
        async def get(self, request):
            return PlainTextResponse(request.url.path)

    app = Starlette(routes=[Path("/a", view), Path("/b", sync_view), Path("/c", Endpoint)])
    for path in ("/a", "/b", "/c"):
        first, second = get(app, path), get(app, path)
        assert (first.status_code, first.text, first.headers["x-ratelimit-remaining"]) == (200, path, "0")
        assert (second.status_code, second.json()["status"]) == (429, 429)


def test_a_key_function_sees_what_starlette_knows():
    seen = []

    def key(connection):
        seen.append(
            (connection.method, connection.path, connection.peer, connection.path_params["number"], connection.raw)
        )
        return connection.headers["x-tenant"]

    @starlette.limited(ONE, key=key)
    async def view(request):
        return PlainTextResponse("ok")

    app = Starlette(routes=[Path("/a/{number}", view)])
    assert [get(app, "/a/7", **{"x-tenant": tenant}).status_code for tenant in "aba"] == [200, 200, 429]
    assert seen[0][:4] == ("GET", "/a/7", "127.0.0.1", "7")
    assert seen[0][4]["type"] == "http"


async def session(connection):
    return connection.headers["x-session"]


@pytest.mark.parametrize(
    "key",
    [
        by_header("x-session"),
        session,
        lambda each: ("s", each.headers["x-session"]),
        lambda each: {"one": each.header("x-session")[0]},
    ],
)
def test_any_key_function_will_do(key):
    @starlette.limited({"one": ONE}, key=key)
    async def view(request):
        return PlainTextResponse("ok")

    app = Starlette(routes=[Path("/", view)])
    assert [get(app, "/", **{"x-session": name}).status_code for name in "aba"] == [200, 200, 429]


def test_a_request_without_a_key_shares_one():
    @starlette.limited(ONE, key=by_user())
    async def view(request):
        return PlainTextResponse("ok")

    app = Starlette(routes=[Path("/", view)])
    assert [get(app, "/").status_code for _ in range(2)] == [200, 429]


def test_an_endpoint_may_be_free():
    @starlette.limited(lambda connection: None)
    async def view(request):
        return PlainTextResponse("ok")

    answer = get(Starlette(routes=[Path("/", view)]), "/")
    assert (answer.status_code, "ratelimit" in answer.headers) == (200, False)


def a_connection(kind="http", **given):
    return HTTPConnection({"type": kind, "method": "GET", "path": "/", "headers": [], "client": None, **given})


def test_a_denial_can_be_caught_as_rate_limited():
    limit = RateLimit(ONE)
    asyncio.run(limit.admit(a_connection()))
    with pytest.raises(RateLimited) as denied:
        asyncio.run(limit.admit(a_connection()))
    assert (denied.value.decision.limit, denied.value.status_code) == (1, 429)
    assert "Retry-After" in denied.value.headers


def test_a_websocket_is_closed_where_it_cannot_be_answered():
    limit = RateLimit(ONE)
    asyncio.run(limit.admit(a_connection("websocket")))
    with pytest.raises(starlette.WebSocketException) as denied:
        asyncio.run(limit.admit(a_connection("websocket")))
    assert denied.value.code == 1008


def test_correcting_what_was_not_limited_does_nothing():
    limit = RateLimit(lambda connection: None)
    assert asyncio.run(limit.admit(a_connection())) is None
    asyncio.run(limit.correct(None, 5))


def test_a_connection_knows_its_user():
    assert Connection({"type": "websocket", "headers": [], "user": "ada"}).user_id == "ada"


def test_a_generator_is_refused():
    async def view():
        yield 1

    with pytest.raises(TypeError, match=r"is a generator; use the dependency Depends\(RateLimit\(...\)\) instead"):
        limited("1/s")(view)


@pytest.mark.parametrize("option", ["routes", "exempt", "settle"])
def test_an_option_of_the_middleware_is_refused(option):
    with pytest.raises(TypeError, match=f"{option} is an option of RateLimitMiddleware"):
        RateLimit("1/s", **{option: None})


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"limit": "many"}, InvalidRule, "cannot read rule 'many'"),
        ({"limit": "1/s", "key": "user"}, TypeError, "key must be a callable that takes the request, not 'user'"),
        ({"limit": "1/s", "cost": 0}, InvalidRule, "cost must be an int of at least 1, not 0"),
    ],
)
def test_what_cannot_work_is_refused_at_once(options, error, message):
    with pytest.raises(error, match=message):
        RateLimit(**options)


def test_limits_by_path_can_be_combined():
    limit = RateLimit(ONE, name="paths", key=by_path())
    asyncio.run(limit.admit(a_connection(path="/a")))
    asyncio.run(limit.admit(a_connection(path="/b")))
    with pytest.raises(RateLimited):
        asyncio.run(limit.admit(a_connection(path="/a")))


# --- the same application in this process


def test_a_dependency_admits_and_denies_in_process(client):
    answers = [get(fastapi_app.app, "/dependency", **client) for _ in range(3)]
    assert [(answer.status_code, answer.headers["x-ratelimit-remaining"]) for answer in answers] == [
        (200, "1"),
        (200, "0"),
        (429, "0"),
    ]


def test_a_schema_is_made_in_process():
    paths = fastapi_app.app.openapi()["paths"]
    assert "429" in paths["/router/a"]["get"]["responses"]
    assert "429" not in paths["/healthz"]["get"]["responses"]
    assert fastapi_app.app.openapi()["paths"] is paths


def test_a_cost_is_corrected_and_a_request_is_held_in_process():
    async def main():
        limit = RateLimit({"tokens": FixedWindow(10, "400 days")}, cost=3)
        await limit.correct(await limit.admit(a_connection()), 5)
        shaped = RateLimit("leaky-bucket 5/s burst 5 shaping")
        await shaped.admit(a_connection())
        held = await shaped.admit(a_connection())
        return (await limit.admit(a_connection())).decision.remaining, held.decision.delay > 0

    assert asyncio.run(main()) == (2, True)


def test_a_limited_endpoint_needs_a_framework():
    @limited(ONE)
    async def view():
        return "ok"

    with pytest.raises(TypeError, match="a limited endpoint was called without a request"):
        asyncio.run(view())


def test_a_middleware_that_cannot_be_made_fails_the_start_and_else_each_request():
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, limit="nonsense")
    with pytest.raises(InvalidRule):
        RateLimitMiddleware(app, "nonsense")
    sent = []

    async def receive():
        return {"type": "lifespan.startup"}

    async def send(message):
        sent.append(message)

    with pytest.raises(InvalidRule):  # for test clients; servers go by the message
        asyncio.run(app({"type": "lifespan"}, receive, send))
    (failure,) = sent
    assert failure["type"] == "lifespan.startup.failed"
    assert failure["message"].startswith("InvalidRule: route '*': cannot read rule 'nonsense'")
    transport = httpx.ASGITransport(app)
    lengths = []
    for _ in range(3):
        with pytest.raises(InvalidRule) as failed:
            asyncio.run(httpx.AsyncClient(transport=transport, base_url="http://x").get("/"))
        lengths.append(len(failed.traceback))
    assert len(set(lengths)) == 1


def test_an_endpoint_that_takes_anything_is_limited():
    @limited(ONE)
    async def view(request, **rest):
        return PlainTextResponse("ok")

    app = Starlette(routes=[Path("/", view)])
    assert [get(app, "/").status_code for _ in range(2)] == [200, 429]


@pytest.mark.parametrize(
    ("on_error", "expected"), [("local", [200, 429]), ("open", [200, 200]), ("closed", [429, 429])]
)
def test_while_the_store_is_away_on_error_decides(on_error, expected):
    options = {"store": f"redis://127.0.0.1:{servers.free_port()}", "on_error": on_error}
    app = FastAPI()

    @app.get("/dependency", dependencies=[Depends(RateLimit(ONE, **options))])
    def dependency():
        return "hello"

    @app.get("/decorated")
    @limited(ONE, **options)
    def decorated():
        return "hello"

    for path in ("/dependency", "/decorated"):
        assert [get(app, path).status_code for _ in range(2)] == expected
