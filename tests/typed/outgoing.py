"""What users of httpx and requests write, checked with mypy --strict as they would check it; nothing here is run."""

from __future__ import annotations

import httpx
import requests

from ratekeeper import AsyncLimiter, FixedWindow, Limiter, RateLimited
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


def prefixes(request: requests.PreparedRequest) -> str:
    return request.path_url.split("/")[1]


def session() -> requests.Response:
    with requests.Session() as session:
        session.mount("https://", LimitedAdapter("10/s", "redis://localhost", key=prefixes, cost=2, timeout=0.5))
        session.mount("http://", LimitedAdapter(Limiter("1/s"), settle=lambda response: len(response.content)))
        return session.get("https://api.example.com/")
