"""Asks a running service over HTTP, for commands that show or change what it has."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

from ratekeeper.rates import show

_SECONDS = 10.0
_UNIX = "http+unix:"


class NoAnswer(Exception):
    """The service cannot be reached, or something else answers."""


class ServiceClient:
    """Asks the service at a URL. It follows no redirect and uses no proxy, which would get the token."""

    def __init__(self, url: str, token: str | None = None, seconds: float = _SECONDS) -> None:
        """The URL is `http://HOST:PORT`, `https://HOST:PORT` or, for a Unix socket, `http+unix:FILE`."""
        self._url = url
        self._token = token
        self._seconds = seconds
        self._socket = url.removeprefix(_UNIX) if url.startswith(_UNIX) else None
        try:
            parts = urlsplit(url if self._socket is None else "http://localhost")
            self._is_encrypted, self._port = parts.scheme == "https", parts.port
        except ValueError as error:
            raise ValueError(f"--url {show(url)} is invalid: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or self._socket == "":
            raise ValueError(f"--url must be http://HOST:PORT, https://HOST:PORT or http+unix:FILE, not {show(url)}")
        self._host = parts.hostname
        self._path = parts.path.rstrip("/")

    def ask(
        self, method: str, path: str, query: Mapping[str, object] | None = None, body: object = None
    ) -> tuple[int, Any]:
        """Return the status of the answer, and its JSON; raise NoAnswer if there is none."""
        content = None if body is None else json.dumps(body).encode()
        headers: dict[str, str | bytes] = {} if content is None else {"content-type": "application/json"}
        if self._token is not None:
            headers["authorization"] = b"Bearer " + self._token.encode()
        asked = f"?{urlencode(query)}" if query else ""
        connection = self._connection()
        try:
            connection.request(method, f"{self._path}{path}{asked}", content, headers)
            response = connection.getresponse()
            status, said = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise NoAnswer(f"cannot reach {self._url}: {why}") from None
        finally:
            connection.close()
        try:
            return status, json.loads(said)
        except ValueError:
            raise NoAnswer(f"{self._url} answered {status}, and not as ratekeeper does") from None

    def _connection(self) -> http.client.HTTPConnection:
        if self._socket is not None:
            return _UnixConnection(self._socket, self._seconds)
        if self._is_encrypted:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(self._host, self._port, timeout=self._seconds, context=context)
        return http.client.HTTPConnection(self._host, self._port, timeout=self._seconds)


class _UnixConnection(http.client.HTTPConnection):
    """A connection by way of a Unix socket."""

    def __init__(self, path: str, seconds: float) -> None:
        super().__init__("localhost", timeout=seconds)
        self._file = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._file)
