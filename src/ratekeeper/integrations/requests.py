"""An adapter for requests that waits for a budget before it sends.

    session = requests.Session()
    session.mount("https://api.example.com/", LimitedAdapter("10/s burst 20", "redis://localhost"))

Keys, costs and responses are handled alike for all libraries, by `ratekeeper.http.outgoing`.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterator
from typing import Any

import requests
from requests.adapters import BaseAdapter, HTTPAdapter
from urllib3.exceptions import NewConnectionError

from ratekeeper.http.outgoing import IDEMPOTENT, Library, Outgoing, by_host
from ratekeeper.http.settlement import Settlement
from ratekeeper.limiter import Limiter
from ratekeeper.rules import Rules
from ratekeeper.ruleset import Costs, Keys
from ratekeeper.stores import Store

__all__ = ["LimitedAdapter"]


class LimitedAdapter(BaseAdapter):
    """Sends requests with `adapter` once the rules admit them, first come, first served, after any shaping delay.

    `limit` is rules, counted on `store`, or a limiter. `key` returns the key of a request (None: not limited), `cost`
    is what a request consumes, and `settle` returns the real cost for a response once it is read or closed (None: as
    estimated). A wait longer than `timeout` raises RateLimited before anything is sent. After a 429 or 503 with a retry
    time, a request is sent again up to `retries` times, if its method is one of `retry_methods`. `headroom` makes the
    rules stricter by a share, for requests that take longer to arrive than others. `enabled=False` sends everything at
    once.
    """

    def __init__(
        self,
        limit: Rules | Limiter,
        store: str | Store = "memory://",
        *,
        adapter: BaseAdapter | None = None,
        key: Callable[[requests.PreparedRequest], Keys | None] = by_host,
        cost: Costs | Callable[[requests.PreparedRequest], Costs] = 1,
        settle: Callable[[requests.Response], Costs | None] | None = None,
        timeout: float | None = None,
        retries: int = 0,
        retry_methods: Collection[str] = IDEMPOTENT,
        headroom: float = 0,
        enabled: bool = True,
    ) -> None:
        super().__init__()
        self._outgoing = Outgoing(
            limit,
            store,
            kind=Limiter,
            library=Library(_can_repeat, _never_left, lambda response: response.content, _watch),
            key=key,
            cost=cost,
            settle=settle,
            timeout=timeout,
            retries=retries,
            retry_methods=retry_methods,
            headroom=headroom,
            enabled=enabled,
        )
        self._adapter = HTTPAdapter() if adapter is None else adapter

    def send(  # noqa: PLR0917 - as requests calls it
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: bool | str = True,
        cert: Any = None,
        proxies: Any = None,
    ) -> requests.Response:
        """Send a request once it is admitted."""
        response: requests.Response = self._outgoing.send(
            request, lambda: self._adapter.send(request, stream, timeout, verify, cert, proxies)
        )
        return response

    def close(self) -> None:
        """Close the adapter, and the store if it was given as a URL."""
        self._adapter.close()
        if self._outgoing.own is not None:
            self._outgoing.own.close()


def _can_repeat(request: requests.PreparedRequest) -> bool:
    return request.body is None or isinstance(request.body, str | bytes)


def _never_left(error: Exception) -> bool:
    if isinstance(error, requests.ConnectTimeout | requests.exceptions.ProxyError):
        return True
    cause = error.args[0] if isinstance(error, requests.ConnectionError) and error.args else None
    return isinstance(getattr(cause, "reason", None), NewConnectionError)


def _watch(_: requests.PreparedRequest, response: requests.Response, settlement: Settlement) -> None:
    if response._content is False:  # noqa: SLF001 - third-party: nothing else says whether it was read
        response.raw = _WatchedBody(response, settlement)
    else:
        settlement.run(lambda _: response)


class _WatchedBody:
    """Wraps `response.raw`, and copies the body chunk by chunk as it is read."""

    def __init__(self, response: requests.Response, settlement: Settlement) -> None:
        self._raw: Any = response.raw
        self._response = response
        self._settlement = settlement

    def stream(self, *args: Any, **kwargs: Any) -> Iterator[bytes]:
        for chunk in self._raw.stream(*args, **kwargs):
            self._settlement.keep(chunk)
            yield chunk
        self._settlement.run(self._answer)

    def close(self) -> None:
        try:
            self._raw.close()
        finally:
            self._settlement.run(self._answer)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("read"):
            self._settlement.drop()
        return getattr(self._raw, name)

    def _answer(self, body: bytes) -> requests.Response:
        """Return a response that has been read; the one that the caller reads is not changed."""
        answer = requests.Response()
        answer.__dict__.update(self._response.__dict__, raw=io.BytesIO(body))
        return answer
