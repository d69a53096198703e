"""Forward-auth behind a real nginx, with the sample configuration: what clients get, and what they cannot make up.

The application behind nginx reads paths as liberally as any framework, and has no limits of its own.
"""

import itertools
import json
import re

import httpx
import pytest

from tests.integrations.attacked import attacks
from tests.integrations.processes import GUNICORN, Process
from tests.nginx import Nginx
from tests.servers import free_port
from tests.service.serving import Served

CLIENT = "{header:x-api-key|none}"


def rule(name, limit=3, key=CLIENT, **when):
    return {"name": name, "limit": f"fixed-window {limit}/400d", "key": key, "when": when}


POLICIES = {
    "api": {
        "rules": [
            rule("login", method="POST", path="/login"),
            rule("user", path="/users/*"),
            rule("any", path="/any/*"),
            rule("mine", key="{ip}", path="/mine"),
            rule("slack", path="/slack"),
            rule("host", key="{host}", path="/other", **{"header:x-api-key": "by host"}),
        ],
        "overrides": [
            {"when": {"path": ["/any/cheap", "/open/*"]}, "limits": "unlimited"},
            {"when": {"header:x-api-key": "blocked"}, "limits": {"slack": "blocked"}},
        ],
    }
}
PROTECTED = {
    "login": ("POST", "/login"),
    "user": ("GET", "/users/7"),
    "slack": ("GET", "/slack"),
    "any": ("GET", "/any/x"),
}
_numbers = itertools.count()


@pytest.fixture(scope="module")
def ratekeeper(tmp_path_factory):
    path = tmp_path_factory.mktemp("policies") / "limits.json"
    path.write_text(json.dumps({"policies": POLICIES}))
    served = Served("memory://", "--policies", str(path))
    yield served
    served.stop()


@pytest.fixture(scope="module")
def application():
    with Process("-m", *GUNICORN, "tests.integrations.attacked.wsgi_app:application") as process:
        yield process


@pytest.fixture(scope="module")
def nginx(tmp_path_factory, ratekeeper, application):
    nginx = Nginx(tmp_path_factory.mktemp("nginx"), ratekeeper.port, application.port)
    yield nginx
    nginx.stop()


@pytest.fixture
def client():
    """A new client."""
    return f"client {next(_numbers)}"


def ask(nginx, request, client, patience=30):
    """Send a request as it is, with the API key of a client."""
    start, end, body = request.partition(b"\r\n\r\n")
    start = start if end else start.removesuffix(b"\r\n")
    return attacks.ask(nginx.port, b"%b\r\nX-Api-Key: %b\r\n\r\n%b" % (start, client.encode(), body), client, patience)


def view_of(answer):
    """Which view has run."""
    found = re.search(rb"<<(\w+)>>", answer)
    return None if found is None else found[1].decode()


def status_of(answer):
    """The status, or 0 if there is none: the answer to HTTP/0.9 is a page alone."""
    found = re.match(rb"HTTP/1.[01] ([0-9]{3})", answer)
    return 0 if found is None else int(found[1])


def used_up(nginx, client, method, path):
    """Let a client use up what it may ask of a path."""
    plain = attacks.head(method, path)
    return [status_of(ask(nginx, plain, client)) for _ in range(4)]


# --- what clients get


