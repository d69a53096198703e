"""Decisions that the store cannot make at the moment: each is made within its deadline, as `on_error` says."""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, cast

from ratekeeper.clock import Clock, stopwatch
from ratekeeper.decision import RuleAnswer
from ratekeeper.errors import StoreUnavailable
from ratekeeper.flows import Flow
from ratekeeper.notices import Notices
from ratekeeper.rules import share_of
from ratekeeper.stores.breaker import PROBE_US
from ratekeeper.stores.memory import MemoryStore
from ratekeeper.stores.protocol import Binding, Demand, Layer, Outcome, Snapshot, Store

if TYPE_CHECKING:
    from fractions import Fraction

OnError = Literal["local", "open", "closed", "raise"]
_CONSEQUENCES = {
    "local": "this process enforces the rules alone",
    "open": "everything is admitted",
    "closed": "everything is denied",
}
NOTHING_ASKED = Outcome(0, ())
"""The answer to a request that asks nothing of the store."""
_NO_FORECAST = "those who wait are refused once their timeout has passed, not as soon as it is hopeless"


class Fallback:
    """The layer between a limiter and a store that may be away."""

    def __init__(
        self,
        layer: Layer,
        store: Store,
        *,
        share: Fraction,
        on_error: OnError,
        deadline: float,
        clock: Clock | None,
        notices: Notices,
        run: Callable[[Flow[Snapshot]], Snapshot | Awaitable[Snapshot]],
    ) -> None:
        """`layer` is the layer below; `share` is the part of the limits that this process enforces while it is away.

        `run` drives a flow, in a thread or in a task.
        """
        self._layer = layer
        self._on_error = on_error
        self._notices = notices
        self._run = run
        self._deadline_ns = int(deadline * 1e9)
        self._local = stand_in_of(store, clock)
        self._clock = clock
        self._share = share
        self._shares: dict[int, tuple[Binding, Binding]] = {}  # by the binding's id: it, and its share in `_local`
        weakref.finalize(self, _unbind, self._local, self._shares).atexit = False

    def execute(self, demands: Sequence[Demand], ends_ns: int | None = None) -> Outcome | Awaitable[Outcome]:
        """Let the store decide, or its stand-in if the store is away."""
        if not demands:
            return NOTHING_ASKED
        receipt = demands[0].receipt
        if receipt is not None and receipt.degraded:
            return self.stand_in(demands)  # the fallback was charged, not the store
        try:
            outcome = self._layer.execute(demands, ends_ns or stopwatch() + self._deadline_ns)
        except StoreUnavailable as error:
            return self.instead(error, demands)
        return outcome if type(outcome) is Outcome else self._awaited(cast("Awaitable[Outcome]", outcome), demands)

    # Not a flow, as `_snapshot` is: that would make each decision two calls longer.
    async def _awaited(self, coming: Awaitable[Outcome], demands: Sequence[Demand]) -> Outcome:
        try:
            return await coming
        except StoreUnavailable as error:
            return self.instead(error, demands)

    def snapshot(self, demands: Sequence[Demand], ends_ns: int | None = None) -> Snapshot | Awaitable[Snapshot]:
        """Return the time and the states from which a forecast starts: the stand-in's only if it decides now."""
        return self._run(self._snapshot(demands, ends_ns))

    def _snapshot(self, demands: Sequence[Demand], ends_ns: int | None) -> Flow[Snapshot]:
        try:
            snapshot: Snapshot = yield self._layer.snapshot(demands, ends_ns or stopwatch() + self._deadline_ns)
        except StoreUnavailable as error:
            peeked: Outcome = yield self.execute([_as_peek(demand) for demand in demands])
            if not peeked.degraded:  # the store does decide
                self._notices.note("degraded", f"{error.reason}; {_NO_FORECAST}", 0, detail=error)
                raise StoreUnavailable(str(error), away=False, answered=True, reason=error.reason) from error
            return self._local.snapshot(self._of_share(demands))._replace(degraded=True)
        return snapshot

    def forget(self, bindings: Sequence[Binding]) -> Awaitable[None] | None:
        """Forget every key of these rules, here and in the store; raise StoreUnavailable if the store is away."""
        known = (self._shares.get(id(binding)) for binding in bindings)
        self._local.forget([each[1] for each in known if each is not None])
        return self._layer.forget(bindings)

    def release(self, bindings: Sequence[Binding]) -> None:
        """Note that rules have ended. Garbage collection may call this at any moment."""
        known = [self._shares.pop(id(binding), None) for binding in bindings]
        ended = [each[1] for each in known if each is not None]
        if ended:
            self._local.unbind(ended)

    def set_options(self, on_error: OnError, share: Fraction) -> None:
        """Say what decisions are while the store cannot answer."""
        self._on_error = on_error
        if share != self._share:
            self._share = share
            self.release([binding for binding, _ in list(self._shares.values())])  # each is bound anew when needed

    def instead(self, error: StoreUnavailable, demands: Sequence[Demand]) -> Outcome:
        """Decide without the store, which raised `error`, or raise it again if `on_error` is "raise"."""
        if self._on_error == "raise":
            raise error
        self._note(error, 1)
        return self.stand_in(demands)

    def _note(self, error: StoreUnavailable, decisions: int) -> None:
        reason = f"{error.reason}; {_CONSEQUENCES[self._on_error]} meanwhile"
        self._notices.note("degraded", reason, decisions, detail=error)

    def stand_in(self, demands: Sequence[Demand]) -> Outcome:
        """Decide without the store."""
        on_error = self._on_error
        try:
            asked = self._of_share(demands)
            if on_error != "local":
                asked = [_as_peek(demand) for demand in asked]
            outcome = self._local.execute(asked)
        except StoreUnavailable:  # even its stand-in is in the middle of a call of this thread
            outcome, on_error = Outcome(0, []), "closed" if on_error == "local" else on_error
        if on_error == "local":
            answers = [_at_least_later(demand, answer) for demand, answer in zip(demands, outcome.answers, strict=True)]
        elif on_error == "closed":
            answers = [(False, 0, PROBE_US, 0, 0) for _ in demands]
        else:
            answers = [(True, demand.binding.rule.limit, 0, 0, 0) for demand in demands]
        return Outcome(outcome.now_us, answers, degraded=True)

    def _of_share(self, demands: Sequence[Demand]) -> list[Demand]:
        """Return the demands with this process's share of the limits; only the store gives back what it was charged."""
        shares = [demand._replace(binding=self._share_of(demand.binding)) for demand in demands]
        return [demand if demand.receipt is None or demand.receipt.degraded else _as_peek(demand) for demand in shares]

    def _share_of(self, binding: Binding) -> Binding:
        """Return this process's share of a rule; it is bound when it is needed, for rules may come and go."""
        known = self._shares.get(id(binding))
        if known is None:
            share = binding._replace(rule=share_of(binding.rule, self._share))
            self._local.bind(share, self._clock)
            known = self._shares.setdefault(id(binding), (binding, share))  # one C call: other threads get the same
            if known[1] is not share:
                self._local.unbind([share])
        return known[1]


