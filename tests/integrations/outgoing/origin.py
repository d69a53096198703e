"""A real HTTP server on a socket that notes what reaches it, and when on the test's clock."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Arrival(NamedTuple):
    method: str
    path: str
    body: bytes
    at: float


class Said(NamedTuple):
    """The server's response; None as a status closes the connection instead."""

    status: int | None = 200
    headers: dict[str, str] = {}  # noqa: RUF012 - never changed
    body: Any = b"ok"
    """Bytes, or a function that gets a function to send a chunk."""
    before: Callable[[], object] = bool
    """Called before the answer."""


class Origin:
    """Answers what `says` holds, one after another, and "ok" when that is used up."""

    def __init__(self, now=lambda: 0.0):
        self.arrivals: list[Arrival] = []
        self.says: deque[Said] = deque()
        self._now = now
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"origin": self}))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def arrive(self, method, path, body):
        with self._lock:
            self.arrivals.append(Arrival(method, path, body, self._now()))
            return self.says.popleft() if self.says else Said()

    @property
    def times(self):
        """When requests arrived, in seconds since the start of the test."""
        return [arrival.at for arrival in self.arrivals]

    def stop(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # all clients of a test may connect at once


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    origin: Origin

    def handle_any(self):
        said = self.origin.arrive(self.command, self.path, self._body())
        said.before()
        if said.status is None:
            self.close_connection = True
            return
        self.send_response_only(said.status)
        for name, value in said.headers.items():
            self.send_header(name, value)
        if isinstance(said.body, bytes):
            self.send_header("Content-Length", str(len(said.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(said.body)
        else:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            said.body(lambda chunk: self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk)))
            self.wfile.write(b"0\r\n\r\n")

    do_GET = do_HEAD = do_POST = do_PUT = handle_any  # noqa: N815 - as http.server calls them

    def _body(self):
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def log_message(self, *args):
        pass
