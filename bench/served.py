"""The applications of the suite `asgi`, each with one route; `uvicorn bench.served:slowapi` serves one of them."""

import os

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import PlainTextResponse

from ratekeeper import FixedWindow
from ratekeeper.integrations.asgi import RateLimitMiddleware

STORE = os.environ.get("RATEKEEPER_STORE", "memory://")
LIMIT = 1_000_000_000  # a minute: nobody is denied


async def hello():
    return PlainTextResponse("hello")


def make_bare():
    app = FastAPI()
    app.add_api_route("/", hello)
    return app


def make_ratekeeper():
    rules = {"default": FixedWindow(LIMIT, 60)}
    return RateLimitMiddleware(make_bare(), rules, store=STORE, on_error="raise", deadline=10)


def make_slowapi():
    from slowapi import Limiter
    from slowapi.middleware import SlowAPIASGIMiddleware
    from slowapi.util import get_remote_address

    app = make_bare()
    uri = STORE if STORE.startswith("redis") else None
    app.state.limiter = Limiter(
        get_remote_address, default_limits=[f"{LIMIT}/minute"], headers_enabled=True, storage_uri=uri
    )
    app.add_middleware(SlowAPIASGIMiddleware)
    return app


def make_fastapi_limiter():
    from contextlib import asynccontextmanager

    import redis.asyncio
    from fastapi_limiter.depends import RateLimiter
    from pyrate_limiter import Duration, Limiter, Rate, RedisBucket

    limited = []

    @asynccontextmanager
    async def lifespan(app):
        bucket = await RedisBucket.init([Rate(LIMIT, Duration.MINUTE)], redis.asyncio.Redis.from_url(STORE), "bench")
        limited.append(RateLimiter(Limiter(bucket)))
        yield

    async def limit(request: Request, response: Response):
        await limited[0](request, response)

    app = FastAPI(lifespan=lifespan)
    app.add_api_route("/", hello, dependencies=[Depends(limit)])
    return app


def __getattr__(name):
    try:
        return globals()[f"make_{name}"]()
    except KeyError:
        raise AttributeError(name) from None
