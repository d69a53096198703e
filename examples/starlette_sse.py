"""A Starlette application with server-sent events: a stream is limited when it starts, not afterwards.

$ pip install '.[starlette]' uvicorn
$ uvicorn examples.starlette_sse:app
$ curl -iN localhost:8000/events

A browser's EventSource does not reconnect after a 429: the page has to wait and open a new one.
With RATEKEEPER_STORE=redis://localhost, all processes share one count.
"""

import asyncio
import itertools
import os

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route as Path

from ratekeeper.integrations.starlette import RateLimitMiddleware, Route


async def events(request):
    async def tell():
        for number in itertools.count():
            yield f"id: {number}\ndata: {number} so far\n\n"
            await asyncio.sleep(0.2)

    return StreamingResponse(tell(), media_type="text/event-stream", headers={"cache-control": "no-store"})


async def hello(request):
    return PlainTextResponse("hello")


app = Starlette(
    routes=[Path("/", hello), Path("/events", events), Path("/healthz", hello)],
    middleware=[
        Middleware(
            RateLimitMiddleware,
            limit="100/minute",
            routes=[Route("/events", {"streams": "5/minute"})],  # how many may start, however long they last
            exempt=["/healthz"],
            store=os.environ.get("RATEKEEPER_STORE", "memory://"),
        )
    ],
)
