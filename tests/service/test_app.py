"""What the routes share: limiters, counters, the router."""

import asyncio
import gc
import json
import tracemalloc

import msgspec
import pytest

from ratekeeper import FixedWindow, InvalidRule, Limiter
from ratekeeper.service import bodies
from ratekeeper.service.app import create_app
from ratekeeper.service.shared import MAX_LIMITERS, Service
from ratekeeper.service.web import Problem, Response, Router, ServiceRequest, decode
from ratekeeper.stores import MemoryStore
from tests import inside, servers
from tests.service.serving import InProcess

ADMITTED = Limiter("1/s").hit("k")
DENIED = Limiter("1/s").hit("k", 2)


def request(method, path):
    return ServiceRequest(method, path, b"a=1&b=&a=2", {}, (), None, None)


async def handler(_):
    return Response(200)


def read(content, service):
    """Return the limiter that a body names."""
    return bodies.read(decode(bodies.DECODER, content), service)[0]


# Limiters


def test_as_many_rules_given_by_fields_are_kept_as_there_is_room_for():
    service = Service(MemoryStore())

    def limiter(limit):
        body = {"key": "k", "algorithm": "fixed-window", "limit": limit, "window": 60}
        return read(json.dumps(body).encode(), service).limiter

    limiters = [limiter(limit + 1) for limit in range(MAX_LIMITERS)]
    assert [limiter(limit + 1) for limit in range(MAX_LIMITERS)] == limiters


def test_a_limiter_is_made_once_for_the_same_rules():
    service = Service(MemoryStore())
    assert service.limiter("1/s") is service.limiter("1/s")
    assert service.limiter({"a": "1/s"}) is service.limiter({"a": "1/s"})
    assert service.limiter("1/s") is not service.limiter("1/s", prefix="other")


def test_limiters_share_the_store_and_so_the_usage():
    service = Service(MemoryStore())
    asyncio.run(service.limiter("fixed-window 5/day").hit("k", 2))
    assert asyncio.run(service.limiter(FixedWindow(5, "1d")).peek("k")).remaining == 3


def test_the_prefix_keeps_usage_apart():
    service = Service(MemoryStore())
    asyncio.run(service.limiter("fixed-window 5/day").hit("k", 2))
    assert asyncio.run(service.limiter("fixed-window 5/day", prefix="other").peek("k")).remaining == 5


def test_made_up_rules_do_not_pile_up():
    service = Service(MemoryStore())
    first = service.limiter("1/s")
    for limit in range(2, 3 * MAX_LIMITERS):
        service.limiter(f"{limit}/s")
    gc.collect()
    for limit in range(1000):
        service.limiter(f"{limit + 1}/minute")
    assert service.limiter("1/s") is not first
    assert len(inside.limiters(service)) == MAX_LIMITERS
    assert len(inside.tables(service.store)) <= 3 * MAX_LIMITERS


LONG_NAMES = [f"{number:02}" + "\N{CRAB}" * 98 for number in range(32)]


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        ([{"key": "k", "rule": f"{limit}/s"} for limit in range(1, 1_501)], 1_000),
        (
            [
                {"key": "k", "algorithm": "fixed-window", "limit": 5, "window": f"{s}s" + " " * 190}
                for s in range(1, 1_501)
            ],
            1_000,
        ),
        (
            [
                {"key": "k", "rules": {name: f"{limit}/{n + 1}s" for n, name in enumerate(LONG_NAMES)}}
                for limit in range(1, 101)
            ],
            62,
        ),
    ],
    ids=["as texts", "as fields", "32 at a time, with long names"],
)
def test_made_up_rules_take_a_bounded_number_of_bytes(asked, kept):
    service = Service(MemoryStore())
    contents = [json.dumps(body).encode() for body in asked]
    read(contents[0], service)
    gc.collect()
    tracemalloc.start()
    try:
        for content in contents:
            read(content, service)
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(inside.limiters(service)) == kept
    assert taken < 12 * 2**20


