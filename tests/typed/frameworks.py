"""What users of each framework write, checked with mypy --strict as they would check it; nothing here is run."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI
from fastapi import Request as FastApiRequest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request as StarletteRequest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from ratekeeper import AsyncLimiter, Decision, TokenBucket
from ratekeeper.http import (
    Admission,
    Answer,
    Headers,
    Notices,
    Reply,
    Request,
    by_address,
    by_api_key,
    by_user,
    combine,
    current_decision,
    first_of,
)
from ratekeeper.integrations.asgi import RateLimitMiddleware, Route
from ratekeeper.integrations.fastapi import RESPONSES, Connection, RateLimit, document, limited
from ratekeeper.integrations.fastapi import RateLimitMiddleware as FastApiMiddleware


def tenant(request: Request) -> str | None:
    values = request.header("x-tenant")
    return values[0] if values else None


async def plan(request: Request) -> str | None:
    return "100/minute" if tenant(request) else None


def cost(request: Request) -> dict[str, int]:
    return {"requests": 1, "bytes": 100}


def settle(request: Request, answer: Answer) -> dict[str, int]:
    return {"bytes": answer.size}


def deny(request: Request, decision: Decision) -> Reply:
    return Reply(503, [("Content-Type", "text/plain")], str(decision.limit).encode())


async def bare(scope: Scope, receive: Receive, send: Send) -> None: ...


plain = RateLimitMiddleware(bare, "100/minute")
full = RateLimitMiddleware(
    bare,
    {"requests": "100/minute", "bytes": TokenBucket(1_000_000, 100_000)},
    key=combine(tenant, first_of(by_user(), by_api_key(), by_address(["10.0.0.0/8"]))),
    cost=cost,
    settle=settle,
    deny=deny,
    exempt=["/healthz", lambda request: "x-internal" in request.headers],
    routes=[Route("/login", "5/minute", methods=["POST"]), Route("/api/*", plan), Route("/x", AsyncLimiter("1/s"))],
    headers=Headers(legacy=False, units={"bytes": "content-bytes"}),
    unidentified="deny",
    store="redis://localhost",
    on_error="open",
)


@limited("10/minute")
async def hello(request: StarletteRequest) -> PlainTextResponse:
    return PlainTextResponse("hello")


starlette_app = Starlette(middleware=[Middleware(RateLimitMiddleware, limit="100/minute", exempt=["/healthz"])])
starlette_app.add_middleware(RateLimitMiddleware, "100/minute", key=by_address(trusted_hops=1))

app = FastAPI(dependencies=[Depends(RateLimit("1000/minute", name="app"))])
app.add_middleware(RateLimitMiddleware, limit="100/minute")


def current_user() -> str:
    return "ada"


by_dependency = RateLimit("10/minute", key=by_user(), user=current_user, deny="Slow down, please.", shadow=True)
in_tests = RateLimit("10/minute", name="tests", per_method=True, enabled=False, notices=Notices())
router = APIRouter(dependencies=[Depends(RateLimit("100/minute", key=by_user()))], responses=RESPONSES)
tokens = RateLimit({"tokens": "10000/minute"}, cost=500)
document(app)


def by_session(connection: Connection) -> str | None:
    return connection.cookies.get("session")


def of_plan(key: str) -> str:
    return "1000/minute" if key.startswith("user:") else "100/minute"


app.add_middleware(FastApiMiddleware, limit=of_plan, default="10/minute", store="redis://localhost")
app.add_middleware(FastApiMiddleware, default=Route("*", "10/minute", per_method=True), key=by_session)


@app.get("/decision")
def decision(request: FastApiRequest) -> int | None:
    found = current_decision(request)
    return None if found is None else found.remaining


@app.get("/items/{number}")
@limited("10/minute", key=by_session, methods=["GET"], override_defaults=False)
async def item(number: int) -> dict[str, int]:
    return {"number": number}


@app.post("/complete")
async def complete(spent: Annotated[Admission | None, Depends(tokens)]) -> str:
    await tokens.correct(spent, {"tokens": 730})
    return "done"
