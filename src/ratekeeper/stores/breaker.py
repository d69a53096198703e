"""Whether to ask a store that may be away."""

from __future__ import annotations

import logging
import threading

from ratekeeper.clock import stopwatch
from ratekeeper.errors import StoreUnavailable

PROBE_US = 1_000_000  # how long until a store that is away is asked again

_log = logging.getLogger("ratekeeper")


class Breaker:
    """Keeps callers away from a store that does not answer, but for one of them a second.

    As a context manager around a question to the store, it notes whether that was answered.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._away_since_ns: int | None = None
        self._ask_again_ns = 0
        self.failures = 0  # decisions that the store was asked for and did not make
        self.openings = 0  # times that the store went away

    def start_again(self) -> None:
        """In a forked child whoever held the lock does not exist any more."""
        self._lock = threading.Lock()

    @property
    def is_open(self) -> bool:
        """Whether the store is taken to be away."""
        return self._away_since_ns is not None

    def __enter__(self) -> None:
        if not self.admits():
            raise StoreUnavailable("Redis is away", away=False)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            self.succeeded()
        elif isinstance(error, StoreUnavailable) and error.away:
            self.failed(error)

    def admits(self) -> bool:
        """Tell whether to ask the store; while it is away, one caller a second hears yes."""
        if self._away_since_ns is None:
            return True
        with self._lock:
            now = stopwatch()
            if now < self._ask_again_ns:
                return False
            self._ask_again_ns = now + PROBE_US * 1000
            return True

    def succeeded(self) -> None:
        """Note an answer."""
        if self._away_since_ns is None:
            return
        with self._lock:
            since, self._away_since_ns = self._away_since_ns, None
        if since is not None:
            _log.warning("%s is back after %.1f s", self._name, (stopwatch() - since) / 1e9)

    def failed(self, error: StoreUnavailable) -> None:
        """Note that no answer came."""
        with self._lock:
            self.failures += 1
            now = stopwatch()
            self._ask_again_ns = now + PROBE_US * 1000
            opened = self._away_since_ns is None
            if opened:
                self._away_since_ns = now
                self.openings += 1
        if opened:
            _log.warning("%s is away, decisions follow on_error: %s", self._name, error)
