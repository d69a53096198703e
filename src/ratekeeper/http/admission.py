"""The flows that decide on a request and correct its cost, shared by threads and tasks."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from ratekeeper import keys
from ratekeeper.decision import NO_LAYERS, Decision
from ratekeeper.errors import InvalidRule, StoreUnavailable
from ratekeeper.flows import Flow
from ratekeeper.http.held_requests import HeldRequests
from ratekeeper.http.http_limiter import BLOCKED, HttpLimiter
from ratekeeper.http.request import Answer, Request
from ratekeeper.http.route_limits import RouteLimit
from ratekeeper.reservations import AsyncReservation, Reservation

UNKNOWN = object()  # the key of a request whose key function has not been called yet
_SHARED = b"unidentified"  # bytes, which none of the key functions here returns


class Admission(NamedTuple):
    """The decision on a request, and what is needed to report it and to settle the request."""

    decision: Decision
    route_limit: RouteLimit
    http_limiter: HttpLimiter
    key: Any
    taken: Reservation | AsyncReservation | None = None
    """What a correction starts from; None if nothing was taken or the reservation was not kept."""
    is_held: bool = False
    """Whether the request counts as held until `leave` is called."""
    others: Sequence[Admission] = ()
    """The admissions by other routes that the request may be read as."""
    after: Decision | None = None
    """If nothing is left of a rule: how the key stands after this request, which tells when there is more."""

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


def decide_by_all(route_limits: Sequence[RouteLimit], request: Request, held: HeldRequests) -> Flow[Admission | None]:
    """Decide by several routes, all or nothing; the tightest decision is reported. None means no limit."""
    admissions: list[Admission] = []
    admits = False
    try:
        for route_limit in route_limits:
            admission = yield from decide(route_limit, request, held)
            if admission is not None:
                admissions.append(admission)
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
        if each.is_held:
            held.leave(held_under(each.route_limit, each.key))


def decide(route_limit: RouteLimit, request: Request, held: HeldRequests, key: Any = UNKNOWN) -> Flow[Admission | None]:
    """Decide on a request; None means that it is not limited."""
    admission = yield from _decide(route_limit, request, held, key)
    if admission is None or admission.decision.remaining != 0 or not admission.decision.allowed:
        return admission
    try:
        return (yield from look_after(admission))
    except BaseException:
        leave(held, admission)
        raise


def look_after(admission: Admission) -> Flow[Admission]:
    """Find out when there is more, after a request that was admitted and left nothing: its response reports that."""
    limiter = admission.http_limiter
    if admission.decision.degraded or not limiter.writer.reports_times:
        return admission
    try:
        after = yield limiter.limiter.peek(admission.key)
    except StoreUnavailable:  # the request is admitted all the same
        return admission
    return admission if after.degraded else admission._replace(after=after)


def _decide(route_limit: RouteLimit, request: Request, held: HeldRequests, key: Any) -> Flow[Admission | None]:
    limiter = route_limit.http_limiter
    if route_limit.rules_function is not None:
        limiter = yield from _chosen(route_limit, request)
    if limiter is BLOCKED:
        return Admission(_denied("blocked"), route_limit, limiter, _SHARED)
    if limiter is not None and limiter.would_block:
        route_limit.note_shadow(limiter.would_block)
    if limiter is None or not limiter.rules:
        return None
    key = yield from _key(route_limit, request, limiter, key)
    if key is None and route_limit.unidentified == "deny":
        return _without_key(route_limit, limiter)
    cost = 0 if key is None else (yield from _cost(route_limit, request, limiter))
    if not cost:
        return None
    if limiter.shapes:
        return (yield from _hold_or_deny(held, route_limit, limiter, key, cost))
    taken = yield limiter.limiter.take(key, cost)
    return Admission(taken.decision, route_limit, limiter, key, taken)


def _without_key(route_limit: RouteLimit, limiter: HttpLimiter) -> Admission | None:
    """Deny a request that has no key, unless the rules are only tried out."""
    if not limiter.enforced:
        route_limit.note_shadow(limiter.rules)
        return None
    name, rule = next(iter(limiter.enforced.items()))
    return Admission(_denied(name, rule.limit), route_limit, limiter, _SHARED)


def _denied(rule: str, limit: int = 0) -> Decision:
    """Deny for ever."""
    return Decision(False, limit, 0, float("inf"), 0.0, 0.0, rule, NO_LAYERS, False)


def _chosen(route_limit: RouteLimit, request: Request) -> Flow[HttpLimiter | None]:
    try:
        rules = route_limit.rules_function(request)
        if hasattr(rules, "__await__"):
            rules = yield rules
        limiter = route_limit.limiter_for(rules)
    except Exception as error:  # noqa: BLE001 - an error in the application's function must not fail the request
        route_limit.note_failure(error)
        return route_limit.otherwise
    if limiter is None:
        route_limit.note_unlimited()
    return limiter


def _key(route_limit: RouteLimit, request: Request, limiter: HttpLimiter, key: Any) -> Flow[Any]:
    """Return the key to count under; None if there is none, and such requests are denied or skipped."""
    if key is UNKNOWN:
        key = route_limit.find_key(request)
    if key is not None and not (type(key) is str and 0 < len(key) <= keys.SURELY_SHORT):
        key = yield from _checked_key(route_limit, key, limiter)
    return _SHARED if key is None and route_limit.unidentified == "shared" else key


def _checked_key(route_limit: RouteLimit, key: Any, limiter: HttpLimiter) -> Flow[Any]:
    try:
        if hasattr(key, "__await__"):
            key = yield key
        if key is None:
            route_limit.note_no_key()
        elif isinstance(key, Mapping):
            key = limiter.without_unlimited(key)
            if set(key) != set(limiter.rules):
                raise InvalidRule(f"it returned keys for {list(key)}; the rules are {list(limiter.rules)}")
            for own in key.values():
                keys.check(own)
        else:
            keys.check(key)
    except Exception as error:  # noqa: BLE001 - as above
        route_limit.note_no_key(error)
        return None
    return key


def _cost(route_limit: RouteLimit, request: Request, limiter: HttpLimiter) -> Flow[Any]:
    """Return the cost of a request; 0 means that it is free."""
    cost: Any = route_limit.cost
    if route_limit.cost_function is None and route_limit.rules_function is None:
        return cost  # checked at the start
    try:
        if route_limit.cost_function is not None:
            cost = route_limit.cost_function(request)
            if hasattr(cost, "__await__"):
                cost = yield cost
        cost = route_limit.checked_cost(cost, limiter)
    except Exception as error:  # noqa: BLE001 - as above
        route_limit.log_once("the cost function failed; the request costs 1", error)
        return 1
    if not cost:
        route_limit.note_free()
    return cost


def _hold_or_deny(
    held: HeldRequests, route_limit: RouteLimit, limiter: HttpLimiter, key: Any, cost: Any
) -> Flow[Admission]:
    """Count the request as held before it enters the bucket; when too many are held, admit only without a delay."""
    counted_as = held_under(route_limit, key)
    if not held.enter(counted_as):
        decision = yield limiter.limiter.peek(key, cost)
        if not decision.allowed:
            return Admission(decision, route_limit, limiter, key)
        if decision.delay:
            return Admission(_denied_instead(held, decision), route_limit, limiter, key)
        taken = yield limiter.limiter.take(key, cost)
        decision = taken.decision
        if decision.allowed and decision.delay:  # another request came between the peek and the hit
            yield taken.give_back()
            decision, taken = _denied_instead(held, decision), None
        return Admission(decision, route_limit, limiter, key, taken)
    is_held = False
    try:
        taken = yield limiter.limiter.take(key, cost)
        is_held = taken.decision.allowed and taken.decision.delay > 0
        return Admission(taken.decision, route_limit, limiter, key, taken, is_held)
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


def held_under(route_limit: RouteLimit, key: Any) -> Hashable:
    """Return the name under which held requests of one key and route are counted."""
    return route_limit.title, (tuple(key.items()) if isinstance(key, Mapping) else key)
