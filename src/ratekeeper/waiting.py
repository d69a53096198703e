"""Waiting until admitted: first come, first served for each key, woken by computed time.

The flow of one wait is a generator that a sync and an async driver run (`run`, `run_async`). It yields either a `Sleep`
or what a store returned; the driver sends back the result, so the logic is here once and only the waiting differs.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from ratekeeper.errors import InvalidRule, RateLimited, StoreUnavailable
from ratekeeper.lines import AsyncWaiter, Forecast, Place, Waiter, identity
from ratekeeper.rates import show
from ratekeeper.stores.port import Demand, Outcome

if TYPE_CHECKING:
    from ratekeeper.core import Core
    from ratekeeper.decision import Decision


_FOR_EVER = 10**10  # seconds, three centuries


class Sleep(NamedTuple):
    """Sleep until the limiter's timer shows this, or until woken; None: until woken."""

    until_ns: int | None


class Hit(NamedTuple):
    """What a store returned for a hit; it is given back if nobody waits for it any more."""

    result: Any
    demands: Sequence[Demand]


Flow = Generator[Any, Any, "Decision"]


def unhindered(core: Core, key: Any, cost: Any, demands: Sequence[Demand]) -> Decision | None:
    """Be admitted at once, in memory, if nobody stands in line; None: not admitted, or not to be had like this."""
    if core.at_once is None or core.shapes or core.lines.wait_for(_turns(demands), demands):
        return None
    decision = core.at_once(key, cost)
    return decision if decision.allowed else None


def wait(core: Core, demands: Sequence[Demand], timeout: float | None, waiter: Waiter | AsyncWaiter) -> Flow:
    """Return once admitted and, where a bucket shapes, departed; raise RateLimited as soon as that is hopeless."""
    if any(demand.cost > demand.binding.rule.limit for demand in demands):
        raise RateLimited((yield from _standing(core, demands)))
    deadline = None if timeout is None else core.timer() + round(timeout * 1e9)
    with Place(core.lines, _turns(demands), waiter, demands) as turn:
        if not turn.is_first():
            yield from _wait_for_turn(core, turn, deadline)
        decision, outcome, answered_ns = yield from _until_admitted(core, turn, deadline)
        turn.served = True
        waiter.charge = outcome.charge
        if core.shapes:  # without a delay too: those who were to depart before may be slow to wake up
            with Place(core.lines, ("departure", *map(identity, demands)), waiter, demands) as queue:
                turn.leave()  # only now, so that departures keep the order of turns
                departure_ns = answered_ns + max(answer[4] for answer in outcome.answers) * 1000
                yield from _until_departed(core, queue, departure_ns, outcome)
    return decision


def _turns(demands: Sequence[Demand]) -> Hashable:
    """Return the name of the line of those who wait for these keys to admit them."""
    return ("turn", *map(identity, demands))


def _until_departed(core: Core, queue: Place, departure_ns: int, outcome: Outcome) -> Generator[Any, Any, None]:
    try:
        while not queue.is_first() or core.timer() < departure_ns:
            yield Sleep(departure_ns if queue.is_first() else None)
    except GeneratorExit:  # dropped as garbage, perhaps while this thread is inside the store: do not enter it
        raise
    except BaseException:
        yield from _give_back(core, queue.demands, outcome)
        raise


def _wait_for_turn(core: Core, turn: Place, deadline: int | None) -> Generator[Any, Any, None]:
    if deadline is None and turn.line.forecast is not None:
        yield from _refuse_the_hopeless(core, turn, deadline)
    while not turn.is_first():
        if deadline is not None and core.timer() >= deadline:
            raise RateLimited((yield from _standing(core, turn.demands))._replace(allowed=False))
        if deadline is not None and turn.leaves_ns is None:
            yield from _refuse_the_hopeless(core, turn, deadline)
        else:
            yield Sleep(deadline)


def _refuse_the_hopeless(core: Core, turn: Place, deadline: int | None) -> Generator[Any, Any, None]:
    """Raise at once when not even the best case is in time; otherwise add this turn to the line's forecast."""
    line = turn.line
    forecast = line.forecast
    if forecast is None:
        now_us, states = yield core.snapshot(turn.demands)
        forecast = Forecast(now_us, states, core.timer_at(now_us))
    with core.lines.lock:
        if line.forecast is None:
            line.forecast = forecast
            for place in turn.ahead():
                if not place.asking:  # to count it twice would refuse what is in time
                    forecast.foresee(place, core.timer())
        leaves_ns = turn.leaves_ns  # set already if somebody behind was quicker
        if leaves_ns is None:
            leaves_ns = line.forecast.foresee(turn, core.timer(), deadline)
    if deadline is not None and leaves_ns > deadline:
        standing = yield from _standing(core, turn.demands)
        retry_after = max(0.0, (leaves_ns - core.timer()) / 1e9)
        raise RateLimited(standing._replace(allowed=False, retry_after=retry_after))


