"""The examples, each served by a real server."""

import asyncio
import json
import time

import httpx
import pytest
import redis
import websockets.asyncio.client
from websockets.exceptions import InvalidStatus

from tests import servers
from tests.integrations.processes import GUNICORN, STORES, UVICORN, Process

KNOWN = {"x-api-key": "example-key"}
ALSO_ON_SQLITE = pytest.mark.parametrize("store", [*STORES, "SQLite"], indirect=True)
LONGEST = 20  # seconds that a test may take once its server answers


@pytest.fixture(params=STORES)
def store(request, tmp_path):
    """The URL of an empty store: the examples count by address, and all tests have the same address."""
    if request.param != "Redis":
        yield "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/limits.db"
        return
    server = servers.RedisServer(servers.programs()[servers.newest()])
    yield server.url
    with redis.Redis.from_url(server.url) as client:
        assert client.dbsize() > 0
    server.stop()


def serve(*command, store):
    """Start the server of an example; several workers where a file lets them count together."""
    if store.startswith("sqlite:") and "runserver" not in command:
        command = (*command, "--workers", "2")
    server = Process(*command, RATEKEEPER_STORE=store)
    left = 60 - time.time() % 60
    if left < LONGEST:  # limits by the minute admit more at the end of a minute
        time.sleep(left)
    return server


def statuses(http, method, path, times, **options):
    return [http.request(method, path, **options).status_code for _ in range(times)]


@ALSO_ON_SQLITE
def test_the_flask_example_runs(store):
    with (
        serve("-m", *GUNICORN, "examples.flask_app:app", store=store) as server,
        httpx.Client(base_url=server.url, headers=KNOWN) as http,
    ):
        assert http.get("/search").headers["x-ratelimit-limit"] == "100"
        assert statuses(http, "POST", "/login", 6) == [200] * 5 + [429]
        assert http.post("/login").json()["error"] == "too many requests"
        assert statuses(http, "GET", "/export", 11) == [200] * 10 + [429]
        assert http.get("/export").headers["ratelimit-policy"] == '"rows";q=1000;w=86400'
        made_up = [http.get("/export", headers={"x-api-key": f"made up {number}"}) for number in range(11)]
        assert [answer.status_code for answer in made_up] == [200] * 10 + [429]  # the budget of the address


@pytest.mark.parametrize(
    "command",
    [
        ("-m", *GUNICORN, "examples.django_app:application"),
        ("-m", *UVICORN, "examples.django_app:asgi_application"),
        ("examples/django_app.py", "runserver", "--noreload", "{port}"),
    ],
    ids=["gunicorn", "uvicorn", "runserver"],
)
def test_the_django_example_runs(command, store):
    with (
        serve(*command, store=store) as server,
        httpx.Client(base_url=server.url, headers=KNOWN) as http,
    ):
        assert http.get("/search").headers["x-ratelimit-limit"] == "100"
        assert statuses(http, "GET", "/login", 6) == [200] * 5 + [429]
        assert statuses(http, "GET", "/report", 3) == [200, 200, 429]
        assert statuses(http, "GET", "/export/users", 11) == [200] * 10 + [429]
        made_up = [http.get("/export/users", headers={"x-api-key": f"made up {number}"}) for number in range(11)]
        assert [answer.status_code for answer in made_up] == [200] * 10 + [429]  # the budget of the address


@ALSO_ON_SQLITE
def test_the_fastapi_example_runs(store):
    with (
        serve("-m", *UVICORN, "examples.fastapi_app:app", store=store) as server,
        httpx.Client(base_url=server.url) as http,
    ):
        assert http.get("/").headers["ratelimit-policy"].startswith('"all";q=100')  # though nothing is there
        assert statuses(http, "GET", "/search", 11) == [200] * 10 + [429]
        denied = http.get("/search").json()
        assert (denied["status"], denied["violated-policies"]) == (429, ["search"])
        assert statuses(http, "GET", "/report", 3) == [200, 200, 429]
        assert statuses(http, "GET", "/admin/users", 3) + statuses(http, "GET", "/admin/groups", 3) == [200] * 5 + [429]
        spends = statuses(http, "POST", "/complete", 4, params={"prompt": "x" * 200})
        assert spends == [200] * 4  # four estimates would not fit, but four real costs do
        assert statuses(http, "POST", "/complete", 1, params={"prompt": "x" * 200}) == [429]
        paths = http.get("/openapi.json").json()["paths"]
        limited = {
            path for path, methods in paths.items() if any("429" in each["responses"] for each in methods.values())
        }
        assert limited == {"/search", "/report", "/complete", "/admin/users", "/admin/groups"}
        assert 429 in statuses(http, "GET", "/", 100)
        assert statuses(http, "GET", "/healthz", 2) == [200, 200]


def test_the_example_with_server_sent_events_runs(store):
    with (
        serve("-m", *UVICORN, "examples.starlette_sse:app", store=store) as server,
        httpx.Client(base_url=server.url) as http,
    ):
        with http.stream("GET", "/events") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert answer.headers["x-ratelimit-remaining"] == "4"
            lines = (line for line in answer.iter_lines() if line.startswith("data"))
            assert next(lines) == "data: 0 so far"
            for _ in range(4):
                with http.stream("GET", "/events") as another:
                    assert another.status_code == 200
            denied = http.get("/events")
            assert (denied.status_code, denied.json()["violated-policies"]) == (429, ["streams"])
            assert int(denied.headers["retry-after"]) > 0
            assert [next(lines) for _ in range(5)] == [f"data: {number} so far" for number in range(1, 6)]
        assert http.get("/").headers["x-ratelimit-limit"] == "100"  # which counts for itself


def test_the_websocket_example_runs(store):
    async def ask(talk, text):
        await talk.send(text)
        return json.loads(await talk.recv())

    async def connect_often(url):
        for _ in range(4):
            async with websockets.asyncio.client.connect(url):
                pass

    async def main(server):
        url = f"ws://127.0.0.1:{server.port}/talk"
        async with websockets.asyncio.client.connect(url) as talk:
            assert talk.response.headers["x-ratelimit-remaining"] == "4"
            answers = [await ask(talk, str(number)) for number in range(10)]
            assert answers == [{"echo": str(number)} for number in range(10)]
            async with websockets.asyncio.client.connect(url) as another:  # of the same client
                while "echo" in (told := await ask(another, "more")):
                    pass
                assert (told["error"], told["not_done"]) == ("slow down", "more")
                assert 0 < told["retry_after"] <= 1
                await asyncio.sleep(told["retry_after"])
                assert await ask(another, "again") == {"echo": "again"}
        with pytest.raises(InvalidStatus) as denied:
            await connect_often(url)
        assert denied.value.response.status_code == 429
        assert int(denied.value.response.headers["retry-after"]) > 0

    with serve("-m", *UVICORN, "examples.websocket_app:app", store=store) as server:
        asyncio.run(main(server))
