"""Requests and responses as the rest of `ratekeeper.http` sees them, whichever framework they came through."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple, Protocol


class Request(Protocol):
    """A request. Integrations adapt their framework's request; every value is computed only when it is used.

    All functions of one integration get the same kind of request, which has everything that the framework's own has.
    """

    @property
    def method(self) -> str:
        """The method; "WEBSOCKET" for a WebSocket handshake."""

    @property
    def path(self) -> str:
        """The path that the application's routes see: decoded, without the query and without the root path.

        If the application is mounted somewhere, an attribute `root_path` says where.
        """

    @property
    def peer(self) -> str | None:
        """The address of the peer; None if there is none, as with a Unix socket."""

    @property
    def user_id(self) -> str | Awaitable[str | None] | None:
        """The signed-in user, if the framework knows; an awaitable if it has to be looked up first."""

    @property
    def raw(self) -> Any:
        """The framework's own object: an ASGI scope, a WSGI environ or a request."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, by their names in any case."""

    def header(self, name: str) -> Sequence[str]:
        """Return the values of a header, one for each header line; `name` is in lower case."""


class HeaderMapping(Mapping[str, str]):
    """Headers by their names in any case; the values of several lines with one name are joined by commas."""

    def __init__(self, lines: Iterable[tuple[str, str]]) -> None:
        self._values: dict[str, str] = {}
        for name, value in lines:
            lower = name.lower()
            self._values[lower] = f"{self._values[lower]}, {value}" if lower in self._values else value

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def root_of(request: Request) -> str:
    """Return the path at which the application is mounted, which not every kind of request has."""
    root: str = getattr(request, "root_path", "")
    return root


def context_of(request: Request) -> MutableMapping[str, Any]:
    """Return what all limits of a request have in common, such as its ASGI scope; an empty one if it has none."""
    context: MutableMapping[str, Any] | None = getattr(request, "context", None)
    return {} if context is None else context


class Answer(NamedTuple):
    """The application's response, as far as a settlement needs it."""

    status: int
    """The status code; 500 if the application raised an exception."""
    size: int
    """The size of the body in bytes."""


class Reply(NamedTuple):
    """A response that is sent instead of the application's."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    detail: str | None = None
    """The text that the application chose for the usual response."""
