"""Clients that keep the service waiting: even if they are more than it has places for, all others are answered."""

import contextlib
import itertools
import resource
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from ratekeeper.service.running import MAX_CONNECTIONS
from tests.servers import PATIENCE
from tests.service.serving import Served

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how far a client has read")

BODY = b'{"key": "slow", "rule": "1000000/day"}'
HEAD = b"POST /v1/hit HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
HIT = HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
GET = b"GET /static/style.css HTTP/1.1\r\nhost: localhost\r\n\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
SLOW = {  # what a client sends first, what it sends again and again, and how many bytes it reads each time
    "asks and never reads": (GET * 200, b"", 0),
    "asks again and again and never reads": (HIT * 50, HIT * 50, 0),
    "reads less than it asks for": (GET * 200, b"", 100),
    "drips a header": (HIT[:40], b"x: y\r\n", 0),
    "drips a body": (HIT[:-20], b" ", 0),
    "drips chunks": (CHUNKED, b"1\r\n \r\n", 0),
    "asks once and stays": (HIT, b"", 1_000),
    "asks again and again, reads, and stays": (b"", HIT, 1_000),
    "sends nothing": (b"", b"", 0),
}
CLIENTS = MAX_CONNECTIONS + 100
MAX_BYTES = 128 * 2**20  # that the service takes for them


class SlowClient:
    def __init__(self, port, kind):
        self._port, self._kind = port, kind
        self.connections = 0
        self._connect()

    def _connect(self):
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        self._socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            self._socket.connect(("127.0.0.1", self._port))
        self._left = self._kind[0]
        self.connections += 1

    def go_on(self):
        """Send the next part and read a little; start again if the service has closed the connection."""
        _, again, size = self._kind
        try:
            self._left = (self._left or again)[self._socket.send(self._left or again) :]
            if size and not self._socket.recv(size):
                raise ConnectionResetError
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            self._connect()

    def close(self):
        self._socket.close()


@contextlib.contextmanager
def crowd(port, kinds):
    """Let slow clients go on as long as the block lasts."""
    clients = [SlowClient(port, kind) for kind, _ in zip(itertools.cycle(kinds), range(CLIENTS), strict=False)]
    ended = threading.Event()

    def go_on():
        while not ended.wait(0.1):
            for client in clients:
                client.go_on()

    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(PATIENCE)
        for client in clients:
            client.close()


@pytest.fixture(autouse=True)
def room_for_connections():
    """Let this process have as many files as the tests need."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], min(4096, before[1])), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture
def serve():
    """Start services that end with the test."""
    started = []

    def serve(**options):
        started.append(Served(**options))
        return started[-1]

    yield serve
    assert [served.stop() for served in started] == [0] * len(started)


def ask(port):
    """Send a request as a client that is not slow."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        connection.sendall(HIT)
        return connection.recv(1000).partition(b"\r\n")[0]


def descriptors(served):
    return len(list(Path(f"/proc/{served.process.pid}/fd").iterdir()))


def taken_bytes(served):
    return int(Path(f"/proc/{served.process.pid}/statm").read_text().split()[1]) * resource.getpagesize()


def until(condition):
    give_up = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.02)


@pytest.mark.parametrize(
    "kinds",
    [["asks and never reads"], ["asks again and again, reads, and stays"], [*SLOW]],
    ids=["who never read", "who never leave", "of all kinds"],
)
def test_more_clients_than_there_are_places_for_keep_nobody_out(serve, kinds):
    served = serve()
    empty, least = descriptors(served), taken_bytes(served)
    with crowd(served.port, [SLOW[kind] for kind in kinds]):
        until(lambda: descriptors(served) > empty + MAX_CONNECTIONS / 2)
        for _ in range(3):
            assert ask(served.port) == b"HTTP/1.1 200 OK"
            assert descriptors(served) < empty + MAX_CONNECTIONS + 10
            assert taken_bytes(served) < least + MAX_BYTES
            time.sleep(0.2)
    until(lambda: descriptors(served) < empty + 10)


def test_without_a_crowd_a_slow_client_has_half_a_minute(serve):
    code = """
import sys
from ratekeeper.cli import main
from ratekeeper.service import connections
connections.PATIENCE = 0.5
sys.exit(main(["serve", *sys.argv[1:]]))
"""
    served = serve(command=[sys.executable, "-c", code])
    client = SlowClient(served.port, SLOW["asks and never reads"])
    until(lambda: client.go_on() or client.connections > 1)
    client.close()
    assert served.process.poll() is None
