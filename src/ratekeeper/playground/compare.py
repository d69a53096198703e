"""Compare: the same traffic through all algorithms, in simulated time. Equal requests get equal responses."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from ratekeeper import SlidingWindowLog, rates
from ratekeeper.algorithms import Rule, all_of
from ratekeeper.playground.configs import Unusable, read_body, read_number
from ratekeeper.rates import show
from ratekeeper.rules import blamed
from ratekeeper.service.web import Problem, Response, ServiceRequest, json_response
from ratekeeper.simulate import PATTERNS, Traffic, generate, simulate

if TYPE_CHECKING:
    from ratekeeper.service.web import Router

MAX_COMPARED = 2_000
MAX_SLICES = 200
WINDOWS = 4  # the default duration of the traffic
DRAWN = "drawn"
_worker = ThreadPoolExecutor(1, "compare")  # one thread, so that comparisons run one after another
_slots = asyncio.Semaphore(32)  # comparisons under way, nearly all of them waiting for the thread
_KNOWN = ("traffic", "limit", "window", "rate", "duration", "seed", "cost", "slices")


def mount(router: Router) -> None:
    """Add the route."""
    router.add("POST", "/api/compare", compare)


async def compare(request: ServiceRequest) -> Response:
    """Return what each algorithm does with the requested traffic."""
    body = read_body(await request.json())
    rules = _rules(body)
    traffic = _traffic(body, rules[0])
    if _slots.locked():
        raise Problem(503, "too many comparisons are under way; try again", headers=[(b"retry-after", b"1")])
    async with _slots:
        simulation = await asyncio.get_running_loop().run_in_executor(_worker, simulate, traffic, rules)
    answer = simulation.to_json()
    for shown, rule in zip(answer["rules"], rules, strict=True):
        shown["title"] = rule.variant.title
    return json_response(answer)


def _rules(body: Mapping[str, Any]) -> list[Rule]:
    for name in body:
        if name not in _KNOWN:
            raise Unusable(f"unknown field {show(name)}; the fields are {', '.join(_KNOWN)}", name)
    try:
        exact = SlidingWindowLog(body.get("limit", 10), body.get("window", 10))
        return all_of(exact.limit, exact.window_us)
    except (TypeError, ValueError) as error:
        raise _blamed(error, "limit") from None


def _traffic(body: Mapping[str, Any], target: Rule) -> Traffic:
    name = body.get("traffic", "boundary")
    if name not in (*PATTERNS, DRAWN):
        raise Unusable(f"traffic must be {', '.join(PATTERNS)} or {DRAWN}, not {show(name)}", "traffic")
    seed = body.get("seed", 0)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**53:
        raise Unusable(f"seed must be a whole number from 0 to 2^53, not {show(seed)}", "seed")
    cost = read_number(body, "cost", 1, rates.MAX_LIMIT)
    window_us = target.span_us
    try:
        duration_us = rates.window_us(body["duration"], "duration") if "duration" in body else WINDOWS * window_us
        if name == DRAWN:
            return _drawn(body.get("slices"), duration_us, cost)
        sustained = Fraction(target.limit * rates.SECOND_US, window_us * cost)
        rate = rates.rate(body["rate"], "rate") if "rate" in body else PATTERNS[name].load * sustained
        if duration_us > MAX_COMPARED * window_us:
            raise Unusable(f"duration must be at most {MAX_COMPARED:,} windows", "duration")
        if rate * duration_us > MAX_COMPARED * rates.SECOND_US:
            field = "rate" if "rate" in body else "duration" if "duration" in body else "limit"
            raise Unusable(f"{field}: the traffic has more than {MAX_COMPARED:,} requests; reduce it", field)
        duration = Fraction(duration_us, rates.SECOND_US)
        return generate(name, target, rate=rate, duration=duration, seed=seed, cost=cost, most=MAX_COMPARED)
    except (TypeError, ValueError) as error:
        raise _blamed(error, "traffic") from None


def _drawn(slices: object, duration_us: int, cost: int) -> Traffic:
    """Spread the requests of each slice of the duration evenly over it."""
    if not isinstance(slices, list) or not 1 <= len(slices) <= MAX_SLICES:
        raise Unusable(f"slices must be a list of 1 to {MAX_SLICES} whole numbers, not {show(slices)}", "slices")
    at_us = []
    for position, count in enumerate(slices):
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MAX_COMPARED:
            raise Unusable(f"slices must be whole numbers of at least 0, not {show(count)}", "slices")
        start_us = duration_us * position // len(slices)
        length_us = duration_us * (position + 1) // len(slices) - start_us
        at_us += [start_us + length_us * index // count for index in range(count)]
        if len(at_us) > MAX_COMPARED:
            raise Unusable(f"slices must have at most {MAX_COMPARED:,} requests in total", "slices")
    if not at_us:
        raise Unusable("slices must have at least one request", "slices")
    return Traffic(DRAWN, "requests as drawn", at_us, [cost] * len(at_us), 0, duration_us)


def _blamed(error: Exception, otherwise: str) -> Unusable:
    return Unusable(str(error), blamed(error, _KNOWN) or otherwise)
