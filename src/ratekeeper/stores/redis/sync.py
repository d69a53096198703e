"""RedisStore: decisions from threads. What waits while a call is under way goes together into the next one."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ratekeeper.clock import stopwatch
from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores.port import Charge, Demand, Inspection, Operation, Outcome
from ratekeeper.stores.redis import connect, layers
from ratekeeper.stores.redis.base import MOST_IN_A_CALL, MOST_IN_FLIGHT, Base, interrupted, tells, unavailable
from ratekeeper.stores.redis.exchange import Address, Flow, Send, Torn, Unanswered, Unit, Unsent, converse
from ratekeeper.stores.redis.turns import LOOK_AFTER, Turns
from ratekeeper.stores.redis.wire import Request, Result

_PATIENCE_NS = 1_000_000_000  # for what is not a decision, or has no deadline

# From Python 3.12 on, a signal that is handled at a jump back of a loop leaves the `with` or `try` around the loop
# without its exit, and a lock locked. So no loop stands within one where that matters: it is called.


class RedisStore(Base):
    """Keeps state on Redis servers, for threads. Nobody else runs: no thread in the background."""

    for_asyncio = False

    def __init__(self, source: Any, *, remember_denials: bool = True) -> None:
        super().__init__(source, remember_denials=remember_denials)
        self._start()

    def _start(self) -> None:
        super()._start()
        self._turns = Turns(MOST_IN_FLIGHT)  # for what is not a decision
        self._desks: dict[Address | None, Desk] = {}
        self._idle: dict[Address | None, list[Any]] = {}

    def execute(
        self, operation: Operation, demands: Sequence[Demand], charge: Charge | None = None, ends_ns: int | None = None
    ) -> Outcome:
        """Decide or change all demands at one instant; StoreUnavailable when there is no answer in time."""
        ends_ns = stopwatch() + _PATIENCE_NS if ends_ns is None else ends_ns
        request: Request = tuple.__new__(Request, (operation, demands, charge))
        if not self.topology.has_slots:
            return self._desk(None).execute(request, ends_ns)
        if not self.topology.is_known:
            self._find_nodes(ends_ns)
        parts = layers.parts_of(request)
        try:
            return self._at_its_node(request, ends_ns) if len(parts) == 1 else self._across(request, parts, ends_ns)
        except Torn:  # keys of one slot, which is on its way to another node
            return self._across(request, layers.singly(request), ends_ns)

    def inspect(self, demands: Sequence[Demand]) -> list[Inspection]:
        """Show how each demand's key is stored."""
        return self._seen(demands, self._ask(self._look(demands), stopwatch() + _PATIENCE_NS))

    def snapshot(self, demands: Sequence[Demand], ends_ns: int | None = None) -> tuple[int, list[Any]]:
        """Return the time and the state of each demand's key."""
        self._refuse_if_away(demands)
        return self._states(demands, self._ask(self._look(demands), ends_ns or stopwatch() + _PATIENCE_NS))

    def close(self) -> None:
        """Close the connections; the next decision opens new ones."""
        for idle in list(self._idle.values()):
            while idle:
                idle.pop().disconnect()

    def _desk(self, address: Address | None) -> Desk:
        desk = self._desks.get(address)
        if desk is None:
            for gone in [known for known in list(self._desks) if not self.topology.knows(known)]:
                self._desks.pop(gone, None)
            desk = self._desks.setdefault(address, Desk(self, address))
        return desk

    def _at_its_node(self, request: Request, ends_ns: int) -> Outcome:
        return self._desk(self._node_of(request)).execute(request, ends_ns)

    def _across(self, request: Request, parts: layers.Parts, ends_ns: int) -> Outcome:
        sent_ns = stopwatch()
        flow = layers.across(request, parts)
        try:
            asked = next(flow)
            while True:
                results: list[Result] = []
                for part in asked:
                    try:
                        results.append(self._at_its_node(part, ends_ns))
                    except StoreUnavailable as error:
                        results.append(error)
                asked = flow.send(results)
        except StopIteration as stop:
            self._note(request, stop.value, sent_ns)
            return stop.value  # type: ignore[no-any-return]

    def _decided(self, requests: Sequence[Request], sent_ns: int, ends_ns: int) -> Sequence[Result]:
        """Have requests decided; return what came of each."""
        if not self.topology.may_move:
            try:
                (reply,) = self._exchange(Send(None, (self._call(requests),)), ends_ns)
            except Unanswered as error:
                raise unavailable(error.__cause__ or error) from error.__cause__
            results = self._at_once(reply, requests, sent_ns)
            if results is not None:
                return results
        decided: Sequence[Result] = self._run(self._decide(requests, sent_ns), ends_ns)
        return decided

    def _find_nodes(self, ends_ns: int) -> None:
        """Ask which node has which slot; who comes while somebody asks waits for that."""
        self._turns.take(ends_ns, self._discover, ends_ns)

    def _discover(self, ends_ns: int) -> None:
        if not self.topology.is_known:
            with self.breaker:
                self._run(self.topology.discover(), ends_ns)

    def _ask(self, units: Sequence[Unit], ends_ns: int) -> Sequence[Unit]:
        """Send commands that are no decision; as many at a time as there are calls."""
        try:
            self._turns.take(ends_ns, self._run, converse(self.topology, units), ends_ns)
        except self._troubles as error:
            raise unavailable(error) from error
        return units

    def _run(self, flow: Flow, ends_ns: int) -> Any:
        """Drive a flow in this thread."""
        try:
            send = next(flow)
            while True:
                try:
                    replies = self._exchange(send, ends_ns)
                except Unanswered as error:
                    send = flow.throw(error)
                else:
                    send = flow.send(replies)
        except StopIteration as stop:
            return stop.value

    def _exchange(self, send: Send, ends_ns: int) -> list[Any]:
        """Send commands once and read their replies."""
        if send.share < 1:
            now = stopwatch()
            ends_ns = now + int((ends_ns - now) * send.share)
        connection = self._take(send.address, ends_ns)
        try:
            commands = self._with_policy(send)
            connection.send_packed_command(connect.pack(connection, commands))
            replies = [self._reply(connection) for _ in commands]
        except BaseException as error:
            connection.disconnect()  # its exchange did not come to an end: what is read next would be another's
            if isinstance(error, self._troubles):
                raise Unanswered from error
            raise
        self._idle.setdefault(send.address, []).append(connection)
        return self._judged(send, replies)

    def _reply(self, connection: Any) -> Any:
        try:
            return connection.read_response()
        except self._refusal as error:
            return error

    def _take(self, address: Address | None, ends_ns: int) -> Any:
        """Return a connection that the server has not closed meanwhile."""
        idle = self._idle.get(address)
        while idle:
            try:
                connection = idle.pop()
            except IndexError:  # another thread was quicker
                break
            connection.ends_ns = ends_ns
            try:
                if connection.stands():
                    return connection
            except Exception:  # noqa: BLE001, S110 - closed, or in a state to close it in
                pass
            connection.disconnect()
        self._forget_others()
        kind, arguments = self.topology.connection(address)
        connection = connect.bounded(kind)(**arguments)  # type: ignore[arg-type]  # a class is hashable
        connection.ends_ns = ends_ns
        try:
            connection.connect()
        except self._troubles as error:
            connection.disconnect()
            raise Unsent from error
        except BaseException:
            connection.disconnect()
            raise
        return connection

    def _forget_others(self) -> None:
        """Close connections to servers that are no part of the store any more."""
        for address in [known for known in list(self._idle) if not self.topology.knows(known)]:
            for connection in self._idle.pop(address, ()):
                connection.disconnect()


