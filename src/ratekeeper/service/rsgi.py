"""The service behind RSGI, granian's own interface, which costs the server a third less than ASGI."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from ratekeeper.http.headers import EncodedFields
from ratekeeper.service.app import App
from ratekeeper.service.connections import Connections
from ratekeeper.service.web import CLOSE, FOR_DATA, FOR_PAGES, Problem, ServiceRequest, joined, repeated

if TYPE_CHECKING:
    from granian.rsgi import Scope

BODY_SECONDS = 10  # the time that a body has to arrive


def _as_text(fields: EncodedFields) -> list[tuple[str, str]]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in fields]


_FOR_DATA, _FOR_PAGES = _as_text(FOR_DATA), _as_text(FOR_PAGES)  # made once, used for every response
_CLOSE = _as_text(CLOSE)


class Rsgi:
    """An application as granian calls it."""

    def __init__(self, app: App, connections: Connections) -> None:
        self._answer = app.answer
        self._connections = connections
        self._reading: dict[asyncio.Task[Any], float] = {}  # the tasks that wait for a body, and since when
        self._watches = False
        self.ends_connections = False
        """Whether each response closes its connection."""
        self.started = asyncio.Event()
        """Set when granian accepts connections, or has failed to."""

    def __rsgi_init__(self, loop: Any) -> None:
        """Begin: granian calls this just before it accepts connections, or fails to."""
        loop.call_soon(self.started.set)

    def __rsgi_del__(self, loop: Any) -> None:
        """End."""

    async def __rsgi__(self, scope: Scope, protocol: Any) -> None:
        fields = scope.headers.items()
        headers = {name.encode(): value.encode() for name, value in fields}
        request = ServiceRequest(
            scope.method,
            scope.path,
            scope.query_string.encode(),
            headers,
            () if len(headers) == len(fields) else repeated(name.encode() for name, _ in fields),
            scope.client.rpartition(":")[0],
            partial(self._read, protocol),
        )
        response = await self._answer(request)
        common = _FOR_DATA if response.common is FOR_DATA else _FOR_PAGES
        own = _as_text(response.own)
        if self.ends_connections or self._connections.is_crowded:
            own += _CLOSE
        protocol.response_bytes(response.status, own + common, response.body)

    async def _read(self, protocol: Any, request: ServiceRequest) -> bytes:
        """Return the body; raise a problem if it does not arrive in time."""
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - granian runs the application as one
        self._reading[task] = loop.time()
        if not self._watches:
            self._watches = True
            loop.call_later(BODY_SECONDS / 10, self._watch, loop)
        try:
            return await _body(protocol, request)
        except RuntimeError:  # the type of granian's errors
            raise Problem(400, "the body ended prematurely") from None
        except asyncio.CancelledError:
            raise Problem(408, f"the body did not arrive within {BODY_SECONDS} s", headers=CLOSE) from None
        finally:
            del self._reading[task]

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancel tasks whose body is late. One timer serves all of them, since most bodies arrive at once."""
        late = loop.time() - BODY_SECONDS
        for task, since in list(self._reading.items()):
            if since <= late:
                task.cancel()
        self._watches = bool(self._reading)
        if self._watches:
            loop.call_later(BODY_SECONDS / 10, self._watch, loop)


async def _body(protocol: Any, request: ServiceRequest) -> bytes:
    if b"transfer-encoding" not in request.headers:  # nearly always; its length has been checked
        return bytes(await protocol())
    return await joined(protocol, request.max_bytes)
