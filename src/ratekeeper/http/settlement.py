"""What a request took from a budget, and its correction once the answer is there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

from ratekeeper import arguments, lines, waiting
from ratekeeper.core import Core, Costs, Keys
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


class Ledger:
    """Corrects what requests took from one limiter's budget."""

    def __init__(self, core: Core, settle: SettleFunction | None) -> None:
        self.core = core
        self.settle_function = settle
        self._logged: set[str] = set()

    def give_back(self, demands: Sequence[Demand], charge: Charge) -> Flow:
        """Give back of what was taken, as far as it still counts: not in a window that began later, say."""
        spare = [at for at, demand in enumerate(demands) if demand.cost > 0]
        if not spare:
            return
        demands = [demands[at] for at in spare]
        try:
            yield self.core.execute("give_back", demands, charge.part(spare))
        except StoreUnavailable:
            self._log_once("the store is away, and what a request took is not given back")
        self.core.lines.nudge(demands)

    def settle(self, taken: Taken, make_answer: Callable[[], Any]) -> Flow:
        """Charge what an answer cost more than was taken, or give back what it cost less."""
        core = self.core
        try:
            real: Any = None if self.settle_function is None else self.settle_function(make_answer())
            if real is None:
                return
            names = [binding.name for binding in core.bindings]
            paid = dict.fromkeys(names, 0) | {demand.binding.name: demand.cost for demand in taken.demands}
            real = paid | arguments.by_name("the real cost", real, names, arguments.check_cost)
            more = {name: max(0, real[name] - paid[name]) for name in names}
            if any(more.values()):
                yield core.execute("charge", core.demands(taken.key, more))
            less = [demand._replace(cost=demand.cost - real[demand.binding.name]) for demand in taken.demands]
            yield from self.give_back(less, taken.charge)
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
