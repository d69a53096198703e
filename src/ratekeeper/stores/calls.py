"""Who is told of the calls of a store to what may be away: a server, or a file."""

from __future__ import annotations

import logging

from ratekeeper.stores.protocol import CallObserver

_log = logging.getLogger("ratekeeper")


class Calls:
    """The calls of one store that make decisions."""

    __slots__ = ("observers",)

    def __init__(self) -> None:
        self.observers: tuple[CallObserver, ...] = ()

    def observe(self, observer: CallObserver) -> None:
        """Tell an observer of every call that ends from now on."""
        self.observers = (*self.observers, observer)

    def tell(self, requests: int, answered: bool) -> None:
        """Tell the observers of a call; log what they raise."""
        try:
            for observer in self.observers:
                observer(requests, answered)
        except Exception:  # noqa: BLE001
            _log.exception("an observer raised an exception; the call is unaffected")
