"""The limits of the attacked applications. Every client, by its header x-client, has limits of its own.

All applications have the same views. A view answers with its name, so that a test sees which one has run:
each that is protected has a rule of the same name, which admits three requests.
"""

import json
import os
from pathlib import Path
from urllib.parse import unquote

from ratekeeper import FixedWindow
from ratekeeper.http import Route, by_address, by_header
from ratekeeper.stores import MemoryStore

LONG = "400 days"  # a window that does not end while the tests run
THREE = FixedWindow(3, LONG)
ONE = FixedWindow(1, LONG)
MANY = FixedWindow(1_000_000, LONG)
STATIC = Path(__file__).parent / "static"


def claimed(request):
    """What the client claims, as a careless application would use it."""
    return unquote(request.header("x-claim")[0])


COMMON = {
    "key": by_header("x-client"),
    "exempt": ["/healthz", "GET /open/*"],
    "store": MemoryStore(),  # one for all applications of the process
}
OF_CLAIMS = [Route("/named", lambda request: {claimed(request): ONE}), Route("/keyed", {"keyed": ONE}, key=claimed)]
BY_ROUTES = {
    **COMMON,
    "limit": {"other": MANY},
    "routes": [
        Route("/login", {"login": THREE}, methods=["POST"]),
        Route("/users/{id}", {"user": THREE}),
        Route("/slack", {"slack": THREE}),
        Route("/any/cheap", {"cheap": MANY}),
        Route("/any/*", {"any": THREE}),
        Route("/static/big.txt", {"file": THREE}),
        Route("/chat/live", {"chat": THREE}, methods=["WEBSOCKET"]),
        Route("/mine", {"mine": THREE}, key=by_address()),
        *OF_CLAIMS,
    ],
}


def rule(name, path, key="{header:x-client}", limit=3, **when):
    """A rule of the policy that says the same as the routes."""
    return {"name": name, "limit": f"fixed-window {limit}/400d", "key": key, "when": {"path": path} | when}


POLICY = {
    "rules": [
        rule("login", "/login", method="POST"),
        rule("user", "/users/*"),
        rule("slack", "/slack"),
        rule("any", "/any/*"),
        rule("file", "/static/big.txt"),
        rule("chat", "/chat/live", method="WEBSOCKET"),
        rule("mine", "/mine", key="{ip}"),
        rule("other", "*", limit=1_000_000),
    ],
    "overrides": [{"when": {"path": "/any/cheap"}, "limits": {"any": "unlimited"}}],
}
BY_POLICY = {
    **COMMON,
    "policies": json.dumps({"policies": {"attacked": POLICY}}),
    "policy": "attacked",
    "routes": OF_CLAIMS,
}
OPTIONS = BY_POLICY if os.environ.get("ATTACKED_BY") == "policy" else BY_ROUTES
"""The environment says how the limits are given."""


def shown(view):
    """The body of a view's answer."""
    return f"<<{view}>>"