class _Place:
    """One thread's request on its way."""

    __slots__ = ("_called", "asked_ns", "ends_ns", "leader", "request", "result", "sent_ns", "served")

    def __init__(self, request: Request, ends_ns: int) -> None:
        self.request = request
        self.asked_ns = stopwatch()
        self.ends_ns = ends_ns
        self.result: Result | None = None
        self.served = False
        self.leader: _Place | None = None  # who sends it
        self.sent_ns: int | None = None
        self._called: Any = None  # a lock that is held until this place is served or is to lead; a lone one has none

    def expect_call(self) -> None:
        self._called = threading.Lock()
        self._called.acquire()

    def call(self) -> None:
        if self._called is not None:
            with suppress(RuntimeError):  # called already
                self._called.release()

    def sleep(self, seconds: float) -> None:
        if self._called is None:
            self.expect_call()
        if not self.served:  # from here on, who serves it will call
            self._called.acquire(timeout=seconds)


class Desk:
    """The calls to one server. Up to two are under way at a time.

    A thread that finds a free one leads: it sends what waits, its own request included, reads the answers and hands
    them out.
    """

    def __init__(self, store: RedisStore, address: Address | None) -> None:
        self._store = store
        self._breaker = store.breaker_of(address)
        self._lock = threading.Lock()
        self._waiting: deque[_Place] = deque()
        self._leaders: set[_Place] = set()
        self._crowded = False  # whether the latest call was for several

    def execute(self, request: Request, ends_ns: int) -> Outcome:
        """Have a request decided, together with what other threads ask for."""
        breaker = self._breaker
        if breaker.is_open:
            with breaker:
                return self._take_part(request, ends_ns)
        try:
            outcome = self._take_part(request, ends_ns)
        except StoreUnavailable as error:
            breaker.noted(error)
            raise
        if breaker.is_open:  # by another call, at the same time
            breaker.succeeded()
        return outcome

    def _take_part(self, request: Request, ends_ns: int) -> Outcome:
        place = _Place(request, ends_ns)
        try:
            with self._lock:
                if len(self._leaders) < MOST_IN_FLIGHT:
                    self._leaders.add(place)
                else:
                    place.expect_call()
                self._waiting.append(place)
            self._see_served(place)
        finally:
            if not place.served or place in self._leaders:
                try:
                    self._leave(place)
                finally:
                    try:
                        self._leave(place)  # once more, in case that a signal interrupted the first time
                    finally:
                        self._leaders.discard(place)  # one call of C code, which no signal interrupts
        if not isinstance(place.result, Outcome):
            raise unavailable(place.result or interrupted())
        return place.result

    def _see_served(self, place: _Place) -> None:
        while not place.served:
            now = stopwatch()
            if now >= place.ends_ns:
                raise StoreUnavailable("Redis did not answer in time", away=self._tells(place, None))
            if place in self._leaders:
                if self._crowded:
                    time.sleep(0)  # lets other threads come along
                self._serve(place)
                self._hand_over(place)  # served or not: another leader may have this request under way
            else:
                place.sleep(min((place.ends_ns - now) / 1e9, LOOK_AFTER))
                if not place.served:
                    self._look_after(place)

    def _tells(self, place: _Place, error: BaseException | None) -> bool:
        if place.sent_ns is None:
            return False
        return tells(error, place.asked_ns, place.sent_ns, place.ends_ns, self._store.took_ns)

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
            following = self._with_most_time() if self._waiting else None
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
                raise interrupted()

    def _serve(self, leader: _Place) -> None:
        """Send what waits and hand out the answers."""
        batch: list[_Place] = []
        error = None
        try:
            with self._lock:
                self._take_those_who_wait(batch, leader)
            self._crowded = len(batch) > 1
            if batch:
                self._call_for(batch, leader)
        except self._store._troubles as caught:  # noqa: SLF001
            error = unavailable(caught)
            if not self._tells(leader, error.__cause__):
                error.away = False
        finally:
            try:
                _hand_out(batch, error)
            except BaseException:
                _hand_out(batch, error)  # once more, if a signal interrupted the first time
                raise

    def _take_those_who_wait(self, batch: list[_Place], leader: _Place) -> None:
        """Fill a batch; whoever has far more time than the leader, whose time bounds the call, is to lead another."""
        now = stopwatch()
        latest_ns = now + 2 * (leader.ends_ns - now)
        for place in list(self._waiting):
            if len(batch) < MOST_IN_A_CALL and place.ends_ns <= latest_ns:
                place.leader = leader
                batch.append(place)
                self._waiting.remove(place)

    def _call_for(self, batch: Sequence[_Place], leader: _Place) -> None:
        leader.sent_ns = sent_ns = stopwatch()
        for place in batch:
            place.sent_ns = sent_ns
        results = self._store._decided([place.request for place in batch], sent_ns, leader.ends_ns)  # noqa: SLF001
        for place, result in zip(batch, results, strict=True):
            if isinstance(result, StoreUnavailable) and not self._tells(leader, result.__cause__):
                result.away = False
            place.result = result


def _hand_out(batch: Sequence[_Place], error: StoreUnavailable | None) -> None:
    for place in batch:
        if place.result is None:
            place.result = error or interrupted()
        place.served = True
        place.call()
