"""Hostile requests, through real servers: when a protected view runs, its rule has counted the request.

The servers are asked over plain sockets, in every way of the list in `attacked.attacks`. To try another server or
framework, add it to TARGETS.
"""

import itertools
import re
from urllib.parse import quote

import pytest

from tests.integrations.attacked import attacks
from tests.integrations.processes import GRANIAN, GUNICORN, UVICORN, Process

APPS = "tests.integrations.attacked"
DJANGO = {"DJANGO_SETTINGS_MODULE": f"{APPS}.django_app"}
BY_POLICY = {"ATTACKED_BY": "policy"}
GRANIAN_WSGI = [part.replace("asgi", "wsgi") for part in GRANIAN]
# The command, the environment, and what the applications are mounted at.
TARGETS = {
    "Starlette, uvicorn": ((*UVICORN, f"{APPS}.asgi_app:starlette"), {}, ("", "/mounted")),
    "Starlette, uvicorn --root-path": ((*UVICORN, "--root-path", "/api", f"{APPS}.asgi_app:starlette"), {}, ("",)),
    "Starlette, granian --url-path-prefix": (
        (*GRANIAN, "--url-path-prefix", "/api", f"{APPS}.asgi_app:starlette"),
        {},
        ("/api",),
    ),
    "FastAPI(root_path=...), uvicorn": ((*UVICORN, "--factory", f"{APPS}.asgi_app:limited_fastapi"), {}, ("/api",)),
    "around FastAPI(root_path=...), uvicorn": (
        (*UVICORN, "--factory", f"{APPS}.asgi_app:wrapped_fastapi"),
        {},
        ("/api",),
    ),
    "WSGI, gunicorn": ((*GUNICORN, f"{APPS}.wsgi_app:app"), {}, ("", "/mounted")),
    "Flask, gunicorn": ((*GUNICORN, f"{APPS}.flask_app:app"), {}, ("",)),
    "Flask, granian": ((*GRANIAN_WSGI, f"{APPS}.flask_app:app"), {}, ("",)),
    "Django, gunicorn": ((*GUNICORN, "django.core.wsgi:get_wsgi_application()"), DJANGO, ("",)),
    "Django, gunicorn with SCRIPT_NAME": (
        (*GUNICORN, "django.core.wsgi:get_wsgi_application()"),
        {**DJANGO, "SCRIPT_NAME": "/api"},
        ("/api",),
    ),
    "Django, uvicorn --root-path": (
        (*UVICORN, "--root-path", "/api", "--factory", "django.core.asgi:get_asgi_application"),
        DJANGO,
        ("",),
    ),
    "Starlette by policy, uvicorn": ((*UVICORN, f"{APPS}.asgi_app:starlette"), BY_POLICY, ("", "/mounted")),
    "WSGI by policy, gunicorn": ((*GUNICORN, f"{APPS}.wsgi_app:app"), BY_POLICY, ("", "/mounted")),
    "Flask by policy, gunicorn": ((*GUNICORN, f"{APPS}.flask_app:app"), BY_POLICY, ("",)),
    "Django by policy, gunicorn": (
        (*GUNICORN, "django.core.wsgi:get_wsgi_application()"),
        {**DJANGO, **BY_POLICY},
        ("",),
    ),
}
WITH_WEBSOCKETS = [name for name in TARGETS if name.startswith(("Starlette", "FastAPI", "around FastAPI"))]
PROTECTED = {
    "login": ("POST", "/login"),
    "user": ("GET", "/users/7"),
    "slack": ("GET", "/slack"),
    "any": ("GET", "/any/x"),
    "file": ("GET", "/static/big.txt"),
}
_numbers = itertools.count()


@pytest.fixture(scope="module", params=TARGETS)
def target(request):
    command, environment, mounts = TARGETS[request.param]
    with Process("-m", *command, health=f"{mounts[0]}/healthz", **environment) as server:
        yield server, mounts


@pytest.fixture
def client():
    """A new client."""
    return f"client {next(_numbers)}"


def view_of(answer, request):
    """Which view has run. The answer to a HEAD request does not say which one."""
    shown = re.search(rb"<<(\w+)>>", answer)
    if shown is None:
        return "some" if request[:4].upper() == b"HEAD" and b" 200 " in answer[:15] else None
    return shown[1].decode()


@pytest.mark.parametrize("view", PROTECTED)
def test_a_protected_view_that_is_used_up_runs_for_no_other_spelling(target, client, view):
    server, mounts = target
    method, path = PROTECTED[view]
    for mount in mounts:
        plain = attacks.head(method, mount + path)
        own = f"{client} {mount}"
        assert [view_of(attacks.ask(server.port, plain, own), plain) for _ in range(4)] == [view] * 3 + [None]
        ran = {
            name
            for name, request in (*attacks.spelled(method, mount + path), *attacks.preflights(method, mount + path))
            if view_of(attacks.ask(server.port, request, own), request) in (view, "some")
        }
        assert ran == set()


