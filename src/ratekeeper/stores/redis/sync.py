"""RedisStore: decisions from threads. What waits while a call is under way goes together into the next one."""

from __future__ import annotations

import os
import threading
import weakref
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
    lost_script,
    unavailable,
)
from ratekeeper.stores.redis.wire import Request

_PATIENCE_NS = 1_000_000_000  # for what is not a decision, or has no deadline


class _Place:
    """One thread's request on its way."""

    __slots__ = ("_called", "error", "outcome", "request", "served")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.outcome: Outcome | None = None
        self.error: BaseException | None = None
        self.served = False
        self._called = threading.Lock()  # held until this place is served or is to lead
        self._called.acquire()

    def call(self) -> None:
        with suppress(RuntimeError):  # called already
            self._called.release()

    def sleep(self, seconds: float) -> None:
        self._called.acquire(timeout=max(0.0, seconds))


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
        _stores.add(self)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[_Place] = deque()
        self._leaders: set[_Place] = set()
        self._idle: list[Any] = []

    def execute(
        self, operation: Operation, demands: Sequence[Demand], charge: Charge | None = None, ends_ns: int | None = None
    ) -> Outcome:
        """Decide or change all demands at one instant; StoreUnavailable when there is no answer in time."""
        ends_ns = stopwatch() + _PATIENCE_NS if ends_ns is None else ends_ns
        place = _Place(Request(operation, demands, charge))
        try:
            with self._lock:
                self._waiting.append(place)
                if len(self._leaders) < MOST_IN_FLIGHT:
                    self._leaders.add(place)
            while not place.served:
                left = (ends_ns - stopwatch()) / 1e9
                if left <= 0:
                    raise StoreUnavailable("Redis did not answer in time", away=place not in self._waiting)
                if place in self._leaders:
                    self._serve(ends_ns)
                    self._hand_over(place)  # served or not: another leader may have this request under way
                else:
                    place.sleep(left)
        finally:
            self._leave(place)
        if place.outcome is None:
            raise place.error or StoreUnavailable("the call to Redis was interrupted")
        return place.outcome

    def inspect(self, demands: Sequence[Demand]) -> list[Inspection]:
        """Show how each demand's key is stored."""
        return self._seen(demands, self._ask(self._look(demands)))

    def snapshot(self, demands: Sequence[Demand]) -> tuple[int, list[Any]]:
        """Return the time and the state of each demand's key."""
        return self._states(demands, self._ask(self._look(demands)))

    def close(self) -> None:
        """Close the connections; the next decision opens new ones."""
        while self._idle:
            self._idle.pop().disconnect()

    def _leave(self, place: _Place) -> None:
        """Take a place out of everything, whatever came of it."""
        if not place.served:
            with self._lock:
                if place in self._waiting:
                    self._waiting.remove(place)
        self._hand_over(place)

    def _hand_over(self, place: _Place) -> None:
        if place in self._leaders:
            with self._lock:
                self._leaders.discard(place)
                following = next((waiting for waiting in self._waiting if waiting not in self._leaders), None)
                if following is not None:
                    self._leaders.add(following)
                    following.call()

    def _serve(self, ends_ns: int) -> None:
        with self._lock:
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), MOST_IN_A_CALL))]
        if not batch:
            return
        error: BaseException | None = None
        try:
            requests = [place.request for place in batch]
            by_hash, in_full = self._call(requests)
            sent_ns = stopwatch()
            reply = self._exchange([by_hash], ends_ns, in_full)[0]
            for place, outcome in zip(batch, self._outcomes(reply, requests, sent_ns), strict=True):
                place.outcome = outcome
        except Exception as caught:  # noqa: BLE001 - every thread in the batch has to hear of it
            error = unavailable(caught)
        finally:
            for place in batch:
                place.error = error
                place.served = True
                place.call()

    def _ask(self, commands: Sequence[Command]) -> list[Any]:
        try:
            return self._exchange(commands, stopwatch() + _PATIENCE_NS)
        except Exception as error:
            raise unavailable(error) from error

    def _exchange(self, commands: Sequence[Command], ends_ns: int, in_full: Command | None = None) -> list[Any]:
        """Send commands once and read their replies; a script that the server does not know is sent in full."""
        connection = self._take()
        try:
            connection.ends_ns = ends_ns
            replies = self._send(connection, commands)
            if in_full is not None and lost_script(replies[0]):
                replies = self._send(connection, [in_full])
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


_stores: weakref.WeakSet[RedisStore] = weakref.WeakSet()


def _start_again() -> None:
    """In a forked child the other threads do not exist, and the sockets are the parent's."""
    for store in _stores:
        store._start()  # noqa: SLF001


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_again)
