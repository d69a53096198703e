"""`POST /v1/hit/batch`: many hits in one request, each decided by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from ratekeeper.decision import Decision
from ratekeeper.errors import InvalidRule, StoreUnavailable
from ratekeeper.service import bodies
from ratekeeper.service.web import Problem, ServiceRequest, decode

if TYPE_CHECKING:
    from ratekeeper.service.shared import Service

MAX_HITS = 1_000
MAX_BATCH_BYTES = 512 * 1024
_AT_ONCE = 200  # rules decided in one turn, and so on their way to the store together


class _BatchBody(msgspec.Struct, forbid_unknown_fields=True):
    requests: list[bodies.RequestBody]


_decoder = msgspec.json.Decoder(_BatchBody)
_splitter: msgspec.json.Decoder[list[msgspec.Raw]] = msgspec.json.Decoder(list[msgspec.Raw])
_NAME = b'"requests"'


async def hit_all(request: ServiceRequest, service: Service) -> AsyncIterator[list[Decision | Problem]]:
    """Make the hits in a body; return a decision or a problem for each, in order, some at a time.

    However many batches there are, and whatever they hold, other clients have their turn in between, and the replies of
    the store are read in time.
    """
    request.max_bytes = MAX_BATCH_BYTES
    content = await request.body()
    async with _turn(service):
        hits = read(content)
    remaining = iter(hits)
    answered = 0
    while answered < len(hits):
        async with _turn(service):
            answers = await _hit_some(remaining, service, request.headers.get(b"authorization"))
        answered += len(answers)
        yield answers


@asynccontextmanager
async def _turn(service: Service) -> AsyncIterator[None]:
    """Wait until few batches are worked on, and let everybody else go on before the next one is."""
    async with service.turns:
        yield
        await asyncio.sleep(0)


async def _hit_some(
    hits: Iterator[bodies.RequestBody | Problem], service: Service, authorization: bytes | None
) -> list[Decision | Problem]:
    """Make the next hits, as many as one turn has time for."""
    begun = []
    rules = 0
    while rules < _AT_ONCE and (hit := next(hits, None)) is not None:
        begun.append(_begin(hit, service, authorization))
        rules += 1 if isinstance(hit, Problem) else _rules_of(hit, service)
    coming = [each for each in begun if not isinstance(each, Decision | Problem)]
    decided = iter(await asyncio.gather(*coming, return_exceptions=True) if coming else ())
    return [_ended(each if isinstance(each, Decision | Problem) else next(decided)) for each in begun]


def _rules_of(hit: bodies.RequestBody, service: Service) -> int:
    """Return how many rules may decide on a hit."""
    if hit.policy is not None:
        return service.policies.rules_of(hit.policy)
    return max(1, len(hit.rules or ()))


def read(content: bytes) -> list[bodies.RequestBody | Problem]:
    """Return the requests in a body, and a problem for each that cannot be read."""
    hits: list[bodies.RequestBody | Problem]
    try:
        hits = [*decode(_decoder, content).requests]
    except Problem:
        hits = [_one(bytes(each)) for each in split(content)]
    if len(hits) > MAX_HITS:
        raise Problem(400, f"requests must have at most {MAX_HITS} entries, not {len(hits)}", field="requests")
    return hits


def split(content: bytes) -> list[msgspec.Raw]:
    """Return the requests in a body as they were sent; raise a problem if the body is no batch."""
    content = content.strip()
    before, colon, rest = content[1:].lstrip().removeprefix(_NAME).lstrip().partition(b":")
    if content[:1] != b"{" or content[-1:] != b"}" or before or not colon:
        raise Problem(400, 'the body must be {"requests": [...]}', field="requests")
    try:
        return _splitter.decode(rest[:-1])  # which is no list if another field follows
    except (msgspec.DecodeError, RecursionError) as error:
        raise Problem(400, f"requests: {error}", field="requests") from None


def _one(content: bytes) -> bodies.RequestBody | Problem:
    try:
        return decode(bodies.DECODER, content)
    except Problem as problem:
        return problem


def _begin(
    hit: bodies.RequestBody | Problem, service: Service, authorization: bytes | None
) -> Decision | Problem | Awaitable[Decision]:
    """Make one hit; return its decision, if the store makes it at once."""
    try:
        if isinstance(hit, Problem):
            return hit
        service.callers.check(authorization, hit.policy)
        limiter, key, cost = bodies.read(hit, service)
        return limiter.limiter.start_hit(key, cost)
    except Problem as problem:
        return problem
    except InvalidRule as error:
        return bodies.invalid(error)


def _ended(decided: Decision | BaseException) -> Decision | Problem:
    """Return the answer to one hit."""
    if isinstance(decided, StoreUnavailable):
        return Problem(503, str(decided))
    if not isinstance(decided, Decision | Problem):
        raise decided
    return decided
