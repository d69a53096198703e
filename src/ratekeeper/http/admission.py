"""The flows that decide on a request and correct its cost, shared by threads and tasks."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

from ratekeeper import keys
from ratekeeper.decision import NO_LAYERS, Decision
from ratekeeper.errors import InvalidRule, StoreUnavailable
from ratekeeper.flows import Flow
from ratekeeper.http.held_requests import HeldRequests
from ratekeeper.http.http_limiter import HttpLimiter
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


def decide(route_limit: RouteLimit, request: Request, held: HeldRequests, key: Any = UNKNOWN) -> Flow[Admission | None]:
    """Decide on a request; None means that it is not limited."""
    limiter = route_limit.http_limiter
    if route_limit.rules_function is not None:
        limiter = yield from _chosen(route_limit, request)
    if limiter is None:
        return None
    if key is UNKNOWN:
        key = route_limit.find_key(request)
    if key is not None and not (type(key) is str and 0 < len(key) <= keys.SURELY_SHORT):
        key = yield from _checked_key(route_limit, key, limiter)
    if key is None:
        if route_limit.unidentified == "skip":
            return None
        if route_limit.unidentified == "deny":
            return Admission(_refusal(limiter), route_limit, limiter, _SHARED)
        key = _SHARED
    cost = route_limit.cost if route_limit.cost_function is None else (yield from _cost(route_limit, request, limiter))
    if not cost:
        return None  # free
    if limiter.shapes:
        return (yield from _hold_or_deny(held, route_limit, limiter, key, cost))
    taken = yield limiter.limiter.take(key, cost)
    return Admission(taken.decision, route_limit, limiter, key, taken)


def _chosen(route_limit: RouteLimit, request: Request) -> Flow[HttpLimiter | None]:
    try:
        rules = route_limit.rules_function(request)
        if hasattr(rules, "__await__"):
            rules = yield rules
        return None if rules is None else route_limit.limiter_for(rules)
    except Exception:  # noqa: BLE001 - an error in the application's function must not fail the request
        route_limit.log_once("the rules function failed; the default limit applies")
        return route_limit.otherwise


def _checked_key(route_limit: RouteLimit, key: Any, limiter: HttpLimiter) -> Flow[Any]:
    try:
        if hasattr(key, "__await__"):
            key = yield key
        if key is None:
            route_limit.log_no_key("a request has no key", error=False)
        elif isinstance(key, Mapping):
            if set(key) != set(limiter.rules):
                raise InvalidRule(f"it returned keys for {list(key)}; the rules are {list(limiter.rules)}")
            for own in key.values():
                keys.check(own)
        else:
            keys.check(key)
    except Exception:  # noqa: BLE001 - as above
        route_limit.log_no_key("the key function failed")
        return None
    return key


def _cost(route_limit: RouteLimit, request: Request, limiter: HttpLimiter) -> Flow[Any]:
    try:
        cost: Any = route_limit.cost_function(request)  # type: ignore[misc]
        if hasattr(cost, "__await__"):
            cost = yield cost
        return route_limit.checked_cost(cost, limiter)
    except Exception:  # noqa: BLE001 - as above
        route_limit.log_once("the cost function failed; the request costs 1")
        return 1


def _hold_or_deny(
    held: HeldRequests, route_limit: RouteLimit, limiter: HttpLimiter, key: Any, cost: Any
) -> Flow[Admission]:
    """Count the request as held before it enters the bucket; when too many are held, admit only without a delay."""
    counted_as = held_under(route_limit, key)
    if not held.enter(counted_as):
        decision = yield limiter.limiter.peek(key, cost)
        if not decision.allowed or decision.delay:
            return Admission(_without_delay(decision), route_limit, limiter, key)
        taken = yield limiter.limiter.take(key, cost)
        decision = taken.decision
        if decision.allowed and decision.delay:  # another request came between the peek and the hit
            yield taken.give_back()
            decision, taken = _without_delay(decision), None
        return Admission(decision, route_limit, limiter, key, taken)
    is_held = False
    try:
        taken = yield limiter.limiter.take(key, cost)
        is_held = taken.decision.allowed and taken.decision.delay > 0
        return Admission(taken.decision, route_limit, limiter, key, taken, is_held)
    finally:
        if not is_held:
            held.leave(counted_as)


def _without_delay(decision: Decision) -> Decision:
    """Deny a request that would have to be held."""
    if not decision.allowed:
        return decision
    return decision._replace(allowed=False, retry_after=decision.delay, delay=0.0, layers=NO_LAYERS)


def settle(request: Request, admission: Admission, answer: Answer) -> Flow[None]:
    """Correct the cost of a request to what the application's settle function returns for its answer."""
    route_limit = admission.route_limit
    try:
        real: Any = route_limit.settle(request, answer)  # type: ignore[misc]
        if hasattr(real, "__await__"):
            real = yield real
        if real is not None:
            yield from correct(admission, real)
    except StoreUnavailable:
        route_limit.log_once("the store is unavailable; a request was not settled")
    except Exception:  # noqa: BLE001 - as above
        route_limit.log_once("the settlement failed; the request keeps its estimated cost")


def correct(admission: Admission, real_cost: Any) -> Flow[None]:
    """Charge what a request cost above its estimate, or give back what it cost below."""
    if admission.taken is not None:
        yield admission.taken.correct(real_cost)


def _refusal(limiter: HttpLimiter) -> Decision:
    name, rule = next(iter(limiter.rules.items()))
    return Decision(False, rule.limit, 0, float("inf"), 0.0, 0.0, name, NO_LAYERS, False)


def held_under(route_limit: RouteLimit, key: Any) -> Hashable:
    """Return the name under which held requests of one key and route are counted."""
    return route_limit.title, (tuple(key.items()) if isinstance(key, Mapping) else key)
