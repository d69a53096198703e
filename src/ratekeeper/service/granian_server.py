"""granian, the HTTP server under the service, on a socket that is ours."""

from __future__ import annotations

import os
import socket
import sys

from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.net import SocketHolder  # type: ignore[attr-defined]  # which it does not export
from granian.server.embed import Server

from ratekeeper.service.listening import BACKLOG
from ratekeeper.service.rsgi import Rsgi

MAX_HEADER_BYTES = 16 * 1024
HEADER_SECONDS = 10  # the time that headers have to arrive


class GranianServer(Server):
    """A server that takes the connections of a listening socket.

    granian has no public way to pass one. It is ours, because granian's own sockets panic if they cannot be opened.
    """

    def __init__(self, application: Rsgi, listener: socket.socket, most_connections: int) -> None:
        super().__init__(
            application,
            interface=Interfaces.RSGI,
            http=HTTPModes.http1,
            websockets=False,
            backlog=BACKLOG,
            backpressure=most_connections,
            http1_settings=HTTP1Settings(header_read_timeout=HEADER_SECONDS * 1_000, max_buffer_size=MAX_HEADER_BYTES),
            log_enabled=False,
        )
        self._listener = listener

    def _init_shared_socket(self) -> None:
        """Use our socket. granian closes its descriptor when it stops."""
        descriptor = os.dup(self._listener.fileno())
        needs_backlog = sys.platform in ("linux", "freebsd")
        given = (descriptor, self._listener.family == socket.AF_UNIX, *((BACKLOG,) if needs_backlog else ()))
        self._shd = SocketHolder(*given)  # type: ignore[assignment]  # declared as None
