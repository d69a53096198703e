"""Waiting until admitted: first come, first served for each key, woken by computed time.

The flow of one wait is a generator that a sync and an async driver run (`run`, `run_async`). It yields either a `Sleep`
or what a store returned; the driver sends back the result, so the logic is here once and only the waiting differs.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from ratekeeper.algorithms.rule import Step
from ratekeeper.errors import InvalidRule, RateLimited
from ratekeeper.rates import show
from ratekeeper.stores.port import Charge, Demand, Outcome

if TYPE_CHECKING:
    from ratekeeper.decision import Decision
    from ratekeeper.limiter import Core


_FOR_EVER = 10**10  # seconds, three centuries


class Sleep(NamedTuple):
    """Sleep until the limiter's timer shows this, or until woken; None: until woken."""

    until_ns: int | None


Flow = Generator[Any, Any, "Decision"]


class Waiter:
    """One caller that sleeps in a thread."""

    def __init__(self) -> None:
        self.nudged = False
        self._woken = threading.Lock()  # held until woken; an Event may stay locked when a signal interrupts it
        self._woken.acquire()

    def wake(self) -> None:
        with suppress(RuntimeError):  # woken already
            self._woken.release()

    def sleep(self, seconds: float | None) -> None:
        self._woken.acquire(timeout=-1 if seconds is None else min(seconds, threading.TIMEOUT_MAX))


class AsyncWaiter:
    """One caller that sleeps in an event loop; anyone may wake it from any thread."""

    def __init__(self) -> None:
        self.nudged = False
        self._event = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def wake(self) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody is waiting there any more
            self._loop.call_soon_threadsafe(self._event.set)

    async def sleep(self, seconds: float | None) -> None:
        alarm = None if seconds is None else self._loop.call_later(seconds, self._event.set)
        try:
            await self._event.wait()
        finally:
            if alarm is not None:
                alarm.cancel()
        self._event.clear()


class Line:
    """The places of those who wait for the same keys, held weakly: who is gone, however that came, waits no more."""

    def __init__(self) -> None:
        self.places: OrderedDict[object, weakref.ref[Place]] = OrderedDict()  # by their tokens
        self.forecast: Forecast | None = None

    def present(self) -> list[Place]:
        """Return who is in line, first come first."""
        return [place for reference in list(self.places.values()) if (place := reference()) is not None]

    def first(self) -> Place | None:
        """Return who is first in line."""
        while True:
            with suppress(RuntimeError):  # a place that is garbage left meanwhile
                return next((place for held in self.places.values() if (place := held()) is not None), None)


class Place:
    """A place in a line, left at the end of its `with` block at the latest."""

    def __init__(self, lines: Lines, name: Hashable, waiter: Waiter | AsyncWaiter, demands: Sequence[Demand]) -> None:
        self.waiter = waiter
        self.demands = demands
        self.served = False
        self.leaves_ns: int | None = None  # when, on the timer, if the line's forecast counts on this place
        self._lines = lines
        self._name = name
        self._token = token = object()
        reference = weakref.ref(self, lambda _: lines.leave(name, token))
        with lines.lock:
            self.line = lines.by_name.setdefault(name, Line())
            self.line.places[token] = reference

    def is_first(self) -> bool:
        with self._lines.lock:
            return self.line.first() is self

    def ahead(self) -> list[Place]:
        """Return those who came before and still wait, first come first."""
        with self._lines.lock:
            places = self.line.present()
        return [place for place in places[: places.index(self)] if not place.served]

    def leave(self) -> None:
        """Leave the line, if not yet done, and wake whoever is first then."""
        self._lines.leave(self._name, self._token, as_foreseen=self.served or self.leaves_ns is None)

    def __enter__(self) -> Place:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.leave()


