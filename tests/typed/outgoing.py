"""What users of httpx, httpx2, requests and SDKs write, checked with mypy --strict as they do; nothing here is run."""

from __future__ import annotations

import anthropic
import httpx
import httpx2
import openai
import requests

import ratekeeper.integrations.httpx2
from ratekeeper import AsyncLimiter, FixedWindow, Limiter, RateLimited
from ratekeeper.http import with_headroom
from ratekeeper.integrations.httpx import AsyncLimitedTransport, LimitedTransport
from ratekeeper.integrations.requests import LimitedAdapter


def estimate(request: httpx.Request) -> dict[str, int]:
    return {"requests": 1, "tokens": len(request.content) // 4}


def used(response: httpx.Response) -> dict[str, int] | None:
    if response.status_code != 200:
        return None
    return {"tokens": int(response.json()["usage"]["total_tokens"])}


def host(request: httpx.Request) -> str | None:
    return request.url.host or None


def sync_client() -> str:
    budget = Limiter({"requests": "500/minute", "tokens": FixedWindow(30_000, 60)}, "redis://localhost")
    transport = LimitedTransport(
        budget,
        transport=httpx.HTTPTransport(http2=True),
        key=host,
        cost=estimate,
        settle=used,
        timeout=30,
        retries=2,
        retry_methods=["POST"],
    )
    with httpx.Client(transport=transport) as client:
        try:
            return client.get("https://api.example.com/").text
        except RateLimited as error:
            return f"{error.decision.retry_after}"


async def async_client() -> str:
    transport = AsyncLimitedTransport(AsyncLimiter("10/s burst 20"), key=lambda request: request.url.host)
    async with httpx.AsyncClient(transport=transport) as client:
        return (await client.get("https://api.example.com/")).text


def model(request: httpx2.Request) -> str | None:
    return request.headers.get("x-model")


def tokens(response: httpx2.Response) -> dict[str, int] | None:
    return {"tokens": int(response.headers["x-tokens"])} if response.status_code == 200 else None


def openai_client() -> openai.OpenAI:
    budget = Limiter(with_headroom({"requests": "500/minute", "tokens": FixedWindow(30_000, 60)}, 0.05))
    transport = ratekeeper.integrations.httpx2.LimitedTransport(
        budget, transport=httpx2.HTTPTransport(http2=True), key=model, settle=tokens
    )
    return openai.OpenAI(http_client=openai.DefaultHttpxClient(transport=transport), max_retries=0)


async def anthropic_client() -> anthropic.AsyncAnthropic:
    transport = ratekeeper.integrations.httpx2.AsyncLimitedTransport(
        "10/s burst 20", "redis://localhost", key=lambda request: request.url.host, headroom=0.05
    )
    return anthropic.AsyncAnthropic(http_client=httpx2.AsyncClient(transport=transport))


def prefixes(request: requests.PreparedRequest) -> str:
    return request.path_url.split("/")[1]


def session() -> requests.Response:
    with requests.Session() as session:
        session.mount("https://", LimitedAdapter("10/s", "redis://localhost", key=prefixes, cost=2, timeout=0.5))
        session.mount("http://", LimitedAdapter(Limiter("1/s"), settle=lambda response: len(response.content)))
        return session.get("https://api.example.com/")
