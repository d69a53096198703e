"""A page of another origin can neither use, reset nor read anything of the service: a real browser tries it all."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from tests.browser.cards import Card

RULE, KEY = "fixed-window 5/80000s", "ada"
ASKED = {"rule": RULE, "key": KEY}
DEMO = {"config": {"maxRequests": 10, "windowSeconds": 80_000}}
POSTS = {  # calls that would change something, with a valid body
    "/v1/hit": ASKED,
    "/v1/reset": ASKED,
    "/api/rate-limit/fixed-window": DEMO,
    "/api/rate-limit/fixed-window/burst": DEMO,
    "/api/rate-limit/fixed-window/state": DEMO,
    "/api/rate-limit/reset": {},
    "/api/compare": {},
}
GETS = ["/v1/live", "/api/script/fixed-window", "/openapi.json", *POSTS]
UNREADABLE = (["TypeError"], ["opaque", 0, ""])
_FETCH = """async ([address, options]) => {
    try {
        const answer = await fetch(address, {credentials: "include", ...options});
        return [answer.type, answer.status, await answer.text()];
    } catch (error) {
        return [error.name];
    }
}"""
_FORM = """([address, type, name, value]) => new Promise((resolve) => {
    const frame = document.createElement("iframe");
    frame.name = "answer";
    document.body.append(frame);
    const form = document.createElement("form");
    Object.assign(form, {action: address, method: "POST", enctype: type, target: "answer"});
    const input = document.createElement("input");
    Object.assign(input, {type: "hidden", name, value});
    form.append(input);
    document.body.append(form);
    frame.onload = () => {
        let seen = "closed";
        try { seen = frame.contentWindow.location.href; } catch {}
        if (seen === "about:blank") return;  // the empty frame, before the form is sent
        try { seen = frame.contentDocument?.body.textContent ?? "closed"; } catch {}
        frame.remove();
        form.remove();
        resolve(seen);
    };
    form.submit();
})"""
_EMBED = """([kind, address]) => new Promise((resolve) => {
    const node = document.createElement(kind);
    node.onload = () => resolve(kind === "iframe" ? (node.contentDocument?.body.textContent ?? "closed") : "loaded");
    node.onerror = () => resolve("closed");
    node.src = address;
    document.body.append(node);
})"""


class Page(BaseHTTPRequestHandler):
    """An empty page."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>elsewhere</title><body></body>")

    def log_message(self, *_):
        """Say nothing."""


@contextmanager
def elsewhere():
    """Serve the empty page on a port of its own, and return the port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def counted(address):
    """Return how much of the key is left, and how much the whole service has decided so far."""
    left = httpx.post(f"{address}/v1/peek", json=ASKED).json()["remaining"]
    live = httpx.get(f"{address}/v1/live").json()
    return left, live["admitted"], live["denied"]


@pytest.fixture
def address(site):
    return site.rstrip("/")


@pytest.fixture(params=["127.0.0.1", "localhost"])
def stranger(request, visitor, address):
    """A page of another origin, in a window whose visitor has used three of the demo and two of the key."""
    own = Card(visitor.open(), "fixed-window")
    for _ in range(3):
        with own.page.expect_response("**/api/rate-limit/fixed-window"):
            own.press("Send request")
    httpx.post(f"{address}/v1/reset", json=ASKED)
    for _ in range(2):
        httpx.post(f"{address}/v1/hit", json=ASKED)
    before = counted(address)
    assert before[0] == 3
    with elsewhere() as port:
        page = visitor.context.new_page()
        page.goto(f"http://{request.param}:{port}/")
        yield page
        page.close()
    assert counted(address) == before
    assert own.state()["peek"]["remaining"] == 7


@pytest.mark.parametrize("mode", ["cors", "no-cors"])
@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
def test_no_script_of_another_origin_gets_an_answer(stranger, address, mode, kind):
    for path, body in POSTS.items():
        options = {"method": "POST", "mode": mode, "headers": {"Content-Type": kind}, "body": json.dumps(body)}
        assert stranger.evaluate(_FETCH, [address + path, options]) in UNREADABLE
        assert stranger.evaluate(_FETCH, [address + path, {"method": "POST", "mode": mode}]) in UNREADABLE
    for path in GETS:
        assert stranger.evaluate(_FETCH, [address + path, {"mode": mode}]) in UNREADABLE


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "multipart/form-data", "text/plain"])
def test_no_form_of_another_origin_is_taken(stranger, address, kind):
    for path, body in POSTS.items():
        text = json.dumps(body)
        name, value = (text[:-1] + (', "x": "' if body else '"x": "'), '"}') if kind == "text/plain" else ("x", text)
        assert stranger.evaluate(_FORM, [address + path, kind, name, value]) == "closed"


@pytest.mark.parametrize("kind", ["img", "script", "iframe"])
def test_nothing_is_embedded_by_another_origin(stranger, address, kind):
    for path in (*GETS, "/", "/static/icon.svg"):
        assert stranger.evaluate(_EMBED, [kind, address + path]) == "closed"


def test_all_of_it_is_answered_to_a_page_of_its_own(visitor, address):
    page = visitor.open()
    for path, body in POSTS.items():
        options = {"method": "POST", "headers": {"Content-Type": "application/json"}, "body": json.dumps(body)}
        assert page.evaluate(_FETCH, [address + path, options])[:2] == ["basic", 200]
    for path in GETS[:3]:
        assert page.evaluate(_FETCH, [address + path, {}])[:2] == ["basic", 200]
