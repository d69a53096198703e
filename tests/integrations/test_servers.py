"""The ASGI middleware through real servers, over sockets, in memory and on Redis."""

import asyncio
import itertools
import socket
import time

import http_sf
import httpx
import pytest
import websockets.asyncio.client
from websockets.exceptions import InvalidStatus

NAMES = {"x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "ratelimit", "ratelimit-policy"}


def told(response):
    """The rate limit headers, with every line that each came in."""
    return {
        name: response.headers.get_list(name) for name in response.headers if "rate" in name or name == "retry-after"
    }


def assert_told_once(response, remaining):
    lines = told(response)
    assert set(lines) == NAMES
    assert {len(values) for values in lines.values()} == {1}
    assert http_sf.parse(lines["ratelimit"][0].encode(), tltype="list")[0][1]["r"] == remaining


def test_the_fourth_of_three_is_denied(server, client):
    with httpx.Client(base_url=server.url, headers=client) as http:
        answers = [http.get("/") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert_told_once(answers[0], 2)
    assert answers[3].headers["content-type"] == "application/problem+json"
    assert answers[3].json()["violated-policies"] == ["three"]
    assert int(answers[3].headers["retry-after"]) > 0


def test_clients_do_not_share(server, client):
    for number in range(3):
        headers = {"x-client": f"{client['x-client']}.{number}"}
        assert httpx.get(server.url, headers=headers).headers["x-ratelimit-remaining"] == "2"


def test_a_health_route_is_exempt(server, client):
    answers = [httpx.get(f"{server.url}/healthz", headers=client) for _ in range(5)]
    assert {answer.status_code for answer in answers} == {200}
    assert told(answers[0]) == {}


def test_a_stream_of_100_chunks_has_its_headers_once(server, client):
    with httpx.stream("GET", f"{server.url}/stream", headers=client) as answer:
        lines = list(answer.iter_lines())
    assert lines == [str(number) for number in range(100)]
    assert_told_once(answer, 2)


def test_server_sent_events_come_through(server, client):
    with httpx.stream("GET", f"{server.url}/events", headers=client) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert lines == [f"data: {number}" for number in range(5)]
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert_told_once(answer, 2)


def test_who_leaves_in_the_middle_of_a_stream_has_been_counted_once(server, client):
    with httpx.stream("GET", f"{server.url}/endless", headers=client) as answer:
        assert_told_once(answer, 2)
        chunks = answer.iter_raw()
        assert [next(chunks)[:1] for _ in range(3)] == [b"x"] * 3
        assert seen(server, f"left {client['x-client']}") == 0
    assert eventually(lambda: seen(server, f"left {client['x-client']}"), 1)  # nothing is sent to nobody
    other = {"x-client": client["x-client"] + " other"}
    assert_told_once(httpx.get(server.url, headers=other), 2)
    answers = [httpx.get(server.url, headers=client) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert_told_once(answers[0], 1)


def test_many_who_leave_in_the_middle_of_a_stream_leave_the_server_well(server, client):
    async def leave(http, number):
        async with http.stream("GET", "/endless", headers={"x-client": f"{client['x-client']}.{number % 5}"}) as answer:
            if answer.status_code == 200:
                await anext(answer.aiter_raw())
            return answer.status_code

    async def main():
        async with httpx.AsyncClient(base_url=server.url) as http:
            return await asyncio.gather(*(leave(http, number) for number in range(20)))

    statuses = asyncio.run(main())
    assert (statuses.count(200), statuses.count(429)) == (15, 5)
    for number in range(5):
        own = {"x-client": f"{client['x-client']}.{number}"}
        assert eventually(lambda own=own: seen(server, f"left {own['x-client']}"), 3)
        assert httpx.get(server.url, headers=own).status_code == 429
    assert httpx.get(server.url, headers=client).headers["x-ratelimit-remaining"] == "2"


def test_a_cost_is_settled_when_the_client_leaves_in_the_middle_of_a_stream(server, client):
    with httpx.stream("GET", f"{server.url}/quiet", headers=client) as answer:
        assert answer.headers["x-ratelimit-remaining"] == "900"
        assert len(next(answer.iter_raw())) == 290

    asked = itertools.count(1)

    def left():
        answer = httpx.get(f"{server.url}/quiet/one", headers=client)
        return int(answer.headers["x-ratelimit-remaining"]) + next(asked)  # each of these costs one

    assert left() in (900, 710)
    assert eventually(left, 710)


def test_head_has_the_headers_and_no_body(server, client):
    answer = httpx.head(server.url, headers=client)
    assert (answer.status_code, answer.content) == (200, b"")
    assert_told_once(answer, 2)


def test_head_is_denied_without_a_body(server, client):
    with httpx.Client(base_url=server.url, headers=client) as http:
        answers = [http.head("/") for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
    assert answers[3].content == b""


def test_not_modified_has_the_headers(server, client):
    answer = httpx.get(f"{server.url}/not-modified", headers=client)
    assert (answer.status_code, answer.content) == (304, b"")
    assert_told_once(answer, 2)


def test_a_view_that_fails_has_been_counted(server, client):
    assert [httpx.get(f"{server.url}/fails", headers=client).status_code for _ in range(4)] == [500, 500, 500, 429]


def test_background_work_is_done(server, client):
    assert httpx.get(f"{server.url}/background", headers=client).text == "accepted"
    assert eventually(lambda: seen(server, f"background {client['x-client']}"), 1)


def test_a_body_comes_through(server, client):
    body = b"x" * 300_000
    assert httpx.post(f"{server.url}/echo", headers=client, content=body).content == body


def test_an_async_function_chooses_the_rules(server, client):
    with httpx.Client(base_url=server.url, headers=client) as http:
        assert [http.get("/plan", headers={"x-plan": "free"}).status_code for _ in range(2)] == [200, 429]
        assert [http.get("/plan", headers={"x-plan": "house"}).status_code for _ in range(2)] == [200, 200]


def test_a_cost_is_settled_by_the_size_of_the_answer(server, client):
    with httpx.Client(base_url=server.url, headers=client) as http:
        answer = http.get("/sized")
        assert (len(answer.content), answer.headers["x-ratelimit-remaining"]) == (290, "900")
        assert eventually(lambda: seen(server, f"background {client['x-client']}"), 1)
        assert http.get("/sized").headers["x-ratelimit-remaining"] == "610"


def test_concurrent_keep_alive_requests_are_counted_exactly(server, client):
    async def main():
        async with httpx.AsyncClient(base_url=server.url, headers=client) as http:
            answers = await asyncio.gather(*(http.get("/concurrent") for _ in range(80)))
        return [answer.status_code for answer in answers]

    statuses = asyncio.run(main())
    assert (statuses.count(404), statuses.count(429)) == (50, 30)  # nothing is there, but it is limited


def test_a_shaped_request_is_held_and_its_body_is_kept(server, client):
    body = b"y" * 200_000

    async def main():
        async with httpx.AsyncClient(base_url=server.url, headers=client) as http:
            started = time.monotonic()
            answers = await asyncio.gather(*(http.post("/shaped", content=body) for _ in range(5)))
        return answers, time.monotonic() - started

    answers, took = asyncio.run(main())
    assert [answer.content == body for answer in answers] == [True] * 5
    assert took >= 0.08  # four departures at 50 a second


def test_who_leaves_while_held_is_not_served(server, client):
    assert httpx.post(f"{server.url}/held", headers=client).status_code == 200
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        lines = ["POST /held HTTP/1.1", "host: x", f"x-client: {client['x-client']}", "content-length: 0", "", ""]
        connection.sendall("\r\n".join(lines).encode())
        time.sleep(0.2)
    assert httpx.post(f"{server.url}/held", headers=client).status_code == 200  # departs after the one that left
    assert seen(server, client["x-client"]) == 2


def test_who_is_held_does_not_delay_others(server, client):
    async def main():
        async with httpx.AsyncClient(base_url=server.url, headers=client) as http:
            await http.post("/held")
            held = asyncio.create_task(http.post("/held"))
            await asyncio.sleep(0.05)
            other = await http.post("/held", headers={"x-client": client["x-client"] + " other"})
            was_held = not held.done()
            return other.status_code, was_held, (await held).status_code

    assert asyncio.run(main()) == (200, True, 200)


def test_a_websocket_is_admitted_with_headers(server, client):
    async def main():
        async with websockets.asyncio.client.connect(ws(server), additional_headers=client) as talk:
            await talk.send("hi")
            return await talk.recv(), talk.response.headers.get("x-ratelimit-remaining")

    # granian drops the headers that an application sends with its acceptance
    assert asyncio.run(main()) == ("HI", None if server.name == "granian" else "2")


def test_a_websocket_is_denied_before_it_is_accepted(server, client):
    async def connect():
        async with websockets.asyncio.client.connect(ws(server), additional_headers=client):
            pass

    for _ in range(3):
        asyncio.run(connect())
    with pytest.raises(InvalidStatus) as denied:
        asyncio.run(connect())
    assert denied.value.response.status_code == 429
    assert int(denied.value.response.headers["retry-after"]) > 0


def ws(server):
    return f"ws://127.0.0.1:{server.port}/talk"


def seen(server, client):
    return int(httpx.get(f"{server.url}/seen", params={"client": client}).text)


def eventually(get, expected):
    """Whether `get` gives what is expected, at the latest after a while."""
    for _ in range(200):
        if get() == expected:
            return True
        time.sleep(0.02)
    return False
