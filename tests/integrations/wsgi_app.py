"""The plain WSGI application that real servers run."""

import collections
import os
import urllib.parse

from ratekeeper import FixedWindow
from ratekeeper.http import by_header
from ratekeeper.integrations.wsgi import RateLimitMiddleware, Route

LONG = "400 days"  # a window that does not end while the tests run
PLANS = {"free": "1/day", "house": None}
seen = collections.Counter()


def chunks(count, client):
    try:
        for number in range(count):
            yield f"{number}\n".encode()
    finally:
        seen[f"ended {client}"] += 1


def application(environ, start_response):
    path, client = environ["PATH_INFO"], environ.get("HTTP_X_CLIENT")
    plain = [("Content-Type", "text/plain")]
    if path == "/fails":
        raise LookupError("the view failed")
    if path == "/not-modified":
        start_response("304 Not Modified", [("ETag", '"1"')])
        return []
    if path in ("/stream", "/sized", "/long"):
        start_response("200 OK", plain)
        return chunks(10_000_000 if path == "/long" else 100, client)
    body = b"hello"
    if path == "/echo":
        body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
    if path == "/seen":
        body = str(seen[urllib.parse.parse_qs(environ["QUERY_STRING"])["client"][0]]).encode()
    start_response("200 OK", [*plain, ("Content-Length", str(len(body)))])
    return [b"" if environ["REQUEST_METHOD"] == "HEAD" else body]


def plan(request):
    return PLANS[request.header("x-plan")[0]]


def cost_of(request):
    return int((request.header("x-cost") or ["100"])[0])


def size_of(request, answer):
    return answer.size


app = RateLimitMiddleware(
    application,
    {"three": FixedWindow(3, LONG)},
    key=by_header("x-client"),
    exempt=["/healthz", "/seen"],
    routes=[
        Route("/plan", plan),
        Route("/sized", FixedWindow(1000, LONG), cost=cost_of, settle=size_of),
        Route("/concurrent", FixedWindow(50, LONG)),
        Route("/shaped", "leaky-bucket 50/s burst 20 shaping"),
        Route("/brief", "fixed-window 2/s"),
    ],
    store=os.environ["RATEKEEPER_STORE"],
    on_error="raise",  # a fallback would hide a broken engine
    deadline=10,  # the machine may be busy
)
