"""granian, the HTTP server under the service, on a socket that is ours."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from contextlib import closing

from granian.constants import HTTPModes, Interfaces, SSLProtocols
from granian.http import HTTP1Settings
from granian.net import SocketHolder  # type: ignore[attr-defined]  # which it does not export
from granian.server.embed import Server

from ratekeeper.service.certificates import Certificate
from ratekeeper.service.listening import BACKLOG, unreachable
from ratekeeper.service.rsgi import Rsgi

MAX_HEADER_BYTES = 16 * 1024
HEADER_SECONDS = 10  # the time that headers have to arrive


class GranianServer(Server):
    """A server that takes the connections of a listening socket.

    granian has no public way to pass one. It is ours, because granian's own sockets panic if they cannot be opened.
    """

    def __init__(
        self, application: Rsgi, listener: socket.socket, most_connections: int, certificate: Certificate | None
    ) -> None:
        super().__init__(
            application,
            interface=Interfaces.RSGI,
            http=HTTPModes.http1,
            websockets=False,
            backlog=BACKLOG,
            backpressure=most_connections,
            http1_settings=HTTP1Settings(header_read_timeout=HEADER_SECONDS * 1_000, max_buffer_size=MAX_HEADER_BYTES),
            log_enabled=False,
            ssl_cert=None if certificate is None else certificate.chain,
            ssl_key=None if certificate is None else certificate.key,
            ssl_protocol_min=SSLProtocols.tls12,
        )
        self._application = application
        self._listener = listener
        self._descriptor = -1

    async def start(self) -> asyncio.Task[None]:
        """Start serving, and return the task that serves; raise a RuntimeError if it cannot."""
        task = asyncio.ensure_future(self.serve())
        started = asyncio.ensure_future(self._application.started.wait())
        await asyncio.wait([task, started], return_when=asyncio.FIRST_COMPLETED)
        started.cancel()
        if not self.wrks or not self.wrks[0].is_alive():  # type: ignore[no-untyped-call]
            await asyncio.wait([task])
            raise RuntimeError(f"the HTTP server could not start: {task.exception()}")
        return task

    def tell_to_close(self) -> None:
        """Tell clients to close their connections, with each response."""
        self._application.ends_connections = True

    def stop_accepting(self) -> None:
        """Leave the listening socket to others, and tell clients to close their connections.

        granian can only do that and close idle connections at the same time, which cuts off clients that are about to
        send. So its descriptor becomes another socket, to which nobody connects.
        """
        self.tell_to_close()
        with closing(unreachable()) as other:
            os.dup2(other.fileno(), self._descriptor)

    def _init_shared_socket(self) -> None:
        """Use our socket. granian closes its descriptor when it stops."""
        self._descriptor = os.dup(self._listener.fileno())
        needs_backlog = sys.platform in ("linux", "freebsd")
        given = (self._descriptor, self._listener.family == socket.AF_UNIX, *((BACKLOG,) if needs_backlog else ()))
        self._shd = SocketHolder(*given)  # type: ignore[assignment]  # declared as None
