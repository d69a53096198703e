"""The routes under /v1, and the health checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ratekeeper.decision import Decision
from ratekeeper.errors import InvalidRule, StoreUnavailable
from ratekeeper.inspections import inspection_fields
from ratekeeper.service import batches, bodies, openapi
from ratekeeper.service.served_policies import ServedPolicy
from ratekeeper.service.web import Problem, Response, Router, ServiceRequest, json_response
from ratekeeper.stores.protocol import Operation

if TYPE_CHECKING:
    from ratekeeper.http.headers import EncodedFields
    from ratekeeper.service.shared import Service

_encode = msgspec.json.Encoder().encode


def mount(router: Router, service: Service) -> None:
    """Add the routes to the router."""
    api = Api(service)
    router.add("POST", "/v1/hit", api.hit)
    router.add("POST", "/v1/hit/batch", api.hit_batch)
    router.add("POST", "/v1/peek", api.peek)
    router.add("POST", "/v1/inspect", api.inspect, needs_token=True)
    router.add("POST", "/v1/charge", api.charge, needs_token=True)
    router.add("POST", "/v1/refund", api.refund, needs_token=True)
    router.add("POST", "/v1/reset", api.reset, needs_token=True)
    router.add("GET", "/v1/live", api.live)
    router.add("GET", "/openapi.json", api.openapi)
    router.add("GET", "/healthz", api.healthz)
    router.add("GET", "/readyz", api.readyz)


class Api:
    """The handlers of the routes."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._document = _encode(openapi.document())

    async def hit(self, request: ServiceRequest) -> Response:
        always_200 = request.query_string != b"" and _always_200(request)
        body = await request.decoded(bodies.DECODER)
        callers = self._service.callers
        if body.policy is not None or callers.guards_inline_rules:  # otherwise everybody may call
            callers.check(request.headers.get(b"authorization"), body.policy)
        limiter, key, cost = bodies.read(body, self._service)
        try:
            if isinstance(limiter, ServedPolicy):
                decision, headers = await limiter.decide("hit", key, cost)
            else:
                decision = await limiter.limiter.hit(key, cost)
                headers = limiter.writer.encoded(decision)
        except InvalidRule as error:
            raise bodies.invalid(error) from None
        return _decided(decision, headers, always_200)

    async def hit_batch(self, request: ServiceRequest) -> Response:
        parts = [
            _encode([_answer_fields(answer) for answer in answers])[1:-1]
            async for answers in batches.hit_all(request, self._service)
        ]
        return Response(200, b'{"decisions":[' + b",".join(parts) + b"]}")

    async def peek(self, request: ServiceRequest) -> Response:
        always_200 = request.query_string != b"" and _always_200(request)
        return await self._do("peek", request, always_200)

    async def charge(self, request: ServiceRequest) -> Response:
        return await self._do("charge", request)

    async def refund(self, request: ServiceRequest) -> Response:
        return await self._do("refund", request)

    async def reset(self, request: ServiceRequest) -> Response:
        limiter, key, _ = bodies.read(await request.decoded(bodies.DECODER), self._service)
        try:
            await limiter.limiter.reset(key)
        except InvalidRule as error:
            raise bodies.invalid(error) from None
        return json_response({"ok": True})

    async def inspect(self, request: ServiceRequest) -> Response:
        limiter, key, _ = bodies.read(await request.decoded(bodies.DECODER), self._service)
        try:
            seen = await limiter.limiter.inspect(key)
        except InvalidRule as error:
            raise bodies.invalid(error) from None
        return json_response({"rules": {name: inspection_fields(each) for name, each in seen.items()}})

    async def live(self, _: ServiceRequest) -> Response:
        return json_response(self._service.figures.live_report() | {"store": await self._store()})

    async def openapi(self, _: ServiceRequest) -> Response:
        return Response(200, self._document)

    async def healthz(self, _: ServiceRequest) -> Response:
        return json_response({"status": "ok"})

    async def readyz(self, _: ServiceRequest) -> Response:
        """Check the store. The status is 200 without it as well, for the service still decides; 503 once it stops."""
        if self._service.is_stopping:
            return json_response({"status": "stopping"}, 503)
        return json_response({"status": await self._store()})

    async def _store(self) -> str:
        try:
            decision = await self._service.limiter("1/s", prefix="ratekeeper:ready").peek("ready")
        except StoreUnavailable:
            return "degraded"
        return "degraded" if decision.degraded else "healthy"

    async def _do(self, operation: Operation, request: ServiceRequest, always_200: bool = True) -> Response:
        """Peek, charge or refund; a charge or a refund is done whatever state the key is in afterwards."""
        body = await request.decoded(bodies.DECODER)
        if operation == "peek":
            self._service.callers.check(request.headers.get(b"authorization"), body.policy)
        limiter, key, cost = bodies.read(body, self._service)
        try:
            if isinstance(limiter, ServedPolicy):
                decision, headers = await limiter.decide(operation, key, cost)
            else:
                decision = await getattr(limiter.limiter, operation)(key, cost)
                headers = limiter.writer.encoded(decision)
        except InvalidRule as error:
            raise bodies.invalid(error) from None
        return _decided(decision, headers, always_200)


def _always_200(request: ServiceRequest) -> bool:
    given = request.query.get("always_200", "0")
    if given not in ("0", "1"):
        raise Problem(400, "always_200 must be 0 or 1", field="always_200")
    return given == "1"


def _decided(decision: Decision, headers: EncodedFields, always_200: bool) -> Response:
    status = 200 if always_200 or decision.allowed else 429
    return Response(status, _encode(decision_fields(decision)), headers)


def decision_fields(decision: Decision) -> dict[str, Any]:
    """Return a decision as plain data for JSON."""
    allowed, limit, remaining, retry_after, reset_after, delay, rule, layers, degraded, shadow_denied = decision
    return {
        "allowed": allowed,
        "limit": limit,
        "remaining": remaining,
        "retry_after": retry_after,
        "reset_after": reset_after,
        "delay": delay,
        "rule": rule,
        "layers": {name: decision_fields(layer) for name, layer in layers.items()} if layers else {},
        "degraded": degraded,
        "shadow_denied": shadow_denied,
    }


def _answer_fields(answer: Decision | Problem) -> dict[str, Any]:
    """Return the answer to one hit of a batch."""
    if isinstance(answer, Problem):
        return {"error": answer.detail, "field": answer.field}
    return decision_fields(answer)
