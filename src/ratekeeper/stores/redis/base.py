"""What both Redis stores share: everything that needs no waiting."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import Any, ClassVar

from ratekeeper.clock import Clock, stopwatch
from ratekeeper.errors import InvalidRule, StoreUnavailable
from ratekeeper.rates import show
from ratekeeper.stores.breaker import Breaker
from ratekeeper.stores.port import Binding, Demand, Inspection, Outcome
from ratekeeper.stores.redis import connect, script, wire
from ratekeeper.stores.redis.denials import Denials
from ratekeeper.stores.redis.wire import Request

MOST_IN_FLIGHT = 2
MOST_IN_A_CALL = 512

FAIR_NS = 20_000_000  # a call that had less time than this does not tell whether Redis is away

Command = tuple[bytes, ...]  # never an int: see wire.encode

_SHA, _TEXT = script.SHA.encode(), script.TEXT.encode()


class Base:
    """A Redis server, by URL or as an existing redis-py client or pool connects to it."""

    for_asyncio: ClassVar[bool]

    def __init__(self, source: Any, *, remember_denials: bool = True) -> None:
        self.denials = Denials() if remember_denials else None
        self._kind, self._arguments = connect.settings(source, for_asyncio=self.for_asyncio)
        self._refusal, self._troubles = connect.errors()
        self._shown = connect.safe(source) if isinstance(source, str) else f"<{type(source).__name__}>"
        self._wires: dict[int, wire.Wire] = {}
        self._bound: dict[int, Binding] = {}  # keeps what the ids of the wires stand for
        self._clock: Clock | None = None
        self._took_ns = 0  # how long the latest answer took
        self.breaker = Breaker(repr(self))
        _stores.add(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._shown})"

    def bind(self, binding: Binding, clock: Clock | None) -> None:
        """Prepare for a limiter's rule and its clock. All limiters of one store share one clock."""
        if self._wires and clock != self._clock:
            raise InvalidRule(
                f"clock {show(clock)} differs from this store's, {show(self._clock)}; use one clock a store"
            )
        self._clock = clock
        if clock is not None and self.denials is not None:
            self.denials.timer = clock
        self._bound[id(binding)] = binding
        self._wires[id(binding)] = wire.wire_of(binding)

    def unbind(self, bindings: Sequence[Binding]) -> None:
        """Forget a limiter's rules."""
        for binding in bindings:
            self._bound.pop(id(binding), None)
            self._wires.pop(id(binding), None)

    def _start(self) -> None:
        """Begin with nothing under way; in a forked child, begin again."""
        self.breaker.start_again()
        if self.denials is not None:
            self.denials.start_again()

    def _now(self) -> int | None:
        """Return the injected clock's time in microseconds; None: the server's own counts."""
        if self._clock is None:
            return None
        now = self._clock() // 1000
        if now < 0:
            raise InvalidRule(f"clock shows {now} us, which is before 1970; Redis stores need a time since then")
        return now

    def recall(self, demands: Sequence[Demand]) -> Outcome | None:
        """Return the answer to a hit that Redis has denied just now and would deny again."""
        return None if self.denials is None else self.denials.recall(demands)

    def _outcomes(self, reply: Any, requests: Sequence[Request], sent_ns: int) -> list[Outcome]:
        """Return what a call's reply says, or raise the error that it is."""
        self._took_ns = stopwatch() - sent_ns
        if isinstance(reply, Exception):
            raise unavailable(reply)
        outcomes = wire.decode(reply, requests)
        if self.denials is not None:
            if self._clock is not None:
                sent_ns = outcomes[0].now_us * 1000
            for request, outcome in zip(requests, outcomes, strict=True):
                self.denials.note(request.operation, request.demands, outcome, sent_ns)
        return outcomes

    def _call(self, requests: Sequence[Request]) -> Command:
        """Return the command that decides these requests, by the script's hash."""
        names, arguments = wire.encode(self._now(), requests, self._wires)
        return (b"EVALSHA", _SHA, b"%d" % len(names), *names, *arguments)

    def _look(self, demands: Sequence[Demand]) -> list[Command]:
        """Return the commands that show how keys are stored: the time, and three for each key."""
        commands: list[Command] = [(b"TIME",)]
        for demand in demands:
            name = self._name(demand)
            is_log = demand.binding.rule.script == "sliding_window_log"
            commands += (
                (b"LRANGE", name, b"0", b"-1") if is_log else (b"GET", name),
                (b"PTTL", name),
                (b"MEMORY", b"USAGE", name, b"SAMPLES", b"0"),
            )
        return commands

    def _seen(self, demands: Sequence[Demand], replies: Sequence[Any]) -> list[Inspection]:
        """Make inspections of the replies to `_look`."""
        self._check(replies)
        now = self._time_of(replies[0])
        inspections = []
        for index, demand in enumerate(demands):
            value, ttl_ms, size = replies[3 * index + 1 : 3 * index + 4]
            rule = demand.binding.rule
            if not value:
                inspections.append(Inspection(rule.text, dict(rule.words(None, now)), None, None, 0))
                continue
            words = dict(rule.words(rule.load(value), now))
            inspections.append(Inspection(rule.text, words, value, ttl_ms / 1000, size if isinstance(size, int) else 0))
        return inspections

    def _states(self, demands: Sequence[Demand], replies: Sequence[Any]) -> tuple[int, list[Any]]:
        """Make a snapshot of the replies to `_look`."""
        self._check(replies)
        values = replies[1::3]
        states = [
            demand.binding.rule.load(value) if value else None for demand, value in zip(demands, values, strict=True)
        ]
        return self._time_of(replies[0]), states

    def _check(self, replies: Sequence[Any]) -> None:
        for index, reply in enumerate(replies):
            if isinstance(reply, Exception) and (index == 0 or index % 3):  # that it may not tell its memory is fine
                raise unavailable(reply)

    def _name(self, demand: Demand) -> bytes:
        return wire.key_name(self._wires[id(demand.binding)], demand.key)

    def _time_of(self, reply: Sequence[bytes]) -> int:
        now = self._now()
        return int(reply[0]) * 1_000_000 + int(reply[1]) if now is None else now


