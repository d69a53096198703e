"""The routes for operators: metrics and top talkers."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from ratekeeper.clock import stopwatch
from ratekeeper.metrics.exposition import metrics_of
from ratekeeper.metrics.families import Sample
from ratekeeper.service.key_hashes import hashed
from ratekeeper.service.talkers import KINDS, seconds_covered
from ratekeeper.service.web import NO_STORE, Problem, Response, Router, ServiceRequest, json_response
from ratekeeper.stores.protocol import Key

if TYPE_CHECKING:
    from ratekeeper.service.figures import Figures

MAX_TOP = 1_000
DEFAULT_TOP = 20


class _Format(NamedTuple):
    content_type: bytes
    generate: Callable[[Any], bytes]


_TEXT = _Format(b"text/plain; version=0.0.4; charset=utf-8", generate_latest)
_OPENMETRICS = _Format(b"application/openmetrics-text; version=1.0.0; charset=utf-8", generate_openmetrics)


def mount(router: Router, figures: Figures, *, shows_keys: bool) -> None:
    """Add the routes to the router. With `shows_keys`, keys are shown as they are, not as hashes."""
    operating = Operating(figures, shows_keys=shows_keys)
    router.add("GET", "/metrics", operating.metrics)
    router.add("GET", "/v1/top", operating.top, needs_token=True)


class Operating:
    """The handlers of the routes."""

    def __init__(self, figures: Figures, *, shows_keys: bool) -> None:
        self._figures = figures
        self._shows_keys = shows_keys
        self._pages = {each: _Shared(partial(self._page, each)) for each in (_TEXT, _OPENMETRICS)}

    async def metrics(self, request: ServiceRequest) -> Response:
        """Return the figures of all workers in the text format of Prometheus, or in OpenMetrics if that is accepted."""
        self._check_counts()
        wanted = _OPENMETRICS if b"application/openmetrics-text" in request.headers.get(b"accept", b"") else _TEXT
        return Response(200, await self._pages[wanted].get(), [NO_STORE], wanted.content_type)

    async def top(self, request: ServiceRequest) -> Response:
        """Return the keys that were admitted or denied the most."""
        self._check_counts()
        query = request.query
        by, given = query.get("by", KINDS[0]), query.get("n", str(DEFAULT_TOP))
        if by not in KINDS:
            raise Problem(400, f"by must be {' or '.join(KINDS)}", field="by")
        if not (given.isascii() and given.isdigit() and len(given) < 10 and 1 <= int(given) <= MAX_TOP):
            raise Problem(400, f"n must be a whole number from 1 to {MAX_TOP}", field="n")
        now_ns = stopwatch()
        talkers = self._figures.top(by, now_ns)
        heaviest = heapq.nlargest(int(given), talkers.weights.items(), key=lambda item: item[1])
        return json_response(
            {
                "by": by,
                "seconds": round(seconds_covered(now_ns), 1),
                "cost": talkers.total,
                "missed": talkers.missed,
                "hashed": not self._shows_keys,
                "keys": [
                    dict(zip(("policy", "rule"), label.split("/", 1), strict=True))
                    | {"key": _shown(key) if self._shows_keys else hashed(key), "cost": cost}
                    for (label, key), cost in heaviest
                ],
            }
        )

    def _check_counts(self) -> None:
        if not self._figures.counts:
            raise Problem(404, "metrics are switched off; start the service without --no-metrics")

    async def _page(self, wanted: _Format) -> bytes:
        """Return the page, made in a thread: it takes some milliseconds if there are many policies."""
        self._figures.refresh()
        return await asyncio.to_thread(lambda: wanted.generate(_Registry(self._figures.samples())))


class _Registry:
    """What prometheus-client formats."""

    def __init__(self, samples: list[Sample]) -> None:
        self._samples = samples

    def collect(self) -> Iterable[Metric]:
        return metrics_of(self._samples)


class _Shared:
    """A result that callers who ask at the same time share: it is made for all who have asked before it is begun."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._begun: asyncio.Task[Any] | None = None
        self._next: asyncio.Task[Any] | None = None

    async def get(self) -> Any:
        """Return a result that was begun after this call."""
        if self._next is None or self._next.done():
            self._next = asyncio.ensure_future(self._make_next(self._begun))
        return await asyncio.shield(self._next)

    async def _make_next(self, before: asyncio.Task[Any] | None) -> Any:
        if before is not None and not before.done():
            await asyncio.wait([before])
        self._begun, self._next = self._next, None
        return await self._make()


def _shown(key: Key) -> Any:
    """Return a key as JSON has it."""
    if isinstance(key, tuple):
        return [_shown(part) for part in key]
    if isinstance(key, bytes):
        return key.decode("utf-8", "backslashreplace")
    return key if isinstance(key, str) else int(key)  # a plain one, which can be encoded