def _unbind(local: MemoryStore, shares: Mapping[int, tuple[Binding, Binding]]) -> None:
    local.unbind([share for _, share in shares.values()])


class ReentrantCalls:
    """The layer between a limiter and a store that is never away.

    Such a store decides every call except this kind: a signal handler or a finalizer may call it in the middle of
    another call of the same thread, and that call cannot go on until the second one returns.
    """

    __slots__ = ("_execute", "_fallback", "_layer", "_make_fallback", "_options", "snapshot")

    def __init__(self, store: Layer, fallback: Callable[[], Fallback]) -> None:
        """`fallback` makes the layer that decides such calls, once there is one."""
        self._layer = store
        self._execute = store.execute
        self.snapshot = store.snapshot
        self._make_fallback = fallback
        self._fallback: Fallback | None = None
        self._options: tuple[OnError, Fraction] | None = None  # if they have changed

    def execute(self, demands: Sequence[Demand], ends_ns: int | None = None) -> Outcome | Awaitable[Outcome]:
        """Let the store decide, or its stand-in in the middle of another call."""
        if not demands:
            return NOTHING_ASKED
        receipt = demands[0].receipt
        if receipt is not None and receipt.degraded:
            return self._prepared().stand_in(demands)
        try:
            return self._execute(demands, ends_ns)
        except StoreUnavailable as error:
            return self._prepared().instead(error, demands)

    def forget(self, bindings: Sequence[Binding]) -> Awaitable[None] | None:
        """Forget every key of these rules, also those that the stand-in counts."""
        return self._layer.forget(bindings) if self._fallback is None else self._fallback.forget(bindings)

    def release(self, bindings: Sequence[Binding]) -> None:
        """Note that rules have ended. Garbage collection may call this at any moment."""
        if self._fallback is not None:
            self._fallback.release(bindings)

    def set_options(self, on_error: OnError, share: Fraction) -> None:
        """Say what decisions are in the middle of another call."""
        self._options = on_error, share
        if self._fallback is not None:
            self._fallback.set_options(on_error, share)

    def _prepared(self) -> Fallback:
        fallback = self._fallback
        if fallback is None:
            fallback = self._fallback = self._make_fallback()
            if self._options is not None:
                fallback.set_options(*self._options)
        return fallback


def _as_peek(demand: Demand) -> Demand:
    return demand._replace(operation="peek", receipt=None)


def _at_least_later(demand: Demand, answer: RuleAnswer) -> RuleAnswer:
    """Let a cost that never fits into this process's share retry later: it may fit once the store is back."""
    if answer[2] is None and demand.cost <= demand.binding.rule.limit:
        return (*answer[:2], PROBE_US, *answer[3:])
    return answer


_stand_ins: weakref.WeakKeyDictionary[Store, MemoryStore] = weakref.WeakKeyDictionary()


def stand_in_of(store: Store, clock: Clock | None) -> MemoryStore:
    """Return the memory store in which limiters count while a store is away; a new one if its clock has changed."""
    known = _stand_ins.get(store)
    if known is None:
        known = _stand_ins.setdefault(store, MemoryStore())  # one C call: other threads get the same
    if not known.agrees_on(clock):
        known = _stand_ins[store] = MemoryStore()
    return known