def _until_admitted(
    core: Core, turn: Place, deadline: int | None
) -> Generator[Any, Any, tuple[Decision, Outcome, int]]:
    """Try, and try again when the answer said; return the decision, the outcome and when that was, on the timer."""
    demands = turn.demands
    while True:
        if turn.must_yield():
            yield from _yield_to_others(core, turn, deadline)
        turn.waiter.nudged = False
        if core.shapes and deadline is not None:  # do not take a place in the queue that would be left at once
            outcome = yield core.execute("peek", demands)
            decision = core.conclude(demands, outcome)
            late_by = _late_by(decision, core.timer_at(outcome.now_us), deadline)
            if late_by > 0:
                raise RateLimited(decision._replace(allowed=False, retry_after=late_by))
        turn.asking = True
        outcome = yield Hit(core.execute("hit", demands), demands)
        turn.asking = False
        answered_ns = core.timer_at(outcome.now_us)
        decision = core.conclude(demands, outcome)
        if decision.allowed:
            late_by = _late_by(decision, answered_ns, deadline)
            if late_by > 0:  # somebody took the place that the peek saw
                yield from _give_back(core, demands, outcome)
                raise RateLimited(decision._replace(allowed=False, retry_after=late_by))
            return decision, outcome, answered_ns
        turn.was_denied()
        retry_ns = (
            math.inf if decision.retry_after == math.inf else answered_ns + round(decision.retry_after * 1e6) * 1000
        )
        if retry_ns > (math.inf if deadline is None else deadline) or retry_ns == math.inf:
            raise RateLimited(decision)
        turn.claim(max(zip(demands, outcome.answers, strict=True), key=lambda each: each[1][2] or 0)[0])
        while core.timer() < retry_ns and not turn.waiter.nudged:
            yield Sleep(int(retry_ns))


def _yield_to_others(core: Core, turn: Place, deadline: int | None) -> Generator[Any, Any, None]:
    """Wait until nobody who came earlier, in another line, waits for one of these keys."""
    if deadline is not None:
        standing = yield from _standing(core, turn.demands)
        if core.timer() + standing.retry_after * 1e9 > deadline:
            raise RateLimited(standing)
    while turn.must_yield():
        if deadline is not None and core.timer() >= deadline:
            raise RateLimited((yield from _standing(core, turn.demands))._replace(allowed=False))
        yield Sleep(deadline)


def _late_by(decision: Decision, answered_ns: int, deadline: int | None) -> float:
    """By how many seconds an admitted request would depart after the deadline."""
    if deadline is None or not decision.allowed or not decision.delay:
        return 0.0
    return (answered_ns + round(decision.delay * 1e6) * 1000 - deadline) / 1e9


def _give_back(core: Core, demands: Sequence[Demand], outcome: Outcome) -> Generator[Any, Any, None]:
    yield core.execute("give_back", demands, outcome.charge)
    core.lines.nudge(demands)


def _standing(core: Core, demands: Sequence[Demand]) -> Generator[Any, Any, Decision]:
    outcome = yield core.execute("peek", demands)
    return core.conclude(demands, outcome)


def check_timeout(timeout: Any) -> float | None:
    """Return the timeout if it can be one."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout must be seconds or None, not {show(timeout)}")
    if not timeout >= 0:
        raise InvalidRule(f"timeout must be at least 0 seconds, not {show(timeout)}")
    return None if timeout > _FOR_EVER else timeout


def run(core: Core, flow: Flow, waiter: Waiter) -> Decision:
    """Drive a flow in this thread."""
    unsubscribe = _follow(core, waiter)
    try:
        step = next(flow)
        while True:
            try:
                if isinstance(step, Sleep):
                    waiter.sleep(_seconds(core, step))
                    step = None
                elif isinstance(step, Hit):
                    step = step.result
            except BaseException as error:  # noqa: BLE001 - KeyboardInterrupt, say: the flow cleans up
                step = flow.throw(error)
            else:
                step = flow.send(step)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        unsubscribe()


async def run_async(core: Core, flow: Flow, waiter: AsyncWaiter) -> Decision:
    """Drive a flow in this task."""
    unsubscribe = _follow(core, waiter)
    try:
        step = next(flow)
        while True:
            try:
                if isinstance(step, Sleep):
                    await waiter.sleep(_seconds(core, step))
                    step = None
                elif isinstance(step, Hit):
                    step = await _settled(core, step) if inspect.isawaitable(step.result) else step.result
                elif inspect.isawaitable(step):
                    step = await step
            except BaseException as error:  # noqa: BLE001 - cancellation, above all: the flow cleans up
                step = flow.throw(error)
            else:
                step = flow.send(step)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        unsubscribe()


async def _settled(core: Core, hit: Hit) -> Outcome:
    """Await a hit; if that is cancelled while the hit is under way, what it takes is given back when it is known."""
    asked: asyncio.Future[Outcome] = asyncio.ensure_future(hit.result)
    try:
        return await asyncio.shield(asked)
    except asyncio.CancelledError:
        voiding = asyncio.ensure_future(_void(core, asked, hit.demands))
        _voiding.add(voiding)
        voiding.add_done_callback(_voiding.discard)
        raise


async def _void(core: Core, asked: asyncio.Future[Outcome], demands: Sequence[Demand]) -> None:
    with suppress(StoreUnavailable):
        outcome = await asked
        if all(answer[0] for answer in outcome.answers):
            await core.execute("give_back", demands, outcome.charge)
            core.lines.nudge(demands)


_voiding: set[asyncio.Future[None]] = set()  # a loop holds its tasks weakly


def _follow(core: Core, waiter: Waiter | AsyncWaiter) -> Callable[[], object]:
    return bool if core.steered is None else core.steered.subscribe(waiter.wake)


def _seconds(core: Core, sleep: Sleep) -> float | None:
    """How long to sleep in real time; a clock that is moved by hand wakes its waiters itself."""
    if sleep.until_ns is None or core.steered is not None:
        return None
    return max(0.0, (sleep.until_ns - core.timer()) / 1e9)