class Lines:
    """All lines of one store in this process."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a place that is garbage leaves its line at any moment
        self.by_name: dict[Hashable, Line] = {}

    def leave(self, name: Hashable, token: object, *, as_foreseen: bool = False) -> None:
        """Take a place out of its line and wake whoever is first then."""
        with self.lock:
            line = self.by_name.get(name)
            if line is None or token not in line.places:
                return
            del line.places[token]
            if not line.places:
                del self.by_name[name]
                return
            if not as_foreseen:
                line.forecast = None  # those behind move up
            following = line.first()
        if following is not None:
            following.waiter.wake()

    def nudge(self, demands: Sequence[Demand]) -> None:
        """Let the first in each line that waits for one of these keys try again: something was given back."""
        if not self.by_name:
            return
        keys = {_identity(demand) for demand in demands}
        with self.lock:
            for line in list(self.by_name.values()):  # a place that is garbage may leave meanwhile
                place = line.first()
                if place is not None and not keys.isdisjoint(map(_identity, place.demands)):
                    line.forecast = None
                    place.waiter.nudged = True
                    place.waiter.wake()


class Forecast:
    """When those in line will be admitted if nobody else comes, by the rules' own step on copies of the states."""

    def __init__(self, now_us: int, states: list[Any], timer_ns: int) -> None:
        self._states = states
        self._at_us = now_us
        self._timer_offset_ns = timer_ns - now_us * 1000

    def foresee(self, place: Place, timer_ns: int, deadline: int | None = None) -> int:
        """Return when, on the timer, a place behind all others will be left, and count on it if that is in time."""
        demands = place.demands  # none of them above its limit, so this comes to an end
        at_us = max(self._at_us, (timer_ns - self._timer_offset_ns) // 1000)
        while True:
            steps = self._steps(demands, at_us, consume=False)
            denied = [step[3] or 0 for step in steps if not step[1]]
            if not denied:
                break
            at_us += max(denied)
        leaves_ns = (at_us + max(step[5] for step in steps)) * 1000 + self._timer_offset_ns
        if deadline is None or leaves_ns <= deadline:
            self._at_us = at_us
            self._states = [step[0] for step in self._steps(demands, at_us, consume=True)]
            place.leaves_ns = leaves_ns
        return leaves_ns

    def _steps(self, demands: Sequence[Demand], at_us: int, *, consume: bool) -> list[Step]:
        return [
            demand.binding.rule.decide(state, at_us, demand.cost, consume)
            for demand, state in zip(demands, self._states, strict=True)
        ]


_lines: weakref.WeakKeyDictionary[Any, Lines] = weakref.WeakKeyDictionary()
_lines_lock = threading.Lock()


def _forget_all() -> None:
    """In a forked child those who stood in line do not exist any more."""
    global _lines_lock  # noqa: PLW0603 - a thread that held it does not exist either
    _lines_lock = threading.Lock()
    for lines in _lines.values():
        lines.__init__()  # type: ignore[misc]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def lines_of(store: Any) -> Lines:
    """Return the lines of a store, the same for all limiters on it."""
    with _lines_lock:
        return _lines.setdefault(store, Lines())


def wait(core: Core, demands: Sequence[Demand], timeout: float | None, waiter: Waiter | AsyncWaiter) -> Flow:
    """Return once admitted and, where a bucket shapes, departed; raise RateLimited as soon as that is hopeless."""
    if any(demand.cost > demand.binding.rule.limit for demand in demands):
        raise RateLimited((yield from _standing(core, demands)))
    deadline = None if timeout is None else core.timer() + round(timeout * 1e9)
    name = tuple(map(_identity, demands))
    with Place(core.lines, ("turn", name), waiter, demands) as turn:
        if not turn.is_first():
            yield from _wait_for_turn(core, turn, deadline)
        decision, outcome, answered_ns = yield from _until_admitted(core, demands, deadline, waiter)
        turn.served = True
        if decision.delay:
            with Place(core.lines, ("departure", name), waiter, demands) as queue:
                turn.leave()  # only now, so that departures keep the order of turns
                departure_ns = answered_ns + max(answer[4] for answer in outcome.answers) * 1000
                yield from _until_departed(core, queue, departure_ns, outcome)
    return decision


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
    if deadline is not None or turn.line.forecast is not None:
        yield from _refuse_the_hopeless(core, turn, deadline)
    while not turn.is_first():
        if deadline is not None and core.timer() >= deadline:
            raise RateLimited((yield from _standing(core, turn.demands))._replace(allowed=False))
        yield Sleep(deadline)


def _refuse_the_hopeless(core: Core, turn: Place, deadline: int | None) -> Generator[Any, Any, None]:
    """Raise at once when not even the best case is in time; otherwise add this turn to the line's forecast."""
    line = turn.line
    forecast = line.forecast
    if forecast is None:
        now_us, states = yield core.store.snapshot(turn.demands)
        forecast = Forecast(now_us, states, core.timer_at(now_us))
    with core.lines.lock:
        if line.forecast is None:
            line.forecast = forecast
            for place in turn.ahead():
                forecast.foresee(place, core.timer())
        leaves_ns = turn.leaves_ns  # set already if somebody behind was quicker
        if leaves_ns is None:
            leaves_ns = line.forecast.foresee(turn, core.timer(), deadline)
    if deadline is not None and leaves_ns > deadline:
        standing = yield from _standing(core, turn.demands)
        retry_after = max(0.0, (leaves_ns - core.timer()) / 1e9)
        raise RateLimited(standing._replace(allowed=False, retry_after=retry_after))


def _until_admitted(
    core: Core, demands: Sequence[Demand], deadline: int | None, waiter: Waiter | AsyncWaiter
) -> Generator[Any, Any, tuple[Decision, Outcome, int]]:
    """Try, and try again when the answer said; return the decision, the outcome and when that was, on the timer."""
    while True:
        waiter.nudged = False
        if core.shapes and deadline is not None:  # do not take a place in the queue that would be left at once
            outcome = yield core.store.execute("peek", demands)
            decision = core.conclude(demands, outcome)
            late_by = _late_by(decision, core.timer_at(outcome.now_us), deadline)
            if late_by > 0:
                raise RateLimited(decision._replace(allowed=False, retry_after=late_by))
        outcome = yield core.store.execute("hit", demands)
        answered_ns = core.timer_at(outcome.now_us)
        decision = core.conclude(demands, outcome)
        if decision.allowed:
            late_by = _late_by(decision, answered_ns, deadline)
            if late_by > 0:  # somebody took the place that the peek saw
                yield from _give_back(core, demands, outcome)
                raise RateLimited(decision._replace(allowed=False, retry_after=late_by))
            return decision, outcome, answered_ns
        retry_ns = (
            math.inf if decision.retry_after == math.inf else answered_ns + round(decision.retry_after * 1e6) * 1000
        )
        if retry_ns > (math.inf if deadline is None else deadline) or retry_ns == math.inf:
            raise RateLimited(decision)
        while core.timer() < retry_ns and not waiter.nudged:
            yield Sleep(int(retry_ns))


def _late_by(decision: Decision, answered_ns: int, deadline: int | None) -> float:
    """By how many seconds an admitted request would depart after the deadline."""
    if deadline is None or not decision.allowed or not decision.delay:
        return 0.0
    return (answered_ns + round(decision.delay * 1e6) * 1000 - deadline) / 1e9


def _give_back(core: Core, demands: Sequence[Demand], outcome: Outcome) -> Generator[Any, Any, None]:
    charge = Charge(outcome.now_us, [outcome.now_us + answer[3] for answer in outcome.answers])
    yield core.store.execute("give_back", demands, charge)
    core.lines.nudge(demands)


def _standing(core: Core, demands: Sequence[Demand]) -> Generator[Any, Any, Decision]:
    outcome = yield core.store.execute("peek", demands)
    return core.conclude(demands, outcome)


def _identity(demand: Demand) -> Hashable:
    return demand.binding.space, demand.key


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


def _follow(core: Core, waiter: Waiter | AsyncWaiter) -> Callable[[], object]:
    return bool if core.steered is None else core.steered.subscribe(waiter.wake)


def _seconds(core: Core, sleep: Sleep) -> float | None:
    """How long to sleep in real time; a clock that is moved by hand wakes its waiters itself."""
    if sleep.until_ns is None or core.steered is not None:
        return None
    return max(0.0, (sleep.until_ns - core.timer()) / 1e9)
