"""The ASGI middleware through real servers, over sockets, in memory and on Redis."""

import asyncio
import itertools
import socket
import time

import httpx
import pytest
import websockets.asyncio.client
from websockets.exceptions import InvalidStatus

from tests.integrations.behaviour import OnAServer, assert_told_once, eventually, seen


class TestOnAServer(OnAServer):
    """What every integration does."""


def test_server_sent_events_come_through(server, client):
    with httpx.stream("GET", f"{server.url}/events", headers=client) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert lines == [f"data: {number}" for number in range(5)]
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert_told_once(answer, 2)


def test_who_leaves_in_the_middle_of_a_stream_has_been_counted_once(server, client):
    with httpx.stream("GET", f"{server.url}/long", headers=client) as answer:
        assert_told_once(answer, 2)
        chunks = answer.iter_raw()
        assert [next(chunks)[:1] for _ in range(3)] == [b"x"] * 3
        assert seen(server, f"ended {client['x-client']}") == 0
    assert eventually(
        lambda: seen(server, f"ended {client['x-client']}"), 1
    )  # nothing is sent to a client that has gone
    other = {"x-client": client["x-client"] + " other"}
    assert_told_once(httpx.get(server.url, headers=other), 2)
    answers = [httpx.get(server.url, headers=client) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert_told_once(answers[0], 1)


def test_many_who_leave_in_the_middle_of_a_stream_leave_the_server_well(server, client):
    async def leave(http, number):
        async with http.stream("GET", "/long", headers={"x-client": f"{client['x-client']}.{number % 5}"}) as answer:
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
        assert eventually(lambda own=own: seen(server, f"ended {own['x-client']}"), 3)
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


def test_background_work_is_done(server, client):
    assert httpx.get(f"{server.url}/background", headers=client).text == "accepted"
    assert eventually(lambda: seen(server, f"background {client['x-client']}"), 1)


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
