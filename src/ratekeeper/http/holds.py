"""Which keys a server wants no requests of for a while, as its answers said."""

from __future__ import annotations

from collections.abc import Hashable
from threading import Lock

from ratekeeper.clock import Clock

MOST = 10_000  # keys that are held back at a time; when there are more, those are let go that end first
LONGEST = 86_400  # seconds: a server that names a longer time is asked again after a day


class Holds:
    """The keys that are held back, and until when on the timer; in this process only."""

    def __init__(self, timer: Clock, most: int = MOST) -> None:
        self._timer = timer
        self._most = most
        self._until: dict[Hashable, int] = {}
        self._lock = Lock()

    def hold(self, key: Hashable, seconds: float) -> None:
        """Hold a key back for this long from now; a longer time that is known already stays."""
        now = self._timer()
        until = now + int(min(seconds, LONGEST) * 1e9)
        with self._lock:
            if until <= self._until.get(key, now):
                return
            if key not in self._until and len(self._until) >= self._most:
                self._make_room(now)
            self._until[key] = until

    def until(self, key: Hashable) -> int:
        """Return until when a key is held back; a time that is past if it is not."""
        until = self._until.get(key, 0)
        if until and until <= self._timer():
            with self._lock:
                if self._until.get(key) == until:
                    del self._until[key]
        return until

    def _make_room(self, now: int) -> None:
        """Let go what is over, and of the rest the tenth that ends first, so that this is seldom needed."""
        current = sorted((item for item in self._until.items() if item[1] > now), key=lambda item: item[1])
        self._until = dict(current[max(0, len(current) - self._most * 9 // 10) :])
