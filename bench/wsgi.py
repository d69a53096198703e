"""The cost of a limit in a Flask application, compared with Flask-Limiter."""

import wsgiref.util
from collections.abc import Callable, Sequence
from functools import partial
from time import process_time_ns
from typing import Any

from flask import Flask
from flask_limiter import Limiter
from flask_limiter.util import get_remote_address

from bench.contestants import OURS
from bench.tables import find, number, spread, table
from bench.timing import Measurement, Target, interleave
from ratekeeper.integrations.flask import RateLimiter
from ratekeeper.integrations.wsgi import RateLimitMiddleware

NAME = "wsgi"
TITLE = "WSGI and Flask"
ABOUT = (
    "CPU microseconds for one request to a Flask application with one view, called as a server calls it, and what the "
    "limit adds to the bare application. All limit the view itself with a fixed window in memory and send their "
    "headers; the last row is Flask-Limiter without headers, which is its default."
)
BARE, WSGI, FLASK = "bare", f"{OURS}, WSGI middleware", f"{OURS}, Flask extension"
PEER, PEER_WITHOUT_HEADERS = "Flask-Limiter", "Flask-Limiter, no headers"
NAMES = (BARE, WSGI, FLASK, PEER, PEER_WITHOUT_HEADERS)
LIMIT = 1_000_000_000  # a minute: nobody is denied
REQUESTS = 2_000


def view() -> str:
    return "hello"


def make(name: str) -> Any:
    app = Flask(name)
    limited: Callable[..., Any] = view
    if name == FLASK:
        limited = RateLimiter(app).limit(f"fixed-window {LIMIT}/minute")(view)
    elif name in (PEER, PEER_WITHOUT_HEADERS):
        limiter = Limiter(get_remote_address, app=app, headers_enabled=name == PEER, storage_uri="memory://")
        limited = limiter.limit(f"{LIMIT}/minute")(view)
    app.add_url_rule("/", "view", limited)
    return RateLimitMiddleware(app, f"fixed-window {LIMIT}/minute") if name == WSGI else app


def run(rounds: int) -> list[Measurement]:
    samples = interleave(NAME, {name: partial(per_request, make(name)) for name in NAMES}, rounds)
    return [Measurement("memory", "fixed window", name, "us", taken) for name, taken in samples.items()]


def per_request(app: Any) -> float:
    """Return the CPU microseconds for one request, on average."""
    environs = [an_environ() for _ in range(REQUESTS)]
    started = process_time_ns()
    for environ in environs:
        body = app(environ, start_response)
        for _ in body:
            pass
        body.close()
    return (process_time_ns() - started) / REQUESTS / 1000


def an_environ() -> dict[str, Any]:
    environ: dict[str, Any] = {"REMOTE_ADDR": "192.0.2.1", "PATH_INFO": "/"}
    wsgiref.util.setup_testing_defaults(environ)
    return environ


def start_response(status: str, headers: Sequence[tuple[str, str]], exc_info: Any = None) -> None:
    if not status.startswith("200"):
        raise AssertionError(status)


def added(figures: Sequence[Measurement], name: str) -> float:
    bare, limited = find(figures, "memory", "fixed window", BARE), find(figures, "memory", "fixed window", name)
    return limited.median - bare.median if bare and limited else float("nan")


def tables(figures: Sequence[Measurement]) -> list[str]:
    rows = [
        [name, spread(figure), "" if name == BARE else number(added(figures, name))]
        for name in NAMES
        if (figure := find(figures, "memory", "fixed window", name))
    ]
    return [table(["", "us", "added, us"], rows)]


def targets(figures: Sequence[Measurement]) -> list[Target]:
    found = []
    for name in (WSGI, FLASK):
        share = added(figures, name) / added(figures, PEER)
        found.append(Target(f"{name} adds at most half of what {PEER} adds", f"{share:.2f}", share <= 1 / 2))
    return found
