"""RedisStore: decisions from threads. What waits while a call is under way goes together into the next one."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ratekeeper.clock import stopwatch
from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores.port import Charge, Demand, Inspection, Operation, Outcome
from ratekeeper.stores.redis import connect
from ratekeeper.stores.redis.base import (
    MOST_IN_A_CALL,
    MOST_IN_FLIGHT,
    Base,
    Command,
    in_full,
    lost_script,
    tells,
    unavailable,
)
from ratekeeper.stores.redis.wire import Request

_PATIENCE_NS = 1_000_000_000  # for what is not a decision, or has no deadline
_LOOK_AFTER = 0.05  # seconds until a sleeper sees for itself whether it was forgotten


class _Place:
    """One thread's request on its way."""

    __slots__ = ("_called", "asked_ns", "ends_ns", "error", "leader", "outcome", "request", "sent_ns", "served")

    def __init__(self, request: Request, ends_ns: int) -> None:
        self.request = request
        self.asked_ns = stopwatch()
        self.ends_ns = ends_ns
        self.outcome: Outcome | None = None
        self.error: StoreUnavailable | None = None
        self.served = False
        self.leader: _Place | None = None  # who sends it
        self.sent_ns: int | None = None
        self._called = threading.Lock()  # held until this place is served or is to lead
        self._called.acquire()

    def call(self) -> None:
        with suppress(RuntimeError):  # called already
            self._called.release()

    def sleep(self, seconds: float) -> None:
        self._called.acquire(timeout=seconds)