def tells(asked_ns: float, sent_ns: float, ends_ns: float, took_ns: float) -> bool:
    """Tell whether a call that failed tells that Redis is away, and not only that it had waited in our queue.

    It had twice the time that the latest answer took, or nearly all of its own.
    """
    return ends_ns - sent_ns >= max(FAIR_NS, min(2 * took_ns, 0.9 * (ends_ns - asked_ns)))


def lost_script(reply: Any) -> bool:
    """Tell whether the server does not know the script (any more)."""
    return type(reply).__name__ == "NoScriptError"


def in_full(command: Command) -> Command:
    """Return a call by hash as the call that brings the script along."""
    return (b"EVAL", _TEXT, *command[2:])


def unavailable(error: BaseException) -> StoreUnavailable:
    """Say why Redis did not decide. Each caller gets an error of its own: they are raised in different places."""
    if isinstance(error, StoreUnavailable):
        again = StoreUnavailable(str(error), away=error.away)
        again.__cause__ = error.__cause__ or error
        return again
    text = str(error)
    if "unauthenticated" in text:  # how Redis refuses a command that is long, before it looks at what it is
        text += "; it asks for a password"
    at_fault = "WRONGTYPE" in text or "RATEKEEPER" in text  # one key, or one request; the others are fine
    made = StoreUnavailable(f"Redis did not decide: {type(error).__name__}: {text}", away=not at_fault)
    made.__cause__ = error
    return made


_stores: weakref.WeakSet[Base] = weakref.WeakSet()


def _start_again() -> None:
    """In a forked child the other threads do not exist, and the sockets are the parent's."""
    for store in _stores:
        store._start()  # noqa: SLF001


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_again)
