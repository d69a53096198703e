"""Settlements: the cost of a sent request is corrected once its response has been read."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ratekeeper.errors import StoreUnavailable
from ratekeeper.flows import Flow, if_abandoned, run, run_async
from ratekeeper.reservations import AsyncReservation, Reservation
from ratekeeper.ruleset import Costs

RealCost = Callable[[Any], "Costs | None"]
"""Returns the real cost for a complete response; None keeps the estimate."""

_MAX_BODY = 16 * 2**20  # bytes of a response that are kept for its settlement
_log = logging.getLogger("ratekeeper")


class Ledger:
    """Corrects what a client's requests took from the budget of one limiter."""

    def __init__(self, settle: RealCost | None) -> None:
        self.settle_function = settle
        self._logged: set[str] = set()

    def give_back(self, taken: Reservation | AsyncReservation) -> Flow[None]:
        """Give back what an unsent request took."""
        try:
            yield taken.give_back()
        except StoreUnavailable:
            self._log_once("the store is unavailable; the cost of an unsent request was not given back")

    def settle(self, taken: Reservation | AsyncReservation, make_answer: Callable[[], Any]) -> Flow[None]:
        """Charge what a request cost above its estimate, or give back what it cost below."""
        try:
            real = None if self.settle_function is None else self.settle_function(make_answer())
            if real is not None:
                yield taken.correct(real)
        except StoreUnavailable:
            self._log_once("the store is unavailable; a request was not settled")
        except Exception:  # noqa: BLE001 - an error in the application's function must not lose the response
            self._log_once("the settlement failed; the request keeps its estimated cost")

    def _log_once(self, what: str) -> None:
        if what not in self._logged:
            self._logged.add(what)
            _log.warning("%s; this is logged once", what, exc_info=True)


class Settlement:
    """Copies the body of one response as it is read, and settles once, with what was read until then."""

    def __init__(self, ledger: Ledger, taken: Reservation | AsyncReservation) -> None:
        self._ledger = ledger
        self._taken = taken
        self._chunks: list[bytes] = []
        self._size = 0
        self._is_over = False

    def keep(self, chunk: bytes) -> None:
        """Keep a chunk of the body."""
        self._size += len(chunk)
        if self._size <= _MAX_BODY:
            self._chunks.append(chunk)
        else:
            self._chunks.clear()

    def drop(self) -> None:
        """Leave the estimate: the body is read in a way that cannot be seen here."""
        self._is_over = True

    def run(self, make_answer: Callable[[bytes], Any]) -> None:
        """Settle, unless that is over; `make_answer` returns a response with the body that was read."""
        run(self._flow(make_answer))

    async def run_async(self, make_answer: Callable[[bytes], Any]) -> None:
        """Do the same; it is not stopped with its task, which may have been cancelled while it read."""
        await if_abandoned(run_async(self._flow(make_answer)), bool)

    def _flow(self, make_answer: Callable[[bytes], Any]) -> Flow[None]:
        if not self._is_over:
            self._is_over = True
            yield from self._ledger.settle(self._taken, lambda: make_answer(self._body()))

    def _body(self) -> bytes:
        if self._size > _MAX_BODY:
            raise ValueError(f"the body has {self._size} bytes; at most {_MAX_BODY} are kept for a settlement")
        return b"".join(self._chunks)