def test_a_protected_view_that_is_used_up_runs_for_no_spelling_of_a_path_that_is_free(target, client):
    server, mounts = target
    for mount in mounts:
        own = f"{client} {mount}"
        plain, free = (attacks.head("GET", f"{mount}/any/{rest}") for rest in ("x", "cheap"))
        assert [view_of(attacks.ask(server.port, plain, own), plain) for _ in range(4)] == ["any"] * 3 + [None]
        assert view_of(attacks.ask(server.port, free, own), free) == "cheap"
        ran = {
            name
            for name, request in attacks.spelled("GET", f"{mount}/any/cheap")
            if view_of(attacks.ask(server.port, request, own), request) == "any"
        }
        assert ran == set()


def test_a_protected_view_that_is_used_up_runs_for_no_disguise(target, client):
    server, mounts = target
    for mount in mounts:
        own = f"{client} {mount}"
        plain = attacks.head("POST", f"{mount}/login")
        assert [view_of(attacks.ask(server.port, plain, own), plain) for _ in range(4)] == ["login"] * 3 + [None]
        ran = {
            name
            for name, request in attacks.disguised("POST", f"{mount}/login")
            if view_of(attacks.ask(server.port, request, own), request) == "login"
        }
        assert ran == set()


@pytest.mark.parametrize("target", WITH_WEBSOCKETS, indirect=True)
def test_a_websocket_that_is_used_up_is_accepted_for_no_other_spelling(target, client):
    server, mounts = target

    def is_accepted(request):
        return attacks.ask(server.port, request, own, head_only=True)[9:12] == b"101"

    for mount in mounts:
        own = f"{client} {mount}"
        plain = attacks.handshake(f"{mount}/chat/live")
        assert [is_accepted(plain) for _ in range(4)] == [True] * 3 + [False]
        assert {name for name, request in attacks.handshakes(f"{mount}/chat/live") if is_accepted(request)} == set()


def test_a_client_that_is_known_by_its_address_is_nobody_else_by_its_headers_or_bodies(target, client):
    server, mounts = target
    path = f"{mounts[0]}/mine"
    plain = attacks.head("POST", path)
    assert [view_of(attacks.ask(server.port, plain, client), plain) for _ in range(4)] == ["mine"] * 3 + [None]
    ran, failed = set(), set()
    for name, request in attacks.dressed("POST", path):
        answer = attacks.ask(server.port, request, client, 0.5 if name in attacks.UNFINISHED else 30)
        if b"<<mine>>" in answer:
            ran.add(name)
        if re.match(rb"HTTP/1.[01] 5", answer):
            failed.add(name)
    assert (ran, failed) == (set(), set())
    health = attacks.head("GET", f"{mounts[0]}/healthz")
    assert view_of(attacks.ask(server.port, health, client), health) == "health"


@pytest.mark.parametrize("path", ["/named", "/keyed"])
def test_any_claim_can_be_a_key_or_the_name_of_a_rule(target, client, path):
    server, mounts = target

    def ask(claim):
        request = attacks.head("GET", mounts[0] + path, f"X-Claim: {quote(claim)}")
        answer = attacks.ask(server.port, request, client)
        assert b"\r\nx-injected" not in answer.lower()
        assert is_limited(answer)
        return int(answer[9:12])

    statuses = {claim: [ask(claim) for _ in range(2)] for claim in attacks.VALID_CLAIMS}
    assert {claim: found for claim, found in statuses.items() if found != [200, 429]} == {}
    for claim in attacks.INVALID_CLAIMS:  # those share a key, or the default limit applies
        assert ask(claim) in (200, 429)


def test_an_exemption_is_for_the_path_as_it_stands(target, client):
    server, mounts = target
    path = f"{mounts[0]}/healthz"
    plain = attacks.head("GET", path)
    answers = [attacks.ask(server.port, plain, client) for _ in range(5)]
    assert [view_of(answer, plain) for answer in answers] == ["health"] * 5
    assert not is_limited(answers[0])
    exempt = {
        name
        for name, request in attacks.other_spellings(path)
        if view_of(answer := attacks.ask(server.port, request, client), request) and not is_limited(answer)
    }
    assert exempt <= {"below a mount"}  # which has the same exemption


def is_limited(answer):
    """Whether an answer says what is left."""
    return b"x-ratelimit-remaining:" in answer.lower()
