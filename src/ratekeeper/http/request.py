"""What the rest of `ratekeeper.http` knows of a request, whichever framework it came through."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, NamedTuple, Protocol


class Request(Protocol):
    """A request. An integration adapts what its framework has; nothing is computed before it is asked for."""

    @property
    def method(self) -> str:
        """The method in capitals; "WEBSOCKET" for a connection that is to be one."""

    @property
    def path(self) -> str:
        """The path, decoded, without the query."""

    @property
    def peer(self) -> str | None:
        """The address of the other end of the socket; None if it has none, as a Unix socket has."""

    @property
    def user_id(self) -> str | Awaitable[str | None] | None:
        """Who is signed in, if the framework knows; some have to look it up first."""

    @property
    def raw(self) -> Any:
        """What the framework has: an ASGI scope, a WSGI environ, a request object."""

    def header(self, name: str) -> Sequence[str]:
        """Return the values of a header, one for each line it came in; `name` is in lower case."""


class Answer(NamedTuple):
    """What a request was answered with, as far as a settlement needs it."""

    status: int
    """The status; 500 if the application raised."""
    size: int
    """How many bytes the body had."""


class Reply(NamedTuple):
    """An answer that is given instead of the application's."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