def test_who_asks_too_much_gets_429_with_the_time_to_retry(nginx, client):
    with httpx.Client(base_url=f"http://127.0.0.1:{nginx.port}", headers={"X-Api-Key": client}) as http:
        answers = [http.get("/slack") for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
        assert [answer.headers["x-ratelimit-remaining"] for answer in answers] == ["2", "1", "0", "0"]
        assert {answer.headers["x-ratelimit-limit"] for answer in answers} == {"3"}
        assert answers[0].text == "<<slack>>"
        assert "retry-after" not in answers[0].headers
        assert int(answers[3].headers["retry-after"]) > 0
        assert answers[3].headers["ratelimit"].startswith('"slack";r=0;t=')
        assert answers[3].headers["content-type"] == "application/problem+json"
        assert answers[3].json()["status"] == 429
        assert http.get("/other").status_code == 200
        assert "ratelimit" not in http.get("/other").headers


def test_a_blocked_client_gets_429_without_a_time_to_retry(nginx):
    answer = httpx.get(f"http://127.0.0.1:{nginx.port}/slack", headers={"X-Api-Key": "blocked"})
    assert (answer.status_code, "retry-after" in answer.headers) == (429, False)


def test_bodies_and_pages_come_through(nginx, client):
    page = {"X-Api-Key": client, "Origin": "https://shop.example", "Sec-Fetch-Site": "cross-site", "Cookie": "a=b"}
    url = f"http://127.0.0.1:{nginx.port}/login"
    answers = [httpx.post(url, headers=page, content=b"x" * 300_000) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]


# --- what clients cannot make up


@pytest.mark.parametrize("view", PROTECTED)
def test_a_view_that_is_used_up_runs_for_no_other_spelling(nginx, client, view):
    method, path = PROTECTED[view]
    assert used_up(nginx, client, method, path) == [200, 200, 200, 429]
    ran = {name for name, request in attacks.spelled(method, path) if view_of(ask(nginx, request, client)) == view}
    assert ran == set()


def test_a_view_that_is_used_up_runs_for_no_disguise(nginx, client):
    assert used_up(nginx, client, "POST", "/login") == [200, 200, 200, 429]
    ran = {
        name for name, request in attacks.disguised("POST", "/login") if view_of(ask(nginx, request, client)) == "login"
    }
    assert ran == set()


FORGED = {
    "another address": "X-Forwarded-For: 198.51.100.{n}",
    "a trusted address": "X-Forwarded-For: 127.0.0.1, 198.51.100.{n}",
    "another method": "X-Forwarded-Method: GET",
    "another path": "X-Forwarded-Uri: /open/x",
    "another host": "X-Forwarded-Host: {n}.example",
    "the path of another proxy": "X-Original-URI: /open/x",
    "the URL of another proxy": "X-Original-URL: /open/x",
    "the method of another proxy": "X-Original-Method: GET",
    "a rewritten path": "X-Rewrite-URL: /open/x",
    "the address of another proxy": "X-Real-IP: 198.51.100.{n}",
    "Forwarded": "Forwarded: for=198.51.100.{n};host=x;proto=https",
    "underscores": "X_Forwarded_Uri: /open/x",
    "another status": "X-Accel-Redirect: /open/x",
    "the status of a denial": "X-Deny: 200",
}


@pytest.mark.parametrize("view", ["login", "mine"])
def test_no_header_of_a_client_is_taken_for_what_nginx_says(nginx, client, view):
    path = f"/{view}"
    plain = attacks.head("POST", path)
    for _ in range(4):
        last = ask(nginx, plain, client)
    assert status_of(last) == 429
    for number, (name, line) in enumerate(FORGED.items()):
        forged = attacks.head("POST", path, line.format(n=number))
        twice = attacks.head("POST", path, line.format(n=number), line.format(n=number + 100))
        assert [status_of(ask(nginx, each, client)) for each in (forged, twice)] == [429, 429], name


def test_a_client_dressed_up_in_any_way_gets_no_more(nginx, client):
    for _ in range(4):
        last = ask(nginx, attacks.head("POST", "/mine"), client)
    assert status_of(last) == 429
    ran, failed = set(), set()
    for name, request in attacks.dressed("POST", "/mine"):
        answer = ask(nginx, request, client, 0.5 if name in attacks.UNFINISHED else 30)
        if view_of(answer) == "mine":
            ran.add(name)
        if status_of(answer) >= 500:
            failed.add(name)
    assert ran == set()
    assert failed <= {"HTTP/9.9", "HTTP/2.0", "a request behind chunks in disguise"}  # which nginx does not know


def test_a_host_is_one_however_it_is_written(nginx):
    hosts = ["Shop.Example", "shop.example.", "SHOP.EXAMPLE:80", "shop.example"]
    plain = [attacks.head("GET", "/other").replace(b"Host: localhost", f"Host: {host}".encode()) for host in hosts]
    assert [status_of(ask(nginx, each, "by host")) for each in plain] == [200, 200, 200, 429]


def test_the_question_itself_cannot_be_asked_from_outside(nginx, client):
    for path in ("/_ratekeeper", "//_ratekeeper", "/_RATEKEEPER", "/%5fratekeeper", "/x/../_ratekeeper"):
        answer = ask(nginx, attacks.head("GET", path), client)
        assert status_of(answer) == 404


@pytest.mark.parametrize("size", [1_000, 7_000, 20_000])
def test_large_headers_of_a_client_do_not_reach_ratekeeper(nginx, client, size):
    line = f"X-Large: {'x' * size}"
    asked = [status_of(ask(nginx, attacks.head("GET", "/slack", line), client)) for _ in range(4)]
    assert asked in ([200, 200, 200, 429], [400] * 4)  # nginx: too large


def test_a_key_that_is_too_large_is_no_way_out(nginx):
    asked = [status_of(ask(nginx, attacks.head("GET", "/slack"), "k" * 6_000)) for _ in range(4)]
    assert asked == [200, 200, 200, 429]


# --- while ratekeeper is away


def test_nothing_passes_while_ratekeeper_cannot_be_reached_unless_that_is_wanted(tmp_path, application):
    away = free_port()
    for changes, status in ({}, 500), ({"# error_page 500 502 504": "error_page 500 502 504"}, 200):
        directory = tmp_path / str(status)
        directory.mkdir()
        nginx = Nginx(directory, away, application.port, **changes)
        try:
            assert httpx.get(f"http://127.0.0.1:{nginx.port}/other").status_code == status
        finally:
            nginx.stop()
