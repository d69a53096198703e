"""What users of Celery and arq write, checked with mypy --strict as they would; nothing here is run."""

from __future__ import annotations

from typing import Any

from celery import Celery, Task

from ratekeeper import AsyncLimiter, Limiter
from ratekeeper.integrations import arq
from ratekeeper.integrations.celery import limited

app = Celery("typed")
budget = Limiter({"all": "100/s", "customer": "10/s"}, "redis://localhost", prefix="mail")


@app.task
@limited("10/s", store="redis://localhost")
def deliver(url: str, body: dict[str, str]) -> int:
    return len(url)


@app.task(bind=True, max_retries=3)
@limited(budget, key=lambda task, customer, tokens: {"all": "all", "customer": customer}, cost=lambda *_: 2)
def send(self: Task[Any, Any], customer: str, tokens: int) -> None: ...


deliver.delay("https://example.com", {})


@limited("10/s", store="redis://localhost", enabled=False)
def keeps_its_type(number: int) -> str:
    return str(number)


keeps_its_type("1").upper()  # type: ignore[arg-type]


@arq.limited("10/s", store="redis://localhost", key=lambda ctx, url: url)
async def fetch(ctx: dict[str, Any], url: str) -> str:
    return url


@arq.limited(AsyncLimiter("10/s"), key="api", enabled=True)
async def call(ctx: dict[str, Any]) -> None: ...


async def direct() -> str:
    return await fetch({}, "https://example.com")


functions = [fetch, call]
limited("10/s", store=3)  # type: ignore[arg-type]
