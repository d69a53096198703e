"""A FastAPI application with every way to limit a route; each client, by its header x-client, has its own limits."""

import os
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, WebSocket
from fastapi.responses import PlainTextResponse, StreamingResponse
from starlette.responses import JSONResponse

from ratekeeper import FixedWindow
from ratekeeper.http import Admission, by_header
from ratekeeper.integrations.fastapi import RateLimit, RateLimitMiddleware, document, limited

ONE, TWO, TEN = (FixedWindow(limit, "400 days") for limit in (1, 2, 10))
OPTIONS = {
    "key": by_header("x-client"),
    "store": os.environ.get("RATEKEEPER_STORE", "memory://"),
    "on_error": "raise",  # a fallback would hide a broken engine
    "deadline": 10,  # the machine may be busy
}

app = FastAPI()
tokens = RateLimit(TEN, cost=3, **OPTIONS)
router = APIRouter(prefix="/router", dependencies=[Depends(RateLimit(TWO, name="router", **OPTIONS))])
each = APIRouter(prefix="/each", dependencies=[Depends(RateLimit(ONE, **OPTIONS))])


@app.get("/healthz")
async def healthz():
    return "ok"


@app.get("/dependency", dependencies=[Depends(RateLimit(TWO, **OPTIONS))])
async def dependency(number: int = 1):
    return {"number": number}


@app.get("/sync")
@limited(TWO, **OPTIONS)
def decorated_sync(number: int = 1):
    return {"number": number}


@app.get("/async/{number}")
@limited(TWO, **OPTIONS)
async def decorated(number: int):
    return {"number": number}


@app.get("/response")
@limited(TWO, **OPTIONS)
async def response():
    return PlainTextResponse("plain")


@app.get("/stream")
@limited(TWO, **OPTIONS)
async def stream():
    return StreamingResponse(str(number) for number in range(10))


@app.get("/twice")
@limited({"two": TWO}, **OPTIONS)
@limited({"one": ONE}, **OPTIONS)
async def twice(rest: str = "x"):
    return rest


@app.post("/complete")
async def complete(spent: Annotated[Admission | None, Depends(tokens)], real: int):
    await tokens.correct(spent, real)
    return "done"


@app.get("/shaped", dependencies=[Depends(RateLimit("leaky-bucket 50/s burst 5 shaping", **OPTIONS))])
async def shaped():
    return "in turn"


@router.get("/a")
@router.get("/b")
async def of_the_router():
    return "routed"


@each.get("/a")
async def each_a():
    return "a"


@each.get("/b")
async def each_b():
    return "b"


@app.websocket("/talk")
async def talk(websocket: WebSocket, _: Annotated[Admission | None, Depends(RateLimit(ONE, **OPTIONS))]):
    await websocket.accept()
    await websocket.send_text("hi")
    await websocket.close()


app.include_router(router)
app.include_router(each)
document(app)

own = FastAPI()  # an application that answers denials itself, mounted


@own.exception_handler(429)
async def too_many(request, error):
    return JSONResponse({"sorry": error.decision.limit}, 429)


@own.get("/", dependencies=[Depends(RateLimit(ONE, **OPTIONS))])
async def limited_here():
    return "here"


app.mount("/own", own)

both = FastAPI()  # the middleware around a dependency, mounted


@both.get("/", dependencies=[Depends(RateLimit({"inner": TWO}, **OPTIONS))])
async def limited_twice():
    return "both"


both.add_middleware(RateLimitMiddleware, limit={"outer": TEN}, prefix="outer", **OPTIONS)
app.mount("/both", both)
