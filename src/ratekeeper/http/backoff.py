"""The keys for which a server asked its clients to back off, as its responses said."""

from __future__ import annotations

from collections.abc import Hashable
from threading import RLock

from ratekeeper import forks
from ratekeeper.clock import Clock

MAX_KEYS = 10_000  # when more keys are backing off, those that end first are dropped
MAX_SECONDS = 86_400  # a server that names a longer time is asked again after a day


class Backoff:
    """Which keys are backing off, and until when on the timer. The state belongs to this process only."""

    def __init__(self, timer: Clock, max_keys: int = MAX_KEYS) -> None:
        self._timer = timer
        self._max_keys = max_keys
        self._until: dict[Hashable, int] = {}
        self.after_fork()
        forks.renew_in_child(self)

    def after_fork(self) -> None:
        """Replace the lock. What the server asked for applies to a forked child as well."""
        self._lock = RLock()

    def back_off(self, key: Hashable, seconds: float) -> None:
        """Send no requests for this key for this many seconds; a later end that is already known stays."""
        now = self._timer()
        until = now + int(min(seconds, MAX_SECONDS) * 1e9)
        with self._lock:
            if until <= self._until.get(key, now):
                return
            if key not in self._until and len(self._until) >= self._max_keys:
                self._make_room(now)
            self._until[key] = until

    def until(self, key: Hashable) -> int:
        """Return when a key may be used again, on the timer; a time in the past if it is not backing off."""
        until = self._until.get(key, 0)
        if until and until <= self._timer():
            with self._lock:
                if self._until.get(key) == until:
                    del self._until[key]
        return until

    def _make_room(self, now: int) -> None:
        """Drop what has ended, and the tenth of the rest that ends first, so that this is seldom needed."""
        current = sorted((item for item in self._until.items() if item[1] > now), key=lambda item: item[1])
        self._until = dict(current[max(0, len(current) - self._max_keys * 9 // 10) :])
