"""What a request took from a budget, and its correction once the answer is there: for requests in and out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

from ratekeeper import arguments, lines, waiting
from ratekeeper.core import Core, Costs, Keys
from ratekeeper.decision import Decision
from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores.port import Charge, Demand

Flow = Generator[Any, Any, Any]
SettleFunction = Callable[[Any], "Costs | None"]
"""Given the whole answer, returns the real cost; None leaves it at the estimate."""

_MAX_BODY = 16 * 2**20  # bytes of an answer that are kept for its settlement
_log = logging.getLogger("ratekeeper")


class Taken(NamedTuple):
    """What a request took, and when."""

    key: Keys
    demands: list[Demand]
    charge: Charge


def take(core: Core, key: Keys, cost: Costs) -> Generator[Any, Any, tuple[Decision, Taken | None]]:
    """Hit, and keep what was taken, if anything was."""
    demands = core.demands(key, cost)
    if not core.enabled:
        return core.tell(key, core.switched_off(demands)), None
    outcome = core.recall(demands) or (yield core.decide("hit", demands))
    decision = core.tell(key, core.conclude(demands, outcome))
    return decision, Taken(key, demands, outcome.charge) if decision.allowed else None


def correct(core: Core, taken: Taken, real_cost: Costs) -> Flow:
    """Charge what a request cost more than it took, rule by rule, and give back what it cost less."""
    names = [binding.name for binding in core.bindings]
    paid = dict.fromkeys(names, 0) | {demand.binding.name: demand.cost for demand in taken.demands}
    real = paid | arguments.by_name("the real cost", real_cost, names, arguments.check_cost)
    more = {name: max(0, real[name] - paid[name]) for name in names}
    if any(more.values()):
        yield core.decide("charge", core.demands(taken.key, more))
    less = [demand._replace(cost=demand.cost - real[demand.binding.name]) for demand in taken.demands]
    yield from give_back(core, less, taken.charge)


def give_back(core: Core, demands: Sequence[Demand], charge: Charge) -> Flow:
    """Give back of what was taken, as far as it still counts: not in a window that began later, say."""
    spare = [at for at, demand in enumerate(demands) if demand.cost > 0]
    if spare:
        demands = [demands[at] for at in spare]
        yield core.execute("give_back", demands, charge.part(spare))
        core.lines.nudge(demands)


class Ledger:
    """Corrects what the requests of a client took from one limiter's budget."""

    def __init__(self, core: Core, settle: SettleFunction | None) -> None:
        self.core = core
        self.settle_function = settle
        self._logged: set[str] = set()

    def give_back(self, demands: Sequence[Demand], charge: Charge) -> Flow:
        """Give back what a request took that is not sent."""
        try:
            yield from give_back(self.core, demands, charge)
        except StoreUnavailable:
            self._log_once("the store is away, and what a request took is not given back")

    def settle(self, taken: Taken, make_answer: Callable[[], Any]) -> Flow:
        """Charge what an answer cost more than was taken, or give back what it cost less."""
        try:
            real = None if self.settle_function is None else self.settle_function(make_answer())
            if real is not None:
                yield from correct(self.core, taken, real)
        except StoreUnavailable:
            self._log_once("the store is away, and a request is not settled")
        except Exception:  # noqa: BLE001 - the application's function: its trouble is no reason to lose the answer
            self._log_once("a settlement failed, and the request costs what was estimated")

    def _log_once(self, what: str) -> None:
        if what not in self._logged:
            self._logged.add(what)
            _log.warning("%s; this is said once", what, exc_info=True)


class Settlement:
    """Keeps a copy of one answer's body while it passes, and settles at its end; what is cut off is not settled."""

    def __init__(self, ledger: Ledger, taken: Taken) -> None:
        self._ledger = ledger
        self._taken = taken
        self._chunks: list[bytes] = []
        self._size = 0

    def keep(self, chunk: bytes) -> None:
        """Keep a part of the body."""
        self._size += len(chunk)
        if self._size <= _MAX_BODY:
            self._chunks.append(chunk)
        else:
            self._chunks.clear()

    def run(self, make_answer: Callable[[bytes], Any]) -> None:
        """Settle; `make_answer` makes an answer of the whole body."""
        waiting.run(self._ledger.core, self._flow(make_answer), lines.Waiter())

    async def run_async(self, make_answer: Callable[[bytes], Any]) -> None:
        """Settle; `make_answer` makes an answer of the whole body."""
        await waiting.run_async(self._ledger.core, self._flow(make_answer), lines.AsyncWaiter())

    def _flow(self, make_answer: Callable[[bytes], Any]) -> Flow:
        return self._ledger.settle(self._taken, lambda: make_answer(self._body()))

    def _body(self) -> bytes:
        if self._size > _MAX_BODY:
            raise ValueError(f"the body has {self._size} bytes; at most {_MAX_BODY} are kept for a settlement")
        return b"".join(self._chunks)
