"""A WebSocket application: connections are denied before they are accepted, and fast senders are told to slow down.

$ pip install '.[starlette]' uvicorn websockets
$ uvicorn examples.websocket_app:app
$ websockets ws://localhost:8000/talk

With RATEKEEPER_STORE=redis://localhost, all processes share one count.
"""

import asyncio
import contextlib
import os

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route as Path
from starlette.routing import WebSocketRoute

from ratekeeper import AsyncLimiter
from ratekeeper.http import by_address
from ratekeeper.integrations.asgi import RateLimitMiddleware, Route, ScopeRequest

STORE = os.environ.get("RATEKEEPER_STORE", "memory://")
messages = AsyncLimiter({"messages": "1/s burst 10"}, STORE)
address = by_address()


async def talk(websocket):
    client = address(ScopeRequest(websocket.scope)) or "unknown"  # all connections of a client count together
    await websocket.accept()
    async for text in websocket.iter_text():
        decision = await messages.hit(client)
        if decision:
            await websocket.send_json({"echo": text})
        else:
            await websocket.send_json({"error": "slow down", "not_done": text, "retry_after": decision.retry_after})
            await asyncio.sleep(decision.retry_after)  # messages that arrive meanwhile wait in the socket


async def healthz(request):
    return PlainTextResponse("ok")


@contextlib.asynccontextmanager
async def lifespan(_):
    async with messages:
        yield


app = RateLimitMiddleware(
    Starlette(routes=[WebSocketRoute("/talk", talk), Path("/healthz", healthz)], lifespan=lifespan),
    routes=[Route("/talk", {"connections": "5/minute"}, methods=["WEBSOCKET"])],
    store=STORE,
)
