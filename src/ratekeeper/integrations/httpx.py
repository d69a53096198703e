"""Transports for httpx that wait for a budget before they send.

    client = httpx.Client(transport=LimitedTransport("10/s burst 20"))
    client = httpx.AsyncClient(transport=AsyncLimitedTransport("10/s burst 20", "redis://localhost"))

`ratekeeper.integrations.httpx2` has the same for httpx2.
"""

from __future__ import annotations

import httpx

from ratekeeper.integrations.transports import AsyncTransport, SyncTransport

__all__ = ["AsyncLimitedTransport", "LimitedTransport"]


class LimitedTransport(
    SyncTransport[httpx.Request, httpx.Response, httpx.BaseTransport], httpx.BaseTransport, http=httpx
):
    """Sends requests with `transport` once the rules admit them, first come, first served, after any shaping delay.

    `limit` is rules, counted on `store`, or a limiter. `key` returns the key of a request (None: not limited), `cost`
    is what a request consumes, and `settle` returns the real cost for a response once it is closed (None: as
    estimated). A wait longer than `timeout` raises RateLimited before anything is sent. After a 429 or 503 with a retry
    time, a request is sent again up to `retries` times, if its method is one of `retry_methods`. `headroom` makes the
    rules stricter by a share, for requests that take longer to arrive than others. `enabled=False` sends everything at
    once.
    """


class AsyncLimitedTransport(
    AsyncTransport[httpx.Request, httpx.Response, httpx.AsyncBaseTransport], httpx.AsyncBaseTransport, http=httpx
):
    """A `LimitedTransport` for asyncio; `key`, `cost` and `settle` are still plain functions."""