class RedisStore(Base):
    """Keeps state on a Redis server, for threads.

    Up to two calls are under way at a time. A thread that finds a free one leads: it sends what waits, its own request
    included, reads the answers and hands them out. Nobody else runs: no thread in the background.
    """

    for_asyncio = False

    def __init__(self, source: Any, *, remember_denials: bool = True) -> None:
        super().__init__(source, remember_denials=remember_denials)
        self._connect = connect.bounded(self._kind, self._arguments)
        self._start()

    def _start(self) -> None:
        super()._start()
        self._lock = threading.Lock()
        self._asking = threading.Semaphore(MOST_IN_FLIGHT)
        self._waiting: deque[_Place] = deque()
        self._leaders: set[_Place] = set()
        self._idle: list[Any] = []

    def execute(
        self, operation: Operation, demands: Sequence[Demand], charge: Charge | None = None, ends_ns: int | None = None
    ) -> Outcome:
        """Decide or change all demands at one instant; StoreUnavailable when there is no answer in time."""
        ends_ns = stopwatch() + _PATIENCE_NS if ends_ns is None else ends_ns
        place = _Place(Request(operation, demands, charge), ends_ns)
        try:
            with self._lock:
                self._waiting.append(place)
                if len(self._leaders) < MOST_IN_FLIGHT:
                    self._leaders.add(place)
            self._see_served(place)
        finally:
            try:
                self._leave(place)
            finally:
                try:
                    self._leave(place)  # once more, in case that a signal interrupted the first time
                finally:
                    self._leaders.discard(place)  # one call of C code, which no signal interrupts
        if place.outcome is None:
            raise unavailable(place.error or StoreUnavailable("the call to Redis was interrupted", away=False))
        return place.outcome

    # From Python 3.12 on, a signal that is handled at a jump back of a loop leaves the `with` or `try` around the loop
    # without its exit, and a lock locked. So no loop stands within one here: it is called.

    def _see_served(self, place: _Place) -> None:
        while not place.served:
            now = stopwatch()
            if now >= place.ends_ns:
                away = place.sent_ns is not None and tells(place.asked_ns, place.sent_ns, place.ends_ns, self._took_ns)
                raise StoreUnavailable("Redis did not answer in time", away=away)
            if place in self._leaders:
                self._serve(place)
                self._hand_over(place)  # served or not: another leader may have this request under way
            else:
                place.sleep(min((place.ends_ns - now) / 1e9, _LOOK_AFTER))
                if not place.served:
                    self._look_after(place)

    def inspect(self, demands: Sequence[Demand]) -> list[Inspection]:
        """Show how each demand's key is stored."""
        return self._seen(demands, self._ask(self._look(demands), stopwatch() + _PATIENCE_NS))

    def snapshot(self, demands: Sequence[Demand], ends_ns: int | None = None) -> tuple[int, list[Any]]:
        """Return the time and the state of each demand's key."""
        return self._states(demands, self._ask(self._look(demands), ends_ns or stopwatch() + _PATIENCE_NS))

    def close(self) -> None:
        """Close the connections; the next decision opens new ones."""
        while self._idle:
            self._idle.pop().disconnect()

    def _leave(self, place: _Place) -> None:
        """Take a place out of everything, whatever came of it."""
        with self._lock:
            if place in self._waiting:
                self._waiting.remove(place)
        self._hand_over(place)

    def _hand_over(self, place: _Place) -> None:
        """Lead no more, and let somebody else: whoever has the most time left, which bounds the call."""
        if place not in self._leaders:
            return
        with self._lock:
            following = self._with_most_time()
            if following is not None:
                self._leaders.add(following)
            self._leaders.discard(place)
        if following is not None:
            following.call()

    def _with_most_time(self) -> _Place | None:
        others = [waiting for waiting in self._waiting if waiting not in self._leaders]
        return max(others, key=lambda waiting: waiting.ends_ns, default=None)

    def _look_after(self, place: _Place) -> None:
        """Lead, or give up, if a leader that signals interrupted time and again could not hand over or hand out."""
        with self._lock:
            if place in self._waiting:
                if len(self._leaders) < MOST_IN_FLIGHT:
                    self._leaders.add(place)
            elif place.leader not in self._leaders and not place.served:
                raise StoreUnavailable("the call to Redis was interrupted", away=False)

    def _serve(self, leader: _Place) -> None:
        """Send what waits and hand out the answers."""
        ends_ns = leader.ends_ns
        batch: list[_Place] = []
        error = StoreUnavailable("the call to Redis was interrupted", away=False)
        try:
            with self._lock:
                self._take_those_who_wait(batch, leader)
            if batch:
                self._call_for(batch, ends_ns)
        except self._troubles as caught:
            error = unavailable(caught)
            took_ns = self._took_ns if "Timeout" in type(caught).__name__ else 0  # another error takes no time to tell
            if batch and not tells(leader.asked_ns, batch[0].sent_ns or ends_ns, ends_ns, took_ns):
                error.away = False
        finally:
            try:
                _hand_out(batch, error)
            finally:
                _hand_out(batch, error)  # once more, in case that a signal interrupted the first time

    def _take_those_who_wait(self, batch: list[_Place], leader: _Place) -> None:
        while self._waiting and len(batch) < MOST_IN_A_CALL:
            self._waiting[0].leader = leader
            batch.append(self._waiting[0])
            self._waiting.popleft()

    def _call_for(self, batch: Sequence[_Place], ends_ns: int) -> None:
        requests = [place.request for place in batch]
        command = self._call(requests)
        sent_ns = stopwatch()
        for place in batch:
            place.sent_ns = sent_ns
        reply = self._exchange([command], ends_ns)[0]
        for place, outcome in zip(batch, self._outcomes(reply, requests, sent_ns), strict=True):
            place.outcome = outcome

    def _ask(self, commands: Sequence[Command], ends_ns: int) -> list[Any]:
        """Send commands that are no decision; as many at a time as there are calls."""
        if not self._asking.acquire(timeout=max(0.0, (ends_ns - stopwatch()) / 1e9)):
            raise StoreUnavailable("Redis did not answer in time", away=False)
        try:
            return self._exchange(commands, ends_ns)
        except self._troubles as error:
            raise unavailable(error) from error
        finally:
            self._asking.release()

    def _exchange(self, commands: Sequence[Command], ends_ns: int) -> list[Any]:
        """Send commands once and read their replies; a script that the server does not know is sent in full."""
        connection = self._take()
        try:
            connection.ends_ns = ends_ns
            replies = self._send(connection, commands)
            if lost_script(replies[0]):
                replies = self._send(connection, [in_full(commands[0])])
        except BaseException:
            connection.disconnect()  # its exchange did not come to an end: what is read next would be another's
            raise
        self._idle.append(connection)
        return replies

    def _send(self, connection: Any, commands: Sequence[Command]) -> list[Any]:
        packed = connection.pack_command(*commands[0]) if len(commands) == 1 else connection.pack_commands(commands)
        connection.send_packed_command(packed)
        replies = []
        for _ in commands:
            try:
                replies.append(connection.read_response())
            except self._refusal as error:
                replies.append(error)
        return replies

    def _take(self) -> Any:
        """Return a connection that the server has not closed meanwhile."""
        while self._idle:
            connection = self._idle.pop()
            try:
                if not connection.can_read():
                    return connection
            except Exception:  # noqa: BLE001, S110 - closed, or in a state to close it in
                pass
            connection.disconnect()
        return self._connect()


def _hand_out(batch: Sequence[_Place], error: StoreUnavailable) -> None:
    for place in batch:
        if not place.served:
            place.error = error
            place.served = True
        place.call()
