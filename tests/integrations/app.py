"""The application that the real servers run: every client, by its header x-client, has limits of its own."""

import asyncio
import collections
import os

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route as Path
from starlette.routing import WebSocketRoute

from ratekeeper import FixedWindow
from ratekeeper.http import by_header
from ratekeeper.integrations.asgi import RateLimitMiddleware, Route

LONG = "400 days"  # a window that does not end while the tests run
seen = collections.Counter()


async def hello(request):
    seen[request.headers.get("x-client")] += 1
    return PlainTextResponse("hello")


async def how_many(request):
    return PlainTextResponse(str(seen[request.query_params["client"]]))


async def stream(request):
    async def chunks():
        for number in range(100):
            yield f"{number}\n"
            await asyncio.sleep(0)

    return StreamingResponse(chunks(), media_type="text/plain", background=BackgroundTask(note, request))


async def note(request):
    """Work in the background, which begins when the answer has gone out and its cost is settled."""
    seen[f"background {request.headers['x-client']}"] += 1


async def events(request):
    async def tell():
        for number in range(5):
            yield f"data: {number}\n\n"
            await asyncio.sleep(0.01)

    return StreamingResponse(tell(), media_type="text/event-stream")


async def long(request):
    async def chunks():
        try:
            while True:
                yield "x" * 1000
                await asyncio.sleep(0.01)
        finally:
            seen[f"ended {request.headers['x-client']}"] += 1

    return StreamingResponse(chunks(), media_type="text/plain")


async def quiet(request):
    """Send something, and then nothing for longer than anyone waits."""

    async def chunks():
        yield "x" * 290
        await asyncio.sleep(3600)

    return StreamingResponse(chunks(), media_type="text/plain")


async def not_modified(request):
    return Response(status_code=304, headers={"etag": '"1"'})


async def fails(request):
    raise LookupError("the view failed")


async def background(request):
    return PlainTextResponse("accepted", background=BackgroundTask(note, request))


async def echo(request):
    seen[request.headers.get("x-client")] += 1
    return PlainTextResponse(await request.body())


async def talk(websocket):
    await websocket.accept()
    async for text in websocket.iter_text():
        await websocket.send_text(text.upper())


async def plan(request):
    await asyncio.sleep(0)  # as if it asked a database
    return {"free": "1/day", "house": None}.get(request.header("x-plan")[0])


def cost_of(request):
    return int((request.header("x-cost") or ["100"])[0])


def size_of(request, answer):
    return answer.size


paths = [
    Path("/", hello, methods=["GET", "HEAD"]),
    Path("/healthz", hello),
    Path("/seen", how_many),
    Path("/stream", stream),
    Path("/events", events),
    Path("/long", long),
    Path("/quiet", quiet),
    Path("/not-modified", not_modified),
    Path("/fails", fails),
    Path("/background", background),
    Path("/echo", echo, methods=["POST"]),
    Path("/shaped", hello),
    Path("/shaped", echo, methods=["POST"]),
    Path("/held", echo, methods=["POST"]),
    Path("/sized", stream),
    Path("/plan", hello),
    Path("/concurrent", hello),
    Path("/brief", hello),
    WebSocketRoute("/talk", talk),
]
app = RateLimitMiddleware(
    Starlette(routes=paths),
    {"three": FixedWindow(3, LONG)},
    key=by_header("x-client"),
    exempt=["/healthz", "/seen"],
    routes=[
        Route("/shaped", "leaky-bucket 50/s burst 20 shaping"),
        Route("/held", "leaky-bucket 1/s burst 20 shaping"),
        Route("/sized", FixedWindow(1000, LONG), cost=cost_of, settle=size_of),
        Route("/quiet", FixedWindow(1000, LONG), cost=100, settle=size_of, name="quiet"),
        Route("/quiet/one", FixedWindow(1000, LONG), name="quiet"),
        Route("/plan", plan),
        Route("/concurrent", FixedWindow(50, LONG)),
        Route("/brief", "fixed-window 2/s"),
    ],
    store=os.environ.get("RATEKEEPER_STORE", "memory://"),
    on_error="raise",  # a fallback would hide a broken engine
    deadline=10,  # the machine may be busy
)
