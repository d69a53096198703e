"""Which connections are closed: those whose clients keep the service waiting, and no others."""

import contextlib
import fcntl
import socket
import struct
import sys
import termios
import time

import pytest

from ratekeeper.service.connections import BUFFER_BYTES, Connections
from ratekeeper.testing import ManualClock
from tests.servers import PATIENCE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how far a client has read")


class Port:
    """A listening socket of this process, and its connections."""

    def __init__(self):
        self.stack = contextlib.ExitStack()
        self.listening = self.stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.number = self.listening.getsockname()[1]

    def connect(self):
        """Return a client, and the server's end of its connection."""
        client = self.stack.enter_context(socket.create_connection(("127.0.0.1", self.number), timeout=PATIENCE))
        return client, self.stack.enter_context(self.listening.accept()[0])


@pytest.fixture
def port():
    port = Port()
    yield port
    port.stack.close()


@pytest.fixture
def clock():
    return ManualClock()


def is_open(client):
    client.setblocking(False)
    try:
        return client.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False


def answer(client, server):
    """Let a client read a response, and wait until the kernel knows."""
    server.sendall(b"answer")
    client.setblocking(True)
    assert client.recv(100) == b"answer"
    give_up = time.monotonic() + PATIENCE
    while fcntl.ioctl(server, termios.TIOCOUTQ, b"\0" * 4) != b"\0" * 4:
        assert time.monotonic() < give_up


def fill(server):
    """Send until the client's side and this side have no room for more."""
    server.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            server.send(b"x" * 4096)


def test_a_client_that_takes_no_answer_for_30_seconds_is_closed(port, clock):
    client, _ = port.connect()
    connections = Connections(port.number, 8, clock)
    connections.look()
    clock.advance(29.9)
    assert (connections.look(), is_open(client), connections.closed) == (0.5, True, 0)
    clock.advance(0.1)
    assert (connections.look(), is_open(client), connections.closed) == (0.5, False, 1)


def test_a_client_that_takes_answers_stays(port, clock):
    client, server = port.connect()
    connections = Connections(port.number, 8, clock)
    for _ in range(3):
        connections.look()
        clock.advance(29)
        answer(client, server)
        connections.look()
        clock.advance(29)
    assert (connections.look(), is_open(client)) == (0.5, True)


def test_a_client_that_reads_less_than_it_asks_for_is_closed(port, clock):
    client, server = port.connect()
    connections = Connections(port.number, 8, clock)
    connections.look()
    for _ in range(30):
        fill(server)
        client.recv(100)
        connections.look()
        assert is_open(client)
        clock.advance(1)
    connections.look()
    assert connections.closed == 1
    with pytest.raises(OSError, match="Broken pipe"):
        server.send(b"x")


def test_a_client_that_sends_and_sends_but_takes_no_answer_is_closed(port, clock):
    client, server = port.connect()
    connections = Connections(port.number, 8, clock)
    connections.look()
    for _ in range(30):
        client.sendall(b"x: y\r\n")
        server.recv(100)
        connections.look()
        assert is_open(client)
        clock.advance(1)
    connections.look()
    assert not is_open(client)


def test_while_few_places_are_left_those_that_were_waited_for_longest_make_room(port, clock):
    connections = Connections(port.number, 8, clock)
    clients = []
    for _ in range(8):
        clients.append(port.connect()[0])
        connections.look()
        clock.advance(0.1)
    clock.advance(0.1)  # the first was waited for 0.9 s
    assert (connections.look(), [is_open(client) for client in clients]) == (0.2, [True] * 8)
    clock.advance(0.5)
    assert (connections.look(), [is_open(client) for client in clients]) == (0.2, [False] * 2 + [True] * 6)


def test_nobody_makes_room_within_a_second_of_an_answer(port, clock):
    connections = Connections(port.number, 8, clock)
    pairs = [port.connect() for _ in range(8)]
    connections.look()
    for _ in range(5):
        clock.advance(0.9)
        for pair in pairs:
            answer(*pair)
        assert connections.look() == 0.2
    assert all(is_open(client) for client, _ in pairs)


def test_with_hardly_any_place_left_clients_take_turns(port, clock):
    connections = Connections(port.number, 16, clock)
    pairs = [port.connect() for _ in range(15)]
    connections.look()
    assert not connections.is_crowded
    pairs.append(port.connect())
    connections.look()
    assert connections.is_crowded
    clock.advance(1)
    connections.look()  # four make room
    assert (connections.is_crowded, connections.closed) == (False, 4)


def test_the_sockets_of_others_are_left_alone(port, clock):
    other = Port()
    client, _ = other.connect()
    here, _there = socket.socketpair()
    connections = Connections(port.number, 1, clock)
    with other.stack, here, _there, socket.socket(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM):
        for _ in range(3):
            connections.look()
            clock.advance(100)
        assert is_open(client)
        assert is_open(here)
    assert connections.closed == 0


def test_the_kernel_holds_a_bounded_number_of_bytes_for_each_connection(port, clock):
    Connections(port.number, 8, clock).look()
    _, server = port.connect()
    for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        assert server.getsockopt(socket.SOL_SOCKET, buffer) == 2 * BUFFER_BYTES
    fill(server)
    (unsent,) = struct.unpack("i", fcntl.ioctl(server, termios.TIOCOUTQ, b"\0" * 4))
    assert unsent < 4 * BUFFER_BYTES  # Linux lets the last piece be larger than the room that is left


def test_a_new_connection_is_not_taken_for_one_that_was_closed(port, clock):
    connections = Connections(port.number, 8, clock)
    client, server = port.connect()
    connections.look()
    clock.advance(29)
    client.close()
    server.close()
    client, _ = port.connect()  # with the same descriptors
    connections.look()
    clock.advance(29)
    connections.look()
    assert is_open(client)


class Loop:
    """An event loop that notes when it would call again."""

    def __init__(self):
        self.pauses = []

    def call_later(self, pause, *_):
        self.pauses.append(pause)


def test_it_looks_again_and_again_also_after_it_could_not_look(port, clock, monkeypatch):
    loop = Loop()
    connections = Connections(port.number, 1, clock)
    connections.watch(loop)
    port.connect()
    connections.watch(loop)
    monkeypatch.setattr("ratekeeper.service.connections._DESCRIPTORS", "/nowhere")
    connections.watch(loop)
    assert loop.pauses == [0.5, 0.2, 0.5]


def test_it_does_not_look_where_nothing_tells_how_far_a_client_has_read(port, clock, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    loop = Loop()
    Connections(port.number, 1, clock).watch(loop)
    assert loop.pauses == []
