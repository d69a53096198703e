"""Connections whose clients keep the service waiting are closed, so that a thousand of them keep nobody out.

granian bounds the number of connections and the time that headers take, but waits forever for a client that sends a
request and does not read the response. The kernel knows what each client has received. So this module regularly looks
at the connections of this process, and closes those whose client has received no response for too long: because it does
not read, sends its request slowly, or sends none. When few connections are left, clients get less time; when hardly
any are, connections close after each response, so that clients take turns.

Linux only; elsewhere nothing is closed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
import struct
import sys
from contextlib import suppress

from ratekeeper.clock import Clock, stopwatch

PATIENCE = 30.0  # seconds that a client may take to send a request and read the response
LITTLE_PATIENCE = 1.0  # the same, while few connections are left
FEW = 0.25  # the share of connections that is kept free
HARDLY_ANY = FEW / 4
BUFFER_BYTES = 32 * 1024  # of each connection in the kernel, in each direction; Linux doubles it
_PAUSE = 0.5  # seconds between looks
_SHORT_PAUSE = 0.2  # the same, while few connections are left
_DESCRIPTORS = "/proc/self/fd"
_INFO = struct.Struct("=120xQ16xI")  # the two fields of struct tcp_info below, which Linux has had since 4.6
_DROP_UNSENT = struct.pack("ii", 1, 0)  # drop what was not sent
_log = logging.getLogger("ratekeeper")


class Client:
    """The client of a connection, and since when the service has waited for it."""

    __slots__ = ("received", "since_ns")

    def __init__(self, received: int, now_ns: int) -> None:
        self.received = received
        self.since_ns = now_ns

    def update(self, received: int, unsent: int, now_ns: int) -> None:
        """Note what has happened since the last look: a client that has read a whole response starts afresh."""
        if received > self.received and not unsent:
            self.received = received
            self.since_ns = now_ns


class Connections:
    """The connections of this process to one port, of which a given number can be open."""

    def __init__(self, port: int | None, most: int, clock: Clock = stopwatch) -> None:
        self._port = port
        self._most = most
        self._clock = clock
        self._known: dict[int, Client | None] = {}  # by the number of the socket; None: a socket of another kind
        self.closed = 0
        """How many connections were closed here."""
        self.is_crowded = False
        """Whether hardly any connections are left, so that each response should close its connection."""

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look now, and again at intervals."""
        if sys.platform != "linux" or self._port is None:
            return
        pause = _PAUSE
        try:
            pause = self.look()
        except OSError:  # no /proc, or no descriptor left
            _log.debug("cannot look at the connections", exc_info=True)
        loop.call_later(pause, self.watch, loop)

    def all_closed(self) -> bool:
        """Tell whether no connection is open; False if that cannot be told."""
        if sys.platform != "linux" or self._port is None:
            return False
        with suppress(OSError):
            self.look()
            return not any(self._known.values())
        return False

    def look(self) -> float:
        """Close connections whose clients took too long; return in how many seconds to look again."""
        now_ns = self._clock()
        known: dict[int, Client | None] = {}
        clients = []
        for descriptor in map(int, os.listdir(_DESCRIPTORS)):  # noqa: PTH208 - paths would take much longer
            with suppress(OSError):  # closed meanwhile
                number = _number(descriptor)
                client = known[number] = self._look_at(descriptor, number, now_ns) if number else None
                if client is not None:
                    clients.append((client.since_ns, descriptor, number))
        self._known = known
        left = len(clients)
        enough = int(self._most * (1 - FEW))
        for since_ns, descriptor, number in sorted(clients):  # the slowest clients come first
            patience = LITTLE_PATIENCE if left > enough else PATIENCE
            if now_ns - since_ns < patience * 1e9:
                break
            with suppress(OSError):
                self._close(descriptor, number)
            left -= 1
        self.is_crowded = left > self._most * (1 - HARDLY_ANY)
        return _SHORT_PAUSE if len(clients) > enough else _PAUSE

    def _look_at(self, descriptor: int, number: int, now_ns: int) -> Client | None:
        """Return the client of a connection, and note its progress; None for any other socket."""
        client = self._known.get(number)
        if client is None and (number in self._known or not self._is_connection(descriptor)):
            return None
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, os.dup(descriptor)) as opened:
            received, unsent = _INFO.unpack(opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size))
        if client is None:
            return Client(received, now_ns)
        client.update(received, unsent, now_ns)
        return client

    def _is_connection(self, descriptor: int) -> bool:
        with socket.socket(fileno=os.dup(descriptor)) as opened:
            if opened.family not in (socket.AF_INET, socket.AF_INET6) or opened.getsockname()[1] != self._port:
                return False
            if not opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                return True
            for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):  # connections inherit them from the listening socket
                opened.setsockopt(socket.SOL_SOCKET, buffer, BUFFER_BYTES)
        return False

    def _close(self, descriptor: int, number: int) -> None:
        """Shut the connection down; the server then closes the descriptor."""
        with socket.socket(fileno=os.dup(descriptor)) as opened:
            if _number(opened.fileno()) != number:  # the descriptor is another socket's by now
                return
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DROP_UNSENT)
            opened.shutdown(socket.SHUT_RDWR)
        if not self.closed:
            _log.warning(
                "closed a connection because its client received no response for too long; up to %d connections "
                "can be open (logged once)",
                self._most,
            )
        self.closed += 1


def _number(descriptor: int) -> int:
    """Return the number that identifies a socket as long as it is open; 0 for anything else."""
    found = os.fstat(descriptor)
    return found.st_ino if stat.S_ISSOCK(found.st_mode) else 0
