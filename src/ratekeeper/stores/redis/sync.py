"""RedisStore: decisions from threads."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ratekeeper.clock import stopwatch
from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores.protocol import Demand, Inspection, Outcome, Snapshot
from ratekeeper.stores.redis import connect, layers
from ratekeeper.stores.redis.base import MOST_IN_FLIGHT, Base, unavailable
from ratekeeper.stores.redis.desk import Desk
from ratekeeper.stores.redis.exchange import Address, Flow, Send, Torn, Unanswered, Unit, Unsent, converse
from ratekeeper.stores.redis.turns import Turns
from ratekeeper.stores.redis.wire import Request, Result

_PATIENCE_NS = 1_000_000_000  # for what is not a decision, or has no deadline
_KEPT = 0.1  # of a request's time


class RedisStore(Base):
    """Keeps state on Redis servers, for threads. Nobody else runs: no thread in the background."""

    def __init__(self, source: Any, *, remember_denials: bool = True) -> None:
        super().__init__(source, for_asyncio=False, remember_denials=remember_denials)
        self.after_fork()

    def for_threads(self) -> RedisStore:
        return self

    def for_asyncio(self) -> RedisStore:
        raise TypeError(f"{self!r} would block the event loop; an AsyncLimiter needs an AsyncRedisStore")

    def after_fork(self) -> None:
        super().after_fork()
        self._turns = Turns(MOST_IN_FLIGHT)  # for what is not a decision
        self._desks: dict[Address | None, Desk] = {}
        self._idle: dict[Address | None, list[Any]] = {}

    def execute(self, demands: Sequence[Demand], ends_ns: int | None = None) -> Outcome:
        """Decide or change all demands at one instant; StoreUnavailable when there is no answer in time."""
        known = self.denials.recall(demands) if self.denials is not None else None
        if known is not None:
            return known
        try:
            return self._execute(demands, stopwatch() + _PATIENCE_NS if ends_ns is None else ends_ns)
        except StoreUnavailable:
            self.doubt(demands)
            raise

    def _execute(self, request: Request, ends_ns: int) -> Outcome:
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

    def snapshot(self, demands: Sequence[Demand], ends_ns: int | None = None) -> Snapshot:
        """Return the time and the state of each demand's key."""
        self._refuse_if_away(demands)
        return self._states(demands, self._ask(self._look(demands), ends_ns or stopwatch() + _PATIENCE_NS))

    def close(self) -> None:
        """Close the connections; the next decision opens new ones."""
        for idle in list(self._idle.values()):
            with suppress(IndexError):  # another thread was quicker
                while idle:
                    idle.pop().disconnect()

    def _desk(self, address: Address | None) -> Desk:
        desk = self._desks.get(address)
        if desk is None:
            for gone in [known for known in list(self._desks) if not self.topology.knows(known)]:
                self._desks.pop(gone, None)
            desk = self._desks.setdefault(address, Desk(self, address))
        return desk

    def _at_its_node(self, request: Request, ends_ns: int, asked_ns: int | None = None) -> Outcome:
        return self._desk(self._node_of(request)).execute(request, ends_ns, asked_ns)

    def _across(self, request: Request, parts: layers.Parts, ends_ns: int) -> Outcome:
        sent_ns = stopwatch()
        flow = layers.across(request, parts)
        try:
            asked = next(flow)
            while True:
                # Of the time to charge, a part is kept to give back what was taken if a later one does not answer.
                soon_ns = ends_ns - int(_KEPT * (ends_ns - sent_ns)) if layers.takes(asked) else ends_ns
                try:
                    results = [self._result(part, soon_ns, sent_ns) for part in asked]
                except BaseException as error:  # noqa: BLE001 - a signal, above all: the flow cleans up
                    asked = flow.throw(error)
                else:
                    asked = flow.send(results)
        except StopIteration as stop:
            self._note(request, stop.value, sent_ns)
            return stop.value  # type: ignore[no-any-return]

    def _result(self, part: Request, ends_ns: int, asked_ns: int) -> Result:
        try:
            return self._at_its_node(part, ends_ns, asked_ns)
        except StoreUnavailable as error:
            return error

    def decided(self, requests: Sequence[Request], sent_ns: int, ends_ns: int) -> Sequence[Result]:
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
            with self.breaker.asking(ends_ns):
                self._run(self.topology.discover(), ends_ns)

    def _ask(self, units: Sequence[Unit], ends_ns: int) -> Sequence[Unit]:
        """Send commands that are no decision; as many at a time as there are calls."""
        try:
            self._turns.take(ends_ns, self._run, converse(self.topology, units), ends_ns)
        except self.troubles as error:
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
        idle = self._idle  # a child that is forked meanwhile has another: this connection is its parent's
        connection = self._take(send.address, ends_ns)
        try:
            commands = self._with_policy(send)
            connection.send_packed_command(connect.pack(connection, commands))
            replies = [connection.reply() for _ in commands]
        except BaseException as error:
            connection.disconnect()  # its exchange did not come to an end: what is read next would be another's
            if isinstance(error, self.troubles):
                raise Unanswered from error
            raise
        idle.setdefault(send.address, []).append(connection)
        return self._judged(send, replies)

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
        except self.troubles as error:
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