def test_a_store_can_be_given_as_a_url_or_an_object():
    store = MemoryStore()
    assert create_app(store).service.store is store
    assert isinstance(create_app("memory://").service.store, MemoryStore)
    with pytest.raises(InvalidRule):
        create_app("mysql://")


@pytest.mark.parametrize("store", ["memory", "Redis"])
def test_the_application_hears_from_an_asgi_server_when_to_begin_and_end(store):
    app = create_app("memory://" if store == "memory" else servers.shared(servers.newest()).url)
    messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
    said = []

    async def receive():
        return next(messages)

    async def send(message):
        said.append(message["type"])

    async def live():
        await app.service.limiter("1/s").hit("k")
        await app({"type": "lifespan"}, receive, send)

    asyncio.run(live())
    assert said == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_a_client_that_leaves_in_the_middle_of_its_body_consumes_nothing():
    messages = iter(
        [{"type": "http.request", "body": b'{"key": "k", ', "more_body": True}, {"type": "http.disconnect"}]
    )
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", b"40")]
    scope = {"type": "http", "method": "POST", "path": "/v1/hit", "query_string": b"", "headers": headers}
    app = create_app(playground=False)
    said = []

    async def receive():
        return next(messages)

    async def send(message):
        said.append(message)

    asyncio.run(app(scope, receive, send))
    assert (said[0]["status"], app.service.store.size) == (400, 0)


# Routes


def test_a_path_may_have_parts_that_vary():
    router = Router()
    router.add("POST", "/api/{algorithm}/burst", handler)
    asked = request("POST", "/api/fixed.window/burst")
    assert router.find(asked).handler is handler
    assert asked.params == {"algorithm": "fixed.window"}
    for path in ("/api//burst", "/api/a/b/burst", "/api/a/burst/", "/api/a/burst\n"):
        with pytest.raises(Problem, match="not found"):
            router.find(request("POST", path))


def test_a_later_route_takes_the_place_of_an_earlier_one():
    async def other(_):
        return Response(204)

    router = Router()
    router.add("GET", "/", handler)
    router.add("GET", "/", other)
    assert router.find(request("GET", "/")).handler is other


def test_of_a_parameter_that_comes_twice_the_last_counts():
    assert request("GET", "/").query == {"a": "2", "b": ""}


def test_a_failure_of_ours_is_a_problem_that_gives_nothing_away(caplog):
    async def fail(_):
        raise RuntimeError("secret")

    service = InProcess(playground=False)
    service.app.router.add("GET", "/fail/{name}", fail)
    answer = service.ask("GET", "/fail/ada%0ainjected")
    assert (answer.status_code, answer.headers["content-type"]) == (500, "application/problem+json")
    assert "secret" not in answer.text
    assert "secret" in caplog.text
    assert [record.getMessage() for record in caplog.records if record.name == "ratekeeper"] == ["a request failed"]
    assert "injected" not in caplog.text


def test_a_route_reads_plain_data_or_a_type_and_an_empty_body_is_none():
    decoder = msgspec.json.Decoder(dict[str, int])

    async def echo(asked):
        return Response(200, repr(await asked.json()).encode())

    async def echo_typed(asked):
        return Response(200, repr(await asked.decoded(decoder)).encode())

    service = InProcess(playground=False)
    service.app.router.add("POST", "/echo", echo)
    service.app.router.add("POST", "/echo/typed", echo_typed)

    def answer(path, content):
        answered = service.ask("POST", path, content=content, headers={"content-type": "application/json"})
        return answered.status_code, answered.text

    assert [answer("/echo", content) for content in (b"", b"[1]")] == [(200, "None"), (200, "[1]")]
    assert answer("/echo/typed", b'{"a": 1}') == (200, "{'a': 1}")
    assert answer("/echo/typed", b"[1]")[0] == 400
