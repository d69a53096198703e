"""Our clients on our server, over sockets: a request waits until it is admitted, not longer, and is not refused."""

import threading
from email.utils import formatdate
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import pytest

from ratekeeper import TokenBucket
from ratekeeper.http import Headers
from ratekeeper.integrations.wsgi import RateLimitMiddleware
from tests.integrations.outgoing.conftest import START
from tests.waiters import Call

PLENTY = TokenBucket(100, 100)


class Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class Silent(WSGIRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture
def serve(clock):
    """Start a server with these limits, on the test's clock; return its address and when it served requests."""
    servers = []

    def start(limit, **options):
        def hello(_, start_response):
            times.append(clock() / 1e9 - START)
            start_response("200 OK", [("Content-Length", "0"), ("Date", formatdate(clock() / 1e9, usegmt=True))])
            return [b""]

        times = []
        app = RateLimitMiddleware(hello, limit, clock=clock, **options)
        server = make_server("127.0.0.1", 0, app, Server, Silent)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        servers.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}", times

    yield start
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(
    ("limit", "sent", "admitted"),
    [
        ("fixed-window 2/minute", [0, 30], 60),
        ("sliding-window-log 2/minute", [0, 30], 60),
        ("sliding-window-counter 2/minute", [0, 30], 61),  # a microsecond after the window's end
        ("1/s burst 2", [0, 0], 1),
        ("leaky-bucket 1/s burst 2", [0, 0], 1),
        ({"log": "sliding-window-log 2/minute", "bucket": "1/s burst 5", "window": "fixed-window 9/hour"}, [0, 30], 60),
        ({"log": "sliding-window-log 2/minute", "window": "fixed-window 2/2 minutes"}, [0, 30], 120),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "headers", [Headers(legacy=False), Headers(draft=None), Headers(draft=7), Headers(draft=6)], ids=str
)
def test_a_request_after_the_last_admitted_one_is_sent_when_it_is_admitted(
    serve, client, limiter, clock, sleepers, limit, sent, admitted, headers
):
    url, times = serve(limit, headers=headers)
    to = client(limiter(PLENTY))
    for at in sent:
        clock.advance(START + at - clock() / 1e9)
        assert to.request("GET", url).status == 200
    call = Call(to.request, "GET", url)
    sleepers.until(1)
    clock.advance(START + admitted - clock() / 1e9)
    assert call.outcome().status == 200
    assert times == [*sent, admitted]
