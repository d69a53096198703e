"""An admission: the decision on a request, and the flows around it, shared by threads and tasks."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

from ratekeeper.decision import NO_LAYERS, Decision
from ratekeeper.errors import StoreUnavailable
from ratekeeper.flows import Flow
from ratekeeper.http.held_requests import HeldRequests
from ratekeeper.http.http_limiter import DecidingLimiter, HttpLimiter
from ratekeeper.http.request import Answer, Request
from ratekeeper.http.route_limits import RouteLimit
from ratekeeper.reservations import AsyncReservation, Reservation


class Admission(NamedTuple):
    """The decision on a request, and what is needed to report it and to settle the request."""

    decision: Decision
    route_limit: RouteLimit
    http_limiter: HttpLimiter | DecidingLimiter
    key: Any
    taken: Reservation | AsyncReservation | None = None
    """What a correction starts from; None if nothing was taken or the reservation was not kept."""
    held_as: Hashable = None
    """What the request is counted as while it is held, until `leave` is called; None if it is not held."""
    others: Sequence[Admission] = ()
    """The admissions by other routes that the request may be read as."""
    after: Decision | None = None
    """If nothing is left of a rule: how the key stands after this request, which tells when there is more."""

    @property
    def is_held(self) -> bool:
        """Whether the request counts as held until `leave` is called."""
        return self.held_as is not None

    @property
    def all(self) -> Sequence[Admission]:
        """This admission and the others."""
        return (self, *self.others)

    @property
    def settles(self) -> bool:
        """Whether the cost is to be settled once the application has answered."""
        if self.route_limit.settle is not None:
            return True
        return bool(self.others) and any(each.settles for each in self.others)


def all_or_nothing(flows: Iterable[Flow[Admission | None]], held: HeldRequests) -> Flow[Admission | None]:
    """Decide by several limits, all or nothing; the tightest decision is reported. None means no limit."""
    admissions: list[Admission] = []
    admits = False
    try:
        for flow in flows:
            admission = yield from flow
            if admission is not None:
                admissions += (each._replace(others=()) for each in admission.all)
                if not admission.decision.allowed:
                    return admission
        admits = True
    finally:
        if not admits:
            for each in admissions:
                leave(held, each)
                if each.taken is not None:
                    yield each.taken.give_back()
    if not admissions:
        return None
    tightest = min(admissions, key=lambda each: each.decision.room)
    delay = max(each.decision.delay for each in admissions)
    others = tuple(each for each in admissions if each is not tightest)
    return tightest._replace(decision=tightest.decision._replace(delay=delay), others=others)


def leave(held: HeldRequests, admission: Admission) -> None:
    """Stop counting a request as held."""
    for each in admission.all:
        if each.held_as is not None:
            held.leave(each.held_as)


def look_after(admission: Admission, asked: Any = None) -> Flow[Admission]:
    """Find out when there is more, after a request that was admitted and left nothing: its response reports that.

    `asked` is what to peek at, if that is not the key.
    """
    limiter = admission.http_limiter
    if admission.decision.degraded or not limiter.writer.reports_times:
        return admission
    try:
        after = yield limiter.limiter.peek(admission.key if asked is None else asked)
    except StoreUnavailable:  # the request is admitted all the same
        return admission
    return admission if after.degraded else admission._replace(after=after)


def denied(rule: str, limit: int = 0) -> Decision:
    """Deny for ever."""
    return Decision(False, limit, 0, float("inf"), 0.0, 0.0, rule, NO_LAYERS, False)


class Held(NamedTuple):
    """What came of a request that may have to be held."""

    decision: Decision
    taken: Reservation | AsyncReservation | None
    held_as: Hashable


def hold_or_deny(held: HeldRequests, counted_as: Hashable, limiter: Any, key: Any, cost: Any) -> Flow[Held]:
    """Count the request as held before it enters the bucket; when too many are held, admit only without a delay."""
    if not held.enter(counted_as):
        decision = yield limiter.peek(key, cost)
        if not decision.allowed:
            return Held(decision, None, None)
        if decision.delay:
            return Held(_denied_instead(held, decision), None, None)
        taken = yield limiter.take(key, cost)
        decision = taken.decision
        if decision.allowed and decision.delay:  # another request came between the peek and the hit
            yield taken.give_back()
            decision, taken = _denied_instead(held, decision), None
        return Held(decision, taken, None)
    is_held = False
    try:
        taken = yield limiter.take(key, cost)
        is_held = taken.decision.allowed and taken.decision.delay > 0
        return Held(taken.decision, taken, counted_as if is_held else None)
    finally:
        if not is_held:
            held.leave(counted_as)


def _denied_instead(held: HeldRequests, decision: Decision) -> Decision:
    """Deny a request that would have to be held."""
    held.refuse()
    return decision._replace(allowed=False, retry_after=decision.delay, delay=0.0, layers=NO_LAYERS)


def settle(request: Request, admission: Admission, answer: Answer) -> Flow[None]:
    """Correct the cost of a request to what the application's settle functions return for its answer."""
    for each in admission.all:
        if each.route_limit.settle is not None:
            yield from _settle(request, each, answer)


def _settle(request: Request, admission: Admission, answer: Answer) -> Flow[None]:
    route_limit = admission.route_limit
    try:
        real: Any = route_limit.settle(request, answer)  # type: ignore[misc]
        if hasattr(real, "__await__"):
            real = yield real
        if real is not None and admission.taken is not None:
            yield admission.taken.correct(real)
    except StoreUnavailable as error:
        route_limit.log_once("the store is unavailable; a request was not settled", error)
    except Exception as error:  # noqa: BLE001 - as above
        route_limit.log_once("the settlement failed; the request keeps its estimated cost", error)


def correct(admission: Admission, real_cost: Any) -> Flow[None]:
    """Charge what a request cost above its estimate, or give back what it cost below."""
    for each in admission.all:
        if each.taken is not None:
            yield each.taken.correct(real_cost)
