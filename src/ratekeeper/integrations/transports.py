"""What the transports for httpx and httpx2 share: both libraries have the same interface, with classes of their own.

Keys, costs and responses are handled alike for all libraries, by `ratekeeper.http.outgoing`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterator
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from ratekeeper.http.outgoing import IDEMPOTENT, Library, Outgoing, by_host
from ratekeeper.http.settlement import Settlement
from ratekeeper.limiter import AsyncLimiter, Limiter
from ratekeeper.rules import Rules
from ratekeeper.ruleset import Costs, Keys
from ratekeeper.stores import Store

AnyLimiter = TypeVar("AnyLimiter", Limiter, AsyncLimiter)
AnyRequest = TypeVar("AnyRequest")
AnyResponse = TypeVar("AnyResponse")
Inner = TypeVar("Inner")


class Transport(Generic[AnyLimiter, AnyRequest, AnyResponse, Inner]):
    """What the transports for threads and for asyncio share."""

    _kind: ClassVar[type[Limiter | AsyncLimiter]]
    _library: ClassVar[Library]
    _inner_class: ClassVar[type[Any]]

    def __init__(
        self,
        limit: Rules | AnyLimiter,
        store: str | Store = "memory://",
        *,
        transport: Inner | None = None,
        key: Callable[[AnyRequest], Keys | None] = by_host,
        cost: Costs | Callable[[AnyRequest], Costs] = 1,
        settle: Callable[[AnyResponse], Costs | None] | None = None,
        timeout: float | None = None,
        retries: int = 0,
        retry_methods: Collection[str] = IDEMPOTENT,
        headroom: float = 0,
        enabled: bool = True,
    ) -> None:
        self._outgoing = Outgoing(
            limit,
            store,
            kind=self._kind,
            library=self._library,
            key=key,
            cost=cost,
            settle=settle,
            timeout=timeout,
            retries=retries,
            retry_methods=retry_methods,
            headroom=headroom,
            enabled=enabled,
        )
        self._inner: Any = self._inner_class() if transport is None else transport


class SyncTransport(Transport[Limiter, AnyRequest, AnyResponse, Inner]):
    """A transport for threads. `http`, given with the class, is the library: httpx or httpx2."""

    def __init_subclass__(cls, http: Any = None) -> None:
        super().__init_subclass__()
        if http is not None:
            stream = _stream_class(_WatchedStream, http.SyncByteStream, http)
            cls._kind = Limiter
            cls._library = _library(http, http.Response.read, partial(_watch, stream))
            cls._inner_class = http.HTTPTransport

    def handle_request(self, request: AnyRequest) -> AnyResponse:
        """Send a request once it is admitted."""
        response: AnyResponse = self._outgoing.send(request, lambda: self._inner.handle_request(request))
        return response

    def close(self) -> None:
        """Close the transport, and the store if it was given as a URL."""
        self._inner.close()
        if self._outgoing.own is not None:
            self._outgoing.own.close()


class AsyncTransport(Transport[AsyncLimiter, AnyRequest, AnyResponse, Inner]):
    """A transport for asyncio. `http`, given with the class, is the library: httpx or httpx2."""

    def __init_subclass__(cls, http: Any = None) -> None:
        super().__init_subclass__()
        if http is not None:
            stream = _stream_class(_AsyncWatchedStream, http.AsyncByteStream, http)
            cls._kind = AsyncLimiter
            cls._library = _library(http, http.Response.aread, partial(_watch_async, stream))
            cls._inner_class = http.AsyncHTTPTransport

    async def handle_async_request(self, request: AnyRequest) -> AnyResponse:
        """Send a request once it is admitted."""
        response: AnyResponse = await self._outgoing.send_async(
            request, lambda: self._inner.handle_async_request(request)
        )
        return response

    async def aclose(self) -> None:
        """Close the transport, and the store if it was given as a URL."""
        await self._inner.aclose()
        if self._outgoing.own is not None:
            await self._outgoing.own.close()


def _library(http: Any, read: Callable[[Any], Any], watch: Callable[[Any, Any, Settlement], Any]) -> Library:
    never_left = (http.ConnectError, http.ConnectTimeout, http.PoolTimeout, http.ProxyError, http.UnsupportedProtocol)
    return Library(
        can_repeat=lambda request: isinstance(request.stream, http.ByteStream),
        never_left=lambda error: isinstance(error, never_left),
        read=read,
        watch=watch,
    )


def _stream_class(watched: type[_Watching], base: type[Any], http: Any) -> type[_Watching]:
    return type(watched.__name__, (watched, base), {"response_class": http.Response})


def _watch(stream: Callable[..., Any], request: Any, response: Any, settlement: Settlement) -> None:
    if response.is_closed:  # a cache or a mock has read it: nothing will read or close its stream
        response.request = request  # as the client will do
        settlement.run(lambda _: response)
    else:
        response.stream = stream(request, response, settlement)


async def _watch_async(stream: Callable[..., Any], request: Any, response: Any, settlement: Settlement) -> None:
    if response.is_closed:
        response.request = request
        await settlement.run_async(lambda _: response)
    else:
        response.stream = stream(request, response, settlement)


class _Watching:
    """Copies a body chunk by chunk as it is read, and settles when it is closed: clients also close what they read."""

    response_class: ClassVar[Callable[..., Any]]

    def __init__(self, request: Any, response: Any, settlement: Settlement) -> None:
        self._request = request
        self._response = response
        self._stream: Any = response.stream
        self._settlement = settlement

    def _answer(self, body: bytes) -> Any:
        """Return a response that has been read; the one that the caller reads is not changed."""
        seen = self._response
        return self.response_class(seen.status_code, headers=seen.headers, content=body, request=self._request)


class _WatchedStream(_Watching):
    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._stream:
            self._settlement.keep(chunk)
            yield chunk

    def close(self) -> None:
        try:
            self._stream.close()
        finally:
            self._settlement.run(self._answer)


class _AsyncWatchedStream(_Watching):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        chunks = aiter(self._stream)
        try:
            async for chunk in chunks:
                self._settlement.keep(chunk)
                yield chunk
        finally:
            if isinstance(chunks, AsyncGenerator):
                await chunks.aclose()

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            await self._settlement.run_async(self._answer)
