"""What every integration does through a real server, over sockets; the applications have the same routes.

Every client, by its header x-client, has limits of its own: "three" for what has no limit of its own.
"""

from __future__ import annotations

import socket
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import http_sf
import httpx
import pytest

NAMES = {"x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "ratelimit", "ratelimit-policy"}


def told(response):
    """The rate limit headers, with all lines of each."""
    return {
        name: response.headers.get_list(name) for name in response.headers if "rate" in name or name == "retry-after"
    }


def assert_told_once(response, remaining):
    lines = told(response)
    assert set(lines) == NAMES
    assert {len(values) for values in lines.values()} == {1}
    assert http_sf.parse(lines["ratelimit"][0].encode(), tltype="list")[0][1]["r"] == remaining


def eventually(get, expected):
    """Whether `get` returns the expected value, perhaps after a while."""
    for _ in range(500):
        if get() == expected:
            return True
        time.sleep(0.02)
    return False


def seen(server, what):
    return int(httpx.get(f"{server.url}/seen", params={"client": what}).text)


class OnAServer:
    """The tests; a module that has a fixture `server` inherits them."""

    @pytest.fixture
    def http(self, server):
        """A client that no other test has been."""
        with httpx.Client(base_url=server.url, headers={"x-client": str(uuid.uuid4())}) as client:
            yield client

    def test_the_fourth_of_three_is_denied(self, http):
        answers = [http.get("/") for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
        assert_told_once(answers[0], 2)
        assert answers[3].headers["content-type"] == "application/problem+json"
        assert answers[3].json()["violated-policies"] == ["three"]
        assert int(answers[3].headers["retry-after"]) > 0

    def test_clients_do_not_share(self, http):
        for number in range(3):
            headers = {"x-client": f"{http.headers['x-client']}.{number}"}
            assert http.get("/", headers=headers).headers["x-ratelimit-remaining"] == "2"

    def test_a_health_route_is_exempt(self, http):
        answers = [http.get("/healthz") for _ in range(5)]
        assert {answer.status_code for answer in answers} == {200}
        assert told(answers[0]) == {}

    def test_a_stream_of_100_chunks_has_its_headers_once(self, http):
        with http.stream("GET", "/stream") as answer:
            lines = list(answer.iter_lines())
        assert lines == [str(number) for number in range(100)]
        assert_told_once(answer, 2)

    def test_head_has_the_headers_and_no_body(self, http):
        answer = http.head("/")
        assert (answer.status_code, answer.content) == (200, b"")
        assert_told_once(answer, 2)

    def test_head_is_denied_without_a_body_and_the_connection_goes_on(self, http):
        answers = [http.head("/") for _ in range(5)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
        assert http.get("/healthz").text == "hello"

    def test_not_modified_has_the_headers(self, http):
        answer = http.get("/not-modified")
        assert (answer.status_code, answer.content) == (304, b"")
        assert_told_once(answer, 2)

    def test_a_view_that_fails_has_been_counted(self, http):
        last = {"connection": "close"}  # a server may close the connection after a failure
        assert [http.get("/fails", headers=last).status_code for _ in range(4)] == [500, 500, 500, 429]

    def test_a_body_comes_through(self, http):
        body = b"x" * 300_000
        assert http.post("/echo", content=body).content == body

    def test_a_denied_body_does_not_spoil_the_connection(self, http):
        statuses = [http.post("/echo", content=b"y" * 10_000).status_code for _ in range(5)]
        assert statuses == [200, 200, 200, 429, 429]
        assert http.get("/healthz").text == "hello"

    def test_rules_may_depend_on_the_request(self, http):
        assert [http.get("/plan", headers={"x-plan": "free"}).status_code for _ in range(2)] == [200, 429]
        assert [http.get("/plan", headers={"x-plan": "house"}).status_code for _ in range(2)] == [200, 200]

    def test_a_cost_is_settled_by_the_size_of_the_answer(self, http):
        answer = http.get("/sized")
        assert (len(answer.content), answer.headers["x-ratelimit-remaining"]) == (290, "900")

        def what_is_left():  # a request for more than is left changes nothing
            return http.get("/sized", headers={"x-cost": "2000"}).headers["x-ratelimit-remaining"]

        assert eventually(what_is_left, "710")

    def test_concurrent_keep_alive_requests_are_counted_exactly(self, server, http):
        def ask_ten_times(_):
            with httpx.Client(base_url=server.url, headers=http.headers) as own:
                return [own.get("/concurrent").status_code for _ in range(10)]

        with ThreadPoolExecutor(8) as pool:
            statuses = [status for answers in pool.map(ask_ten_times, range(8)) for status in answers]
        assert (statuses.count(200), statuses.count(429)) == (50, 30)

    def test_a_shaped_request_is_held(self, http):
        started = time.monotonic()
        with ThreadPoolExecutor(5) as pool:
            statuses = list(pool.map(lambda _: http.get("/shaped").status_code, range(5)))
        assert statuses == [200] * 5
        assert time.monotonic() - started >= 0.08  # four departures at 50 a second

    def test_the_wait_that_is_stated_is_enough(self, http):
        while (answer := http.get("/brief")).status_code == 200:
            pass
        time.sleep(int(answer.headers["retry-after"]))
        assert http.get("/brief").status_code == 200

    def test_a_client_that_leaves_a_stream_ends_it(self, server, http):
        client = http.headers["x-client"]
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(f"GET /long HTTP/1.1\r\nhost: x\r\nx-client: {client}\r\n\r\n".encode())
            assert b"200 OK" in connection.recv(1000)
        assert eventually(lambda: seen(server, f"ended {client}"), 1)
        assert http.get("/").status_code == 200
