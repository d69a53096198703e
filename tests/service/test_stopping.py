"""How the service stops: readiness first, and no request that was sent stays without an answer."""

import contextlib
import signal
import socket

import httpx
import pytest

from ratekeeper import Limiter
from tests import servers
from tests.service.keep_alive import KeepAlive
from tests.service.serving import Served, patched
from tests.waiters import PATIENCE, until

RULE, LIMIT = "fixed-window 1000000/day", 1_000_000
HALF_A_REQUEST = (
    b"POST /v1/hit HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{"
)


@pytest.fixture
def serve():
    """Start services, which end with the test."""
    with contextlib.ExitStack() as stack:

        def start(*options, **more):
            served = Served(*options, **more)
            stack.callback(served.stop)
            return served

        yield start


PATIENT = """
from ratekeeper.service import running
running.LINGER[15] = 0.5
running.ACCEPTING = running.LAST_WORDS = 8  # this machine may be busy
"""


@pytest.mark.parametrize("options", [(), ("--workers", "2")], ids=["alone", "two workers"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_all_that_was_charged_is_answered_and_nothing_is_cut_off(serve, key, number, options):
    store = servers.shared(servers.newest()).url
    served = serve(store, "--deadline", "30", *options, command=patched(PATIENT))
    served.hang_up()
    with KeepAlive(served.port, b'{"key": "%s", "rule": "%s"}' % (key.encode(), RULE.encode())) as clients:
        until(lambda: clients.answered > 500, "the clients are answered")
        served.process.send_signal(number)
        assert served.process.wait(PATIENCE) == 0
        until(lambda: clients.refused > 16, "all clients are refused")
    with Limiter(RULE, store, on_error="raise", deadline=30) as limiter:
        charged = LIMIT - limiter.peek(key).remaining
    assert clients.cut == []
    assert (clients.answers, clients.degraded) == ({200: charged}, {200: 0})
    assert clients.told >= 16


def test_after_sigterm_readiness_is_red_while_the_service_still_decides(serve):
    served = serve()
    assert served.ask("GET", "/readyz").status_code == 200
    served.process.send_signal(signal.SIGTERM)
    until(lambda: httpx.get(f"{served.url}readyz").status_code == 503, "readiness is red")
    with httpx.Client(base_url=served.url) as client:  # a connection that is new
        red, hit = client.get("/readyz"), client.post("/v1/hit", json={"key": "k", "rule": "1/day"})
    assert (red.json(), red.headers["connection"]) == ({"status": "stopping"}, "close")
    assert (hit.status_code, hit.headers["connection"]) == (200, "close")
    assert served.process.wait(PATIENCE) == 0


@pytest.mark.parametrize("options", [(), ("--workers", "2")], ids=["alone", "two workers"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once(serve, number, options):
    served = serve(None, *options)
    with socket.create_connection(("127.0.0.1", served.port), timeout=PATIENCE) as connection:
        connection.sendall(HALF_A_REQUEST)
        assert served.ask("GET", "/healthz").status_code == 200
        served.process.send_signal(signal.SIGTERM)
        until(lambda: httpx.get(f"{served.url}readyz").status_code == 503, "the first signal has arrived")
        served.process.send_signal(number)
        assert served.process.wait(PATIENCE) == 128 + number
        assert connection.recv(1) == b""


def test_a_request_that_never_ends_is_given_up(serve):
    served = serve(command=patched("from ratekeeper.service import running\nrunning.STOP_WITHIN = 0.5\n"))
    with socket.create_connection(("127.0.0.1", served.port), timeout=PATIENCE) as connection:
        connection.sendall(HALF_A_REQUEST)
        assert served.ask("GET", "/healthz").status_code == 200
        served.process.send_signal(signal.SIGINT)
        assert served.process.wait(PATIENCE) == 0
    assert "stopped with requests in progress" in served.process.stderr.read()
