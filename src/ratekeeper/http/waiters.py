"""How many requests are held at a time, for a key and in all."""

from __future__ import annotations

from collections.abc import Hashable
from threading import Lock

from ratekeeper.errors import InvalidRule
from ratekeeper.rates import show


class Waiters:
    """Counts those that wait, up to a bound."""

    def __init__(self, most: int, most_per_key: int) -> None:
        for argument, value in (("max_waiters", most), ("max_waiters_per_key", most_per_key)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise InvalidRule(f"{argument} must be an int of at least 0, not {show(value)}")
        self._most = most
        self._most_per_key = most_per_key
        self._by_key: dict[Hashable, int] = {}
        self._all = 0
        self._lock = Lock()

    def enter(self, key: Hashable) -> bool:
        """Count one more, if there is room."""
        with self._lock:
            waiting = self._by_key.get(key, 0)
            if self._all >= self._most or waiting >= self._most_per_key:
                return False
            self._by_key[key] = waiting + 1
            self._all += 1
            return True

    def leave(self, key: Hashable) -> None:
        """Count one less."""
        with self._lock:
            self._all -= 1
            self._by_key[key] -= 1
            if not self._by_key[key]:
                del self._by_key[key]
