"""The service behind ASGI: scopes to requests, responses to messages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

from ratekeeper.http.asgi_types import Message, Receive, Scope, Send
from ratekeeper.service.web import Problem, Response, ServiceRequest, joined, repeated


def request_of(scope: Scope, receive: Receive) -> ServiceRequest:
    """Return the request of a scope."""
    client = scope.get("client")
    fields = list(scope["headers"])
    headers = dict(fields)
    return ServiceRequest(
        scope["method"],
        scope["path"],
        scope["query_string"],
        headers,
        () if len(headers) == len(fields) else repeated(name for name, _ in fields),
        client[0] if client else None,
        partial(_read, receive),
    )


async def respond(send: Send, response: Response) -> None:
    """Send a response."""
    headers = [*response.own, *response.common]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})


async def live(
    receive: Receive, send: Send, begin: Callable[[], Awaitable[None]], close: Callable[[], Awaitable[None]]
) -> None:
    """Answer the lifespan messages; call `begin` at the start and `close` at shutdown."""
    while True:
        message = await receive()
        if message["type"] == "lifespan.shutdown":
            await close()
            await send({"type": "lifespan.shutdown.complete"})
            return
        await begin()
        await send({"type": "lifespan.startup.complete"})


async def _read(receive: Receive, request: ServiceRequest) -> bytes:
    message = await receive()
    content: bytes = message.get("body", b"")
    if message["type"] != "http.request" or message.get("more_body") or len(content) > request.max_bytes:
        return await joined(_parts(message, receive), request.max_bytes)
    return content  # nearly always


async def _parts(message: Message, receive: Receive) -> AsyncIterator[bytes]:
    """Yield the parts of a body, of which `message` is the first."""
    while message["type"] != "http.disconnect":
        yield message.get("body", b"")
        if not message.get("more_body"):
            return
        message = await receive()
    raise Problem(400, "the body ended prematurely")
