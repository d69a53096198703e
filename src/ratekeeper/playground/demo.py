"""The demo's routes: hit, burst, reset, and the state of a visitor's key."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ratekeeper import AsyncLimiter, Decision, StoreUnavailable, rates
from ratekeeper.algorithms import Rule
from ratekeeper.inspections import MAX_ENTRIES, newest_entries
from ratekeeper.playground.configs import (
    MAX_BURST,
    Unusable,
    check_algorithm,
    listing,
    read_body,
    read_number,
    read_rule,
)
from ratekeeper.playground.visitors import Visitors
from ratekeeper.service.web import Response, ServiceRequest, json_response
from ratekeeper.stores.protocol import Inspection

if TYPE_CHECKING:
    from ratekeeper.service.shared import Service
    from ratekeeper.service.web import Router

PREFIX = "ratekeeper:playground"
PLAIN_TEXT = b"text/plain; charset=utf-8"


def mount(router: Router, service: Service) -> None:
    """Add the routes."""
    demo = Demo(service)
    router.add("POST", "/api/rate-limit/reset", demo.reset)
    router.add("POST", "/api/rate-limit/{algorithm}", demo.hit)
    router.add("POST", "/api/rate-limit/{algorithm}/burst", demo.burst)
    router.add("POST", "/api/rate-limit/{algorithm}/state", demo.state)
    router.add("GET", "/api/algorithms", algorithms)
    router.add("GET", "/api/script/{algorithm}", script)


class Demo:
    """The handlers of the routes."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._visitors = Visitors()

    async def hit(self, request: ServiceRequest) -> Response:
        demo_request = await self._read(request)
        self._visitors.remember(demo_request.visitor, demo_request.rule)
        return json_response(await demo_request.hit(), headers=demo_request.headers)

    async def burst(self, request: ServiceRequest) -> Response:
        demo_request = await self._read(request)
        count = read_number(demo_request.body, "count", 10, MAX_BURST)
        concurrent = demo_request.body.get("concurrent", False)
        if not isinstance(concurrent, bool):
            raise Unusable("concurrent must be true or false", "concurrent")
        self._visitors.remember(demo_request.visitor, demo_request.rule)
        if concurrent:
            answers = await asyncio.gather(*(demo_request.hit() for _ in range(count)))
        else:
            answers = [await demo_request.hit() for _ in range(count)]
        return json_response(answers, headers=demo_request.headers)

    async def reset(self, request: ServiceRequest) -> Response:
        visitor, headers = self._visitors.recognize(request)
        for rule in self._visitors.used(
            visitor
        ):  # they stay remembered, because a store that is unavailable keeps its state
            await self._limiter(rule).reset(visitor)
        return json_response({"ok": True}, headers=headers)

    async def state(self, request: ServiceRequest) -> Response:
        demo_request = await self._read(request)
        rule, limiter = demo_request.rule, demo_request.limiter
        answer = {"algorithm": rule.algorithm, "rule": rule.text, "store": self._store, **_numbers(rule)}
        try:
            (seen,) = (await limiter.inspect(demo_request.visitor)).values()
        except StoreUnavailable:
            answer["state"] = None  # this process decides on its own, and a peek shows how
        else:
            answer |= _held(seen)
            answer["key"] = seen.name or _text((PREFIX, rule.algorithm, rule.text, demo_request.visitor))
        peek = await limiter.peek(demo_request.visitor, demo_request.cost)
        answer |= {"degraded": peek.degraded or answer["state"] is None, "peek": _shown(peek)}
        answer["resetAfter"] = peek.reset_after
        return json_response(answer, headers=demo_request.headers)

    @property
    def _store(self) -> str:
        return _KINDS.get(type(self._service.store).__name__, "Redis")

    def _limiter(self, rule: Rule) -> AsyncLimiter:
        return self._service.limiter(rule, prefix=PREFIX)

    async def _read(self, request: ServiceRequest) -> DemoRequest:
        body = read_body(await request.json())
        rule = read_rule(request.params["algorithm"], body)
        cost = read_number(body, "cost", 1, rates.MAX_LIMIT)
        visitor, headers = self._visitors.recognize(request)
        return DemoRequest(body, rule, cost, visitor, headers, self._limiter(rule))


_KINDS = {"MemoryStore": "memory", "SqliteStore": "SQLite"}  # by name: they are imported when they are used


@dataclass(frozen=True, slots=True)
class DemoRequest:
    """A visitor's request, validated."""

    body: dict[str, Any]
    rule: Rule
    cost: int
    visitor: str
    headers: list[tuple[bytes, bytes]]
    limiter: AsyncLimiter

    async def hit(self) -> dict[str, Any]:
        return _shown(await self.limiter.hit(self.visitor, self.cost))


async def algorithms(_: ServiceRequest) -> Response:
    """Return what the page needs to know about each algorithm."""
    return json_response(listing())


async def script(request: ServiceRequest) -> Response:
    """Return the Lua script of an algorithm."""
    return Response(200, check_algorithm(request.params["algorithm"]).lua().encode(), content_type=PLAIN_TEXT)


def _shown(decision: Decision) -> dict[str, Any]:
    """Return a decision in the demo's words."""
    return {
        "allowed": decision.allowed,
        "remaining": decision.remaining,
        "limit": decision.limit,
        "retryAfter": None if decision.allowed else decision.retry_after,
        "delay": decision.delay,
    }


def _numbers(rule: Rule) -> dict[str, Any]:
    """Return the numbers in the formula of a rule, in seconds."""
    return {
        "picture": rule.variant.picture,
        "limit": rule.limit,
        "window": rule.window_us / rates.SECOND_US,
        "rate": float(rule.per_second),
    }


def _held(seen: Inspection) -> dict[str, Any]:
    """Return how a key is stored."""
    return {
        "now": seen.at,
        "state": newest_entries(seen.state),
        "raw": f"{seen.raw:#x}" if isinstance(seen.raw, int) else None if seen.raw is None else _text(seen.raw),
        "ttl": seen.ttl,
        "bytes": seen.bytes,
    }


def _text(value: object) -> str:
    """Format a stored value: bytes as redis-cli does, a sequence by its parts."""
    if isinstance(value, bytes):
        return ascii(value.decode("latin-1"))[1:-1]
    if isinstance(value, list | tuple):
        shown = [_text(part) for part in value[:MAX_ENTRIES]]
        return f"{', '.join(shown)}{', …' if len(value) > MAX_ENTRIES else ''}"
    return str(value)
