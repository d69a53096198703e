"""A circuit breaker: whether to ask a server that may be away."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ratekeeper.clock import stopwatch
from ratekeeper.errors import StoreUnavailable

PROBE_US = 1_000_000  # how long until a store that is away is asked again

_log = logging.getLogger("ratekeeper")


class Breaker:
    """Keeps callers from a server that does not answer, except for one caller per second."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.RLock()  # a signal handler may ask in the middle of a call of its own thread
        self.is_open = False  # whether the store is considered away
        self._away_since_ns = 0
        self._ask_again_ns = 0
        self._reason = ""  # of the latest failure
        self.failures = 0  # requests that the store did not answer
        self.openings = 0  # how often the store went away

    def after_fork(self) -> None:
        """Make a new lock: a thread that held the old one does not exist in the child."""
        self._lock = threading.RLock()

    @contextmanager
    def asking(self, ends_ns: int) -> Iterator[None]:
        """Note whether the request made in this context succeeds; raise StoreUnavailable if it must not be made now."""
        if not self.admits(ends_ns):
            raise self.refusal()
        try:
            yield
        except StoreUnavailable as error:
            self.noted(error)
            raise
        self.succeeded()

    def admits(self, ends_ns: int) -> bool:
        """Tell whether to ask the server; while it is away, this is true for one caller per second, one at a time."""
        if not self.is_open:
            return True
        with self._lock:
            now = stopwatch()
            if now < self._ask_again_ns:
                return False
            self._ask_again_ns = max(now + PROBE_US * 1000, ends_ns)
            return True

    def ask_again(self) -> None:
        """Let the next caller ask before the second has passed, because there is a sign that the server is back."""
        self._ask_again_ns = 0

    def refusal(self) -> StoreUnavailable:
        """Return the error of a request that is not made because the store is away."""
        return StoreUnavailable(f"{self._name} is away", away=False, reason=self._reason)

    def noted(self, error: StoreUnavailable) -> None:
        """Note an error, which may show that the store is away, or that it is not."""
        if error.away:
            self.failed(error)
        elif error.answered:
            self.succeeded()

    def succeeded(self) -> None:
        """Note that an answer came."""
        if not self.is_open:
            return
        with self._lock:
            closes, self.is_open = self.is_open, False
        if closes:
            _log.warning("%s is back after %.1f s", self._name, (stopwatch() - self._away_since_ns) / 1e9)

    def failed(self, error: StoreUnavailable) -> None:
        """Note that no answer came."""
        with self._lock:
            self.failures += 1
            self._reason = error.reason
            now = stopwatch()
            self._ask_again_ns = now + PROBE_US * 1000
            opens = not self.is_open
            if opens:
                self.is_open = True
                self._away_since_ns = now
                self.openings += 1
        if opens:
            _log.warning("%s is away, decisions follow on_error: %s", self._name, error)
