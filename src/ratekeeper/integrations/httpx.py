"""Transports for httpx that wait for a budget before they send.

    client = httpx.Client(transport=LimitedTransport("10/s burst 20"))
    client = httpx.AsyncClient(transport=AsyncLimitedTransport("10/s burst 20", "redis://localhost"))

Keys, costs and responses are handled alike for all libraries, by `ratekeeper.http.outgoing`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterator
from typing import Any

import httpx

from ratekeeper.http.outgoing import IDEMPOTENT, Library, Outgoing, by_host
from ratekeeper.http.settlement import Settlement
from ratekeeper.limiter import AsyncLimiter, Limiter
from ratekeeper.rules import Rules
from ratekeeper.ruleset import Costs, Keys
from ratekeeper.stores import Store

__all__ = ["AsyncLimitedTransport", "LimitedTransport"]

_NEVER_LEFT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError, httpx.UnsupportedProtocol)


class LimitedTransport(httpx.BaseTransport):
    """Sends requests with `transport` once the rules admit them, first come, first served, after any shaping delay.

    `limit` is rules, counted on `store`, or a limiter. `key` returns the key of a request (None: not limited), `cost`
    is what a request consumes, and `settle` returns the real cost for a complete response (None: as estimated). A wait
    longer than `timeout` raises RateLimited before anything is sent. After a 429 or 503 with a retry time, a request is
    sent again up to `retries` times, if its method is one of `retry_methods`. `enabled=False` sends everything at once.
    """

    def __init__(
        self,
        limit: Rules | Limiter,
        store: str | Store = "memory://",
        *,
        transport: httpx.BaseTransport | None = None,
        key: Callable[[httpx.Request], Keys | None] = by_host,
        cost: Costs | Callable[[httpx.Request], Costs] = 1,
        settle: Callable[[httpx.Response], Costs | None] | None = None,
        timeout: float | None = None,
        retries: int = 0,
        retry_methods: Collection[str] = IDEMPOTENT,
        enabled: bool = True,
    ) -> None:
        self._outgoing = Outgoing(
            limit,
            store,
            kind=Limiter,
            library=Library(_can_repeat, _never_left, httpx.Response.read, _watch),
            key=key,
            cost=cost,
            settle=settle,
            timeout=timeout,
            retries=retries,
            retry_methods=retry_methods,
            enabled=enabled,
        )
        self._transport = httpx.HTTPTransport() if transport is None else transport

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request once it is admitted."""
        response: httpx.Response = self._outgoing.send(request, lambda: self._transport.handle_request(request))
        return response

    def close(self) -> None:
        """Close the transport, and the store if it was given as a URL."""
        self._transport.close()
        if self._outgoing.own is not None:
            self._outgoing.own.close()


class AsyncLimitedTransport(httpx.AsyncBaseTransport):
    """A `LimitedTransport` for asyncio; `key`, `cost` and `settle` are still plain functions."""

    def __init__(
        self,
        limit: Rules | AsyncLimiter,
        store: str | Store = "memory://",
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        key: Callable[[httpx.Request], Keys | None] = by_host,
        cost: Costs | Callable[[httpx.Request], Costs] = 1,
        settle: Callable[[httpx.Response], Costs | None] | None = None,
        timeout: float | None = None,
        retries: int = 0,
        retry_methods: Collection[str] = IDEMPOTENT,
        enabled: bool = True,
    ) -> None:
        self._outgoing = Outgoing(
            limit,
            store,
            kind=AsyncLimiter,
            library=Library(_can_repeat, _never_left, httpx.Response.aread, _watch_async),
            key=key,
            cost=cost,
            settle=settle,
            timeout=timeout,
            retries=retries,
            retry_methods=retry_methods,
            enabled=enabled,
        )
        self._transport = httpx.AsyncHTTPTransport() if transport is None else transport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request once it is admitted."""
        response: httpx.Response = await self._outgoing.send_async(
            request, lambda: self._transport.handle_async_request(request)
        )
        return response

    async def aclose(self) -> None:
        """Close the transport, and the store if it was given as a URL."""
        await self._transport.aclose()
        if self._outgoing.own is not None:
            await self._outgoing.own.close()


def _can_repeat(request: httpx.Request) -> bool:
    return isinstance(request.stream, httpx.ByteStream)


def _never_left(error: Exception) -> bool:
    return isinstance(error, _NEVER_LEFT)


def _watch(request: httpx.Request, response: httpx.Response, settlement: Settlement) -> None:
    response.stream = _WatchedStream(request, response, settlement)


def _watch_async(request: httpx.Request, response: httpx.Response, settlement: Settlement) -> None:
    response.stream = _AsyncWatchedStream(request, response, settlement)


class _Watching:
    """Copies a body chunk by chunk as it is read."""

    def __init__(self, request: httpx.Request, response: httpx.Response, settlement: Settlement) -> None:
        self._request = request
        self._response = response
        self._stream: Any = response.stream
        self._settlement = settlement

    def _answer(self, body: bytes) -> httpx.Response:
        """Return a response that has been read; the one that the caller reads is not changed."""
        seen = self._response
        return httpx.Response(seen.status_code, headers=seen.headers, content=body, request=self._request)


class _WatchedStream(_Watching, httpx.SyncByteStream):
    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._stream:
            self._settlement.keep(chunk)
            yield chunk
        self._settlement.run(self._answer)

    def close(self) -> None:
        self._stream.close()


class _AsyncWatchedStream(_Watching, httpx.AsyncByteStream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            self._settlement.keep(chunk)
            yield chunk
        await self._settlement.run_async(self._answer)

    async def aclose(self) -> None:
        await self._stream.aclose()
