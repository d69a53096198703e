"""Transports for httpx2 that wait for a budget before they send.

    client = httpx2.Client(transport=LimitedTransport("10/s burst 20"))
    client = httpx2.AsyncClient(transport=AsyncLimitedTransport("10/s burst 20", "redis://localhost"))

They are those of `ratekeeper.integrations.httpx`, for the library that the SDKs of openai and anthropic use today.
"""

from __future__ import annotations

import httpx2

from ratekeeper.integrations.transports import AsyncTransport, SyncTransport

__all__ = ["AsyncLimitedTransport", "LimitedTransport"]


class LimitedTransport(
    SyncTransport[httpx2.Request, httpx2.Response, httpx2.BaseTransport], httpx2.BaseTransport, http=httpx2
):
    """Sends requests with `transport` once the rules admit them, first come, first served, after any shaping delay.

    The arguments are those of `ratekeeper.integrations.httpx.LimitedTransport`.
    """


class AsyncLimitedTransport(
    AsyncTransport[httpx2.Request, httpx2.Response, httpx2.AsyncBaseTransport], httpx2.AsyncBaseTransport, http=httpx2
):
    """A `LimitedTransport` for asyncio; `key`, `cost` and `settle` are still plain functions."""
