"""The application's side of ASGI."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any

from ratekeeper.service.web import MAX_BODY, Problem, Request, Response, too_large

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


def request_of(scope: Scope, receive: Receive) -> Request:
    """Return the request that a scope tells of."""
    client = scope.get("client")
    return Request(
        scope["method"],
        scope["path"],
        scope["query_string"],
        dict(scope["headers"]),
        client[0] if client else None,
        partial(_read, receive),
    )


async def respond(send: Send, response: Response) -> None:
    """Send an answer."""
    headers = [*response.own, *response.common]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})


async def live(receive: Receive, send: Send, close: Callable[[], Awaitable[None]]) -> None:
    """Hear when the server begins and ends."""
    while True:
        message = await receive()
        if message["type"] == "lifespan.shutdown":
            await close()
            await send({"type": "lifespan.shutdown.complete"})
            return
        await send({"type": "lifespan.startup.complete"})


async def _read(receive: Receive, _: Request) -> bytes:
    content, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Problem(400, "the body ended early")
        content += message.get("body", b"")
        if len(content) > MAX_BODY:
            raise too_large()
        more = message.get("more_body", False)
    return content
