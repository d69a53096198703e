"""A bound on the requests that are held for their shaping delay, per key and in total."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Hashable
from threading import RLock

from ratekeeper import forks
from ratekeeper.errors import InvalidRule
from ratekeeper.rates import show

_log = logging.getLogger("ratekeeper")


class HeldRequests:
    """Counts the requests that this process holds, up to a bound."""

    def __init__(self, max_total: int, max_per_key: int) -> None:
        self.refused = 0
        """How many requests were denied instead of held."""
        for argument, value in (("max_waiters", max_total), ("max_waiters_per_key", max_per_key)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise InvalidRule(f"{argument} must be an int of at least 0, not {show(value)}")
        self._max_total = max_total
        self._max_per_key = max_per_key
        self.after_fork()
        forks.renew_in_child(self)

    def after_fork(self) -> None:
        """Count from zero: the threads and tasks that hold the parent's requests do not exist in a forked child."""
        self._lock = RLock()  # a request that is garbage-collected may end in the middle of a call of its thread
        self._by_key: defaultdict[Hashable, int] = defaultdict(int)
        self._total = 0

    def enter(self, key: Hashable) -> bool:
        """Count one more request, if there is room."""
        with self._lock:
            if self._total < self._max_total and self._by_key.get(key, 0) < self._max_per_key:
                self._by_key[key] += 1
                self._total += 1
                return True
            return False

    def refuse(self) -> None:
        """Count a request that is denied instead of held, and log the first one."""
        with self._lock:
            self.refused += 1
            is_first = self.refused == 1
        if is_first:
            _log.warning(
                "requests that would have to be held are denied, because %d are held already, or %d for one key; "
                "see max_waiters and max_waiters_per_key; this is logged once",
                self._max_total,
                self._max_per_key,
            )

    @property
    def count(self) -> int:
        """How many requests are held now."""
        return self._total

    def leave(self, key: Hashable) -> None:
        """Count one request less."""
        with self._lock:
            if key not in self._by_key:
                return  # the thread that forked inside of a held request: its child never counted it
            self._total -= 1
            self._by_key[key] -= 1
            if not self._by_key[key]:
                del self._by_key[key]
