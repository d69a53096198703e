"""The flows of a decision on a request and of its settlement: what they yield may have to be awaited."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

from ratekeeper import keys
from ratekeeper.decision import NO_LAYERS, Decision
from ratekeeper.errors import InvalidRule, StoreUnavailable
from ratekeeper.flows import Flow
from ratekeeper.http.plan import Limited, Plan
from ratekeeper.http.request import Answer, Request
from ratekeeper.http.waiters import Waiters
from ratekeeper.reservations import AsyncReservation, Reservation

_SHARED = b"unidentified"  # bytes, which no key function of ours gives
_SURELY_SHORT = 250  # characters: a key of these needs no closer look


class Admission(NamedTuple):
    """The decision on a request, and all that is needed to tell its client and to settle."""

    decision: Decision
    plan: Plan
    limited: Limited
    key: Any
    taken: Reservation | AsyncReservation | None = None
    """What a correction starts from; None if nothing was taken, or if it was not kept."""
    waits: bool = False
    """Whether it is counted as waiting until `leave`."""


def decide(plan: Plan, request: Request, waiters: Waiters) -> Flow[Admission | None]:
    """Decide on a request; None: it is not limited."""
    limited = plan.limited if plan.rules_function is None else (yield from _chosen(plan, request))
    if limited is None:
        return None
    return (yield from decide_on(plan.find_key(request), plan, limited, request, waiters))


def decide_on(key: Any, plan: Plan, limited: Limited, request: Request, waiters: Waiters) -> Flow[Admission | None]:
    """Decide on a request for which the key function gave this key."""
    if key is not None and not is_plain(key):
        key = yield from _key(plan, key, limited)
    if key is None:
        if plan.unidentified != "shared":
            return None if plan.unidentified == "skip" else Admission(_refusal(limited), plan, limited, _SHARED)
        key = _SHARED
    cost = plan.cost if plan.cost_function is None else (yield from _cost(plan, request, limited))
    if not cost:
        return None  # free
    if limited.shapes:
        return (yield from _in_line(waiters, plan, limited, key, cost))
    taken = yield limited.limiter.take(key, cost)
    return Admission(taken.decision, plan, limited, key, taken)


def is_plain(key: Any) -> bool:
    """Whether a key needs no closer look, as nearly all."""
    return type(key) is str and 0 < len(key) <= _SURELY_SHORT


def _chosen(plan: Plan, request: Request) -> Flow[Limited | None]:
    try:
        rules = plan.rules_function(request)
        if hasattr(rules, "__await__"):
            rules = yield rules
        return None if rules is None else plan.limited_by(rules)
    except Exception:  # noqa: BLE001 - the application's function: its trouble is no reason to fail the request
        plan.log_once("the function that gives the rules failed, and the request is limited as all else is")
        return plan.otherwise


def _key(plan: Plan, key: Any, limited: Limited) -> Flow[Any]:
    try:
        if hasattr(key, "__await__"):
            key = yield key
        if key is None:
            plan.log_no_key("a request has no key", error=False)
        elif isinstance(key, Mapping):
            if set(key) != set(limited.rules):
                raise InvalidRule(f"it gave keys for {list(key)}; the rules are {list(limited.rules)}")
            for own in key.values():
                keys.check(own)
        else:
            keys.check(key)
    except Exception:  # noqa: BLE001 - as above
        plan.log_no_key("the key function failed")
        return None
    return key


def _cost(plan: Plan, request: Request, limited: Limited) -> Flow[Any]:
    try:
        cost: Any = plan.cost_function(request)  # type: ignore[misc]
        if hasattr(cost, "__await__"):
            cost = yield cost
        return plan.checked_cost(cost, limited)
    except Exception:  # noqa: BLE001 - as above
        plan.log_once("the cost function failed, and the request costs 1")
        return 1


def _in_line(waiters: Waiters, plan: Plan, limited: Limited, key: Any, cost: Any) -> Flow[Admission]:
    """Take a place among those that wait before one is taken in the bucket, which would not give it back."""
    place = place_of(plan, key)
    if not waiters.enter(place):
        decision = yield limited.limiter.peek(key, cost)
        if not decision.allowed or decision.delay:
            return Admission(_not_held(decision), plan, limited, key)
        taken = yield limited.limiter.take(key, cost)
        decision = taken.decision
        if decision.allowed and decision.delay:  # somebody was quicker
            yield taken.give_back()
            decision, taken = _not_held(decision), None
        return Admission(decision, plan, limited, key, taken)
    waits = False
    try:
        taken = yield limited.limiter.take(key, cost)
        waits = taken.decision.allowed and taken.decision.delay > 0
        return Admission(taken.decision, plan, limited, key, taken, waits)
    finally:
        if not waits:
            waiters.leave(place)


def _not_held(decision: Decision) -> Decision:
    """Deny what would have to be held."""
    if not decision.allowed:
        return decision
    return decision._replace(allowed=False, retry_after=decision.delay, delay=0.0, layers=NO_LAYERS)


def settle(request: Request, admission: Admission, answer: Answer) -> Flow[None]:
    """Correct the cost of a request that was answered by what the application's function says."""
    plan = admission.plan
    try:
        real: Any = plan.settle(request, answer)  # type: ignore[misc]
        if hasattr(real, "__await__"):
            real = yield real
        if real is not None:
            yield from correct(admission, real)
    except StoreUnavailable:
        plan.log_once("the store is away, and a request is not settled")
    except Exception:  # noqa: BLE001 - as above
        plan.log_once("the settlement failed, and the request costs what was estimated")


def correct(admission: Admission, real_cost: Any) -> Flow[None]:
    """Charge what a request cost more than estimated, and give back what it cost less."""
    if admission.taken is not None:
        yield admission.taken.correct(real_cost)


def _refusal(limited: Limited) -> Decision:
    name, rule = next(iter(limited.rules.items()))
    return Decision(False, rule.limit, 0, float("inf"), 0.0, 0.0, name, NO_LAYERS, False)


def place_of(plan: Plan, key: Any) -> Hashable:
    """Return what those are counted under who wait for the same."""
    return plan.title, (tuple(key.items()) if isinstance(key, Mapping) else key)
