"""Forecasts: when the callers in a queue will leave it, so that a hopeless wait is refused at once.

A forecast starts from a snapshot of the keys and goes through the queue in order, on copies of the states. One caller
makes it for all, a few places at a time, so that an event loop is never held up. If a place leaves early, the forecast
is too late for the places behind it; a new one is made when that could matter to a caller. Each caller that joins pays
for a number of steps, so the work grows with the number of callers and not with its square. If a long queue changes
faster than that, only those are refused early who are too late by the rates alone; the others that are too late are
refused at the end of their timeout.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from threading import RLock
from typing import Any, Protocol

from ratekeeper.stores.breaker import PROBE_US
from ratekeeper.stores.protocol import Demand, Snapshot

_PAID = 16  # steps that each caller pays for
_SAVED = 2  # forecasts of the whole queue that can be paid for ahead
_AT_ONCE = 200  # steps before other tasks get a turn: about a millisecond
_AT_MOST = 3  # in any interval a rule admits its rate plus at most so many limits, one of them for the first place


class Expected(Protocol):
    """A place in a queue, as a forecast sees it."""

    ticket: int
    demands: Sequence[Demand]
    waiter: Any
    deadline_ns: int | None
    leaves_ns: int | None  # the latest forecast for it, on the timer; after the deadline: it is to be refused
    counted_in: int  # the number of the forecast that counts it
    served: bool
    asking: bool  # whether its hit is in flight: the store may or may not have counted it


class Outlook:
    """The forecast of one queue, and who works on it."""

    def __init__(self, lock: RLock, places: Mapping[int, weakref.ref[Any]]) -> None:
        self._lock = lock
        self._places = places
        self._forecast: Forecast | None = None
        self._number = 0  # of the forecast
        self._too_late = False  # whether a place that it counts has left early
        self._ahead: deque[weakref.ref[Any]] = deque()  # the places that it has not reached yet
        self._worker: Expected | None = None
        self._undecided: dict[int, weakref.ref[Any]] = {}  # callers that sleep without a forecast
        self._paid = max(_PAID, _SAVED * len(places))
        self._costs: dict[int, list[int]] = {}  # by ticket: the cost of each demand
        self._sums: list[int] = []
        self._sum_up()

    def join(self, place: Expected, timer_ns: int) -> None:
        """Count a place that has joined the queue."""
        with self._lock:
            self._paid = min(self._paid + _PAID, max(_PAID, _SAVED * len(self._places)))
            self._add(place)
            if self._forecast is not None:
                self._count(place, timer_ns)
            if place.leaves_ns is None and place.deadline_ns is not None:
                at_least_ns = timer_ns + 1000 * self._at_least_us(place)
                place.leaves_ns = at_least_ns if at_least_ns > place.deadline_ns else None

    def left(self, ticket: int, place: Expected | None) -> None:
        """Note that a place (None: it was garbage-collected) left; those behind leave earlier unless it was served."""
        if place is None or (place.counted_in == self._number and not place.served):
            self._too_late = True
        self._undecided.pop(ticket, None)
        costs = self._costs.get(ticket)
        if costs is not None:
            self._sums = [total - cost for total, cost in zip(self._sums, costs, strict=True)]
            del self._costs[ticket]
        if self._worker is not None and self._worker.ticket == ticket:
            self.end(self._worker)  # it was dropped in the middle of its work
        else:
            self._wake_worker()

    def gained(self) -> None:
        """Note that usage was given back, so that everyone may leave earlier."""
        self._too_late = True

    def was_denied(self, place: Expected, timer_ns: int, degraded: bool) -> None:
        """Count a place that was left out because its hit was in flight."""
        with self._lock:
            forecast = self._forecast
            if forecast is not None and forecast.degraded is not degraded:
                self._drop()  # the store has gone away or come back
            elif forecast is not None and place.counted_in != self._number:
                self._count(place, timer_ns)
        self._wake_worker()

    def set_back(self, place: Expected, timer_ns: int) -> None:
        """Forget the forecast for a place that was made before the clock was set back to this time."""
        with self._lock:
            if self._forecast is not None and self._forecast.made_ns > timer_ns:
                self._drop()
            if self._forecast is None:  # otherwise another caller has made a new one, which counts this place
                place.leaves_ns = None

    def begin(self, place: Expected) -> bool:
        """Let this caller work on the forecast, unless another one does so or it has not been paid for."""
        with self._lock:
            worker = self._worker
            if worker is not None and worker.ticket in self._places:
                may_begin = False
            elif self._forecast is None or (self._too_late and not self._ahead):
                may_begin = self._paid >= len(self._places)
                if may_begin:
                    self._drop()
            else:
                may_begin = True
                if not self._ahead:
                    self._ahead.append(weakref.ref(place))
            if may_begin:
                self._worker = place
            else:
                self._sleeps_undecided(place)
        return may_begin

    @property
    def needs_snapshot(self) -> bool:
        return self._forecast is None

    def start(self, snapshot: Snapshot, timer_ns: int) -> None:
        """Start a new forecast: everyone in the queue is to be counted."""
        with self._lock:
            self._number += 1
            self._too_late = False
            self._ahead = deque(self._places.values())
            self._forecast = Forecast(snapshot, timer_ns)  # last, in case a signal handler raises

    def work(self, timer_ns: int) -> bool:
        """Continue the forecast; return whether there is more to do."""
        with self._lock:
            self._work(timer_ns)
            return bool(self._ahead)

    def end(self, place: Expected) -> None:
        """Let another caller work on the forecast, if one needs it."""
        with self._lock:
            if self._worker is not place:
                return
            self._worker = None
            following = self._next_undecided()
        if following is not None:
            following.waiter.wake()

    def _drop(self) -> None:
        self._forecast = None
        self._ahead.clear()

    def _count(self, place: Expected, timer_ns: int) -> None:
        self._ahead.append(weakref.ref(place))
        if self._worker is None:
            self._work(timer_ns)

    def _work(self, timer_ns: int) -> None:
        # No loop within a `with`: from Python 3.12 on, a signal at its jump back would leave the lock locked.
        try:
            for _ in range(min(_AT_ONCE, len(self._ahead))):
                place = self._ahead.popleft()()
                if place is not None and place.ticket in self._places and self._is_to_be_counted(place):
                    self._foresee(place, timer_ns)
        except BaseException:  # raised by a signal handler: a place may be counted only in part
            self._drop()
            raise

    def _is_to_be_counted(self, place: Expected) -> bool:
        return not (place.served or place.asking or place.counted_in == self._number)

    def _foresee(self, place: Expected, timer_ns: int) -> None:
        forecast = self._forecast
        if forecast is None:
            return
        self._paid -= 1
        leaves_ns = forecast.foresee(place.demands, timer_ns, place.deadline_ns)
        place.leaves_ns = leaves_ns
        if place.deadline_ns is None or leaves_ns <= place.deadline_ns:
            place.counted_in = self._number
        elif self._too_late:
            place.leaves_ns = None
            self._sleeps_undecided(place)
        else:
            place.waiter.wake()

    def _at_least_us(self, place: Expected) -> int:
        """Return the shortest time that the last place can wait, whatever the states of the keys."""
        if len(self._costs) != len(self._places):  # a signal handler raised while a place left
            self._sum_up()
        rules = [demand.binding.rule for demand in place.demands]
        return max(
            (total - _AT_MOST * rule.limit) * (rule.window_us - 1) // rule.limit
            for total, rule in zip(self._sums, rules, strict=True)
        )

    def _sum_up(self) -> None:
        self._costs, self._sums = {}, []
        for held in list(self._places.values()):
            place = held()
            if place is not None:
                self._add(place)

    def _add(self, place: Expected) -> None:
        if place.ticket in self._costs:
            return
        costs = self._costs[place.ticket] = [demand.cost for demand in place.demands]
        self._sums = [total + cost for total, cost in zip(self._sums or [0] * len(costs), costs, strict=True)]

    def _sleeps_undecided(self, place: Expected) -> None:
        self._undecided[place.ticket] = weakref.ref(place)

    def _wake_worker(self) -> None:
        """Wake the caller that works on the forecast: it may be waiting for the answer to a hit."""
        worker = self._worker
        if worker is not None:
            worker.waiter.wake()

    def _next_undecided(self) -> Expected | None:
        while self._undecided:
            place: Expected | None = self._undecided.popitem()[1]()
            if place is not None and place.ticket in self._places and place.leaves_ns is None:
                return place
        return None


class Forecast:
    """When the places in a queue will be admitted if no other request comes, computed on copies of the states."""

    def __init__(self, snapshot: Snapshot, timer_ns: int) -> None:
        self.made_ns = timer_ns
        self.degraded = snapshot.degraded
        self._rules = snapshot.rules
        self._states = list(snapshot.states)
        self._at_us = snapshot.now_us
        self._timer_offset_ns = timer_ns - snapshot.now_us * 1000

    def foresee(self, demands: Sequence[Demand], timer_ns: int, deadline_ns: int | None) -> int:
        """Return when, on the timer, a caller behind all others will leave, and count it if that is in time."""
        at_us = max(self._at_us, (timer_ns - self._timer_offset_ns) // 1000)
        while True:
            retry_us, delay_us = self._peek(demands, at_us)
            at_us += retry_us or 0
            if not retry_us:
                break
        if retry_us is None:  # more than this process's share of the limit: at best the store is back then
            at_us += PROBE_US
        leaves_ns = (at_us + delay_us) * 1000 + self._timer_offset_ns
        if deadline_ns is None or leaves_ns <= deadline_ns:
            self._at_us = at_us
            if retry_us is not None:
                self._states = [
                    rule.decide(state, at_us, demand.cost, True)[0]
                    for rule, state, demand in zip(self._rules, self._states, demands, strict=True)
                ]
        return leaves_ns

    def _peek(self, demands: Sequence[Demand], at_us: int) -> tuple[int | None, int]:
        """Return how long the rules deny a hit at this time (None: for ever), and by how much they delay it."""
        retry_us: int | None = 0
        delay_us = 0
        for rule, state, demand in zip(self._rules, self._states, demands, strict=True):
            _, allowed, _, retry_after, _, delay = rule.decide(state, at_us, demand.cost, False)
            delay_us = max(delay_us, delay)
            if not allowed:
                retry_us = None if retry_after is None or retry_us is None else max(retry_us, retry_after)
        return retry_us, delay_us
