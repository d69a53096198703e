"""The flows that decide on a request, shared by threads and tasks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

from ratekeeper import keys
from ratekeeper.errors import InvalidRule
from ratekeeper.flows import Flow
from ratekeeper.http.admission import Admission, all_or_nothing, denied, hold_or_deny, leave, look_after
from ratekeeper.http.held_requests import HeldRequests
from ratekeeper.http.http_limiter import BLOCKED, HttpLimiter
from ratekeeper.http.policy_limits import RoutePolicy
from ratekeeper.http.request import Request
from ratekeeper.http.route_limits import RouteLimit

UNKNOWN = object()  # the key of a request whose key function has not been called yet
_SHARED = b"unidentified"  # bytes, which none of the key functions here returns


def decide_by_all(route_limits: Sequence[RouteLimit], request: Request, held: HeldRequests) -> Flow[Admission | None]:
    """Decide by several routes, all or nothing; the tightest decision is reported. None means no limit."""
    return all_or_nothing((decide(route_limit, request, held) for route_limit in route_limits), held)


def decide(route_limit: RouteLimit, request: Request, held: HeldRequests, key: Any = UNKNOWN) -> Flow[Admission | None]:
    """Decide on a request; None means that it is not limited."""
    if route_limit.policy is not None:
        return (yield from _decide_by_policy(route_limit, route_limit.policy, request, held))
    admission = yield from _decide(route_limit, request, held, key)
    return (yield from _looked_after(admission, held))


def _looked_after(admission: Admission | None, held: HeldRequests, asked: Any = None) -> Flow[Admission | None]:
    if admission is None or admission.decision.remaining != 0 or not admission.decision.allowed:
        return admission
    try:
        return (yield from look_after(admission, asked))
    except BaseException:
        leave(held, admission)
        raise


def _decide_by_policy(
    route_limit: RouteLimit, policy: RoutePolicy, request: Request, held: HeldRequests
) -> Flow[Admission | None]:
    cost = route_limit.cost
    if route_limit.cost_function is not None:
        cost = yield from _cost(route_limit, request, policy.checked_cost)
    if not cost:
        return None
    prepared = yield from policy.prepared(request, cost)
    lacking = policy.lacks(prepared)
    if lacking is not None:
        return Admission(denied(lacking), route_limit, BLOCKED, _SHARED)
    if not prepared.is_limited:
        if not prepared.applied.lacking:
            policy.note_unlimited()
        return None
    deciding, key = policy.deciding(prepared), prepared.keys_by_rule
    shapers = prepared.keys_of_shapers
    if shapers:
        came = yield from hold_or_deny(held, (route_limit.title, shapers), policy.limiter, prepared, 1)
        admission = Admission(came.decision, route_limit, deciding, key, came.taken, came.held_as)
    else:
        taken = yield policy.limiter.take(prepared)
        admission = Admission(taken.decision, route_limit, deciding, key, taken)
    return (yield from _looked_after(admission, held, prepared.of_cost_1()))


def _decide(route_limit: RouteLimit, request: Request, held: HeldRequests, key: Any) -> Flow[Admission | None]:
    limiter = route_limit.http_limiter
    if route_limit.rules_function is not None:
        limiter = yield from _chosen(route_limit, request)
    if limiter is BLOCKED:
        return Admission(denied("blocked"), route_limit, limiter, _SHARED)
    if limiter is not None and limiter.would_block:
        route_limit.note_shadow(limiter.would_block)
    if limiter is None or not limiter.rules:
        return None
    key = yield from _key(route_limit, request, limiter, key)
    if key is None and route_limit.unidentified == "deny":
        return _without_key(route_limit, limiter)
    cost = 0 if key is None else (yield from _cost_by(route_limit, request, limiter))
    if not cost:
        return None
    if limiter.shapes:
        came = yield from hold_or_deny(held, _held_under(route_limit, key), limiter.limiter, key, cost)
        return Admission(came.decision, route_limit, limiter, key, came.taken, came.held_as)
    taken = yield limiter.limiter.take(key, cost)
    return Admission(taken.decision, route_limit, limiter, key, taken)


def _without_key(route_limit: RouteLimit, limiter: HttpLimiter) -> Admission | None:
    """Deny a request that has no key, unless the rules are only tried out."""
    if not limiter.enforced:
        route_limit.note_shadow(limiter.rules)
        return None
    name, rule = next(iter(limiter.enforced.items()))
    return Admission(denied(name, rule.limit), route_limit, limiter, _SHARED)


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


def _cost_by(route_limit: RouteLimit, request: Request, limiter: HttpLimiter) -> Flow[Any]:
    """Return the cost of a request; 0 means that it is free."""
    if route_limit.cost_function is None and route_limit.rules_function is None:
        return route_limit.cost  # checked at the start
    return (yield from _cost(route_limit, request, partial(route_limit.checked_cost, limiter=limiter)))


def _cost(route_limit: RouteLimit, request: Request, checked: Callable[[Any], Any]) -> Flow[Any]:
    cost: Any = route_limit.cost
    try:
        if route_limit.cost_function is not None:
            cost = route_limit.cost_function(request)
            if hasattr(cost, "__await__"):
                cost = yield cost
        cost = checked(cost)
    except Exception as error:  # noqa: BLE001 - an error in the application's function must not fail the request
        route_limit.log_once("the cost function failed; the request costs 1", error)
        return 1
    if not cost:
        route_limit.note_free()
    return cost


def _held_under(route_limit: RouteLimit, key: Any) -> Hashable:
    """Return the name under which held requests of one key and route are counted."""
    return route_limit.title, (tuple(key.items()) if isinstance(key, Mapping) else key)
