"""Access to the file of a SqliteStore: one caller of all processes at a time, and others try again in their turn.

SQLite's own busy handler is not used: in a trial it held callers for half a second.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ratekeeper import flows, forks
from ratekeeper.clock import stopwatch
from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores.breaker import Breaker
from ratekeeper.stores.calls import Calls
from ratekeeper.stores.closing import Files, keep_open
from ratekeeper.stores.database import is_locked
from ratekeeper.stores.filelock import BUSY, LOCKED_OUT, Busy, LockedOut, LockQueue
from ratekeeper.stores.protocol import Demand
from ratekeeper.stores.spinlock import interrupting

_PATIENCE_NS = 1_000_000_000  # for calls without a deadline
_FORK_PATIENCE_NS = 1_000_000_000
_YIELDING_NS = 20_000  # how long only to yield to other threads, before the first sleep
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.00005, 0.0005  # seconds
_STALL_NS = 300_000_000  # a shorter pause may be a process that waits for a CPU
_CHECK_NS = 1_000_000_000  # how often to look whether the files are still there

Action = Callable[[Sequence[Demand]], Any]
Drive = Callable[[flows.Flow[Any]], Any]
Sleep = Callable[[float], Any]


class FileAccess:
    """Runs actions on the database under the lock that all processes share, and counts failures."""

    def __init__(self, shown: str, files: Files) -> None:
        """`shown` names the store in errors."""
        self.breaker = Breaker(shown)
        self.calls = Calls()
        self._shown = shown
        self._files = files
        self._lock = files.lock
        self._database = files.database
        self._queue = LockQueue()
        self._check_at_ns = 0
        forks.pause_at_fork(self)

    def ask(
        self,
        action: Action,
        demands: Sequence[Demand],
        ends_ns: int | None,
        drive: Drive,
        sleep: Sleep,
    ) -> Any:
        """Run an action under the lock: at once if it is free, otherwise with `drive` and a flow that tries again."""
        if ends_ns is None:
            ends_ns = stopwatch() + _PATIENCE_NS
        if self.breaker.is_open and not self.breaker.admits(ends_ns):
            raise StoreUnavailable(f"{self._shown} is away", away=False)
        result: Any = None
        if self._queue.may_try(None):
            result = self._attempt(action, demands)
            if not isinstance(result, Busy):
                return result
        return drive(self._in_turn(action, demands, ends_ns, sleep, result))

    def _attempt(self, action: Action, demands: Sequence[Demand]) -> Any:
        """Run an action if the lock is free."""
        try:
            result = self._lock.attempt(self._inside, action, demands)
        except StoreUnavailable as error:
            self._note(error)
            raise
        except OSError as error:  # from the lock's own file
            unavailable = self._unavailable(error)
            self._note(unavailable)
            raise unavailable from error
        if self.breaker.is_open and not isinstance(result, Busy):
            self.breaker.succeeded()
        return result

    def _inside(self, action: Action, demands: Sequence[Demand]) -> Any:
        """Run an action while the lock is held."""
        now = stopwatch()
        try:
            if now >= self._check_at_ns:
                self._check_at_ns = now + _CHECK_NS
                if not self._has_its_files():
                    return BUSY
            self._database.ready()
            return action(demands)
        except (sqlite3.Error, OSError) as error:
            if isinstance(error, sqlite3.Error) and is_locked(error):
                return LOCKED_OUT
            self._database.close()  # the next attempt opens whatever file is there then
            raise self._unavailable(error) from error
        except StoreUnavailable as error:
            if error.away:
                self._database.close()
            raise

    def _has_its_files(self) -> bool:
        """Close files that have been removed or replaced: other processes would not see what is written to them.

        Returns False if the lock file is no longer the one that others use.
        """
        if self._database.is_open and not self._database.is_in_place():
            self._database.close()
        if self._lock.is_in_place():
            return True
        self._lock.close()
        return False

    def _in_turn(
        self, action: Action, demands: Sequence[Demand], ends_ns: int, sleep: Sleep, result: Any
    ) -> flows.Flow[Any]:
        """Try until the lock is free or the time is up; `result` is that of the first attempt, None without one."""
        if self._lock.is_mine():
            raise interrupting()
        began_ns = now = stopwatch()
        pause = 0.0
        with self._queue.join() as number:
            while now < ends_ns:
                yield sleep(min(pause, (ends_ns - now) / 1e9))
                pause = min(2 * pause + _SHORTEST_PAUSE, _LONGEST_PAUSE) if now - began_ns > _YIELDING_NS else 0.0
                if self._queue.may_try(number):
                    result = self._attempt(action, demands)
                    if not isinstance(result, Busy):
                        return result
                now = stopwatch()
        waited = f"{(now - began_ns) / 1e9:.3f} s"
        if isinstance(result, LockedOut):
            error = StoreUnavailable(f"{self._shown} was locked by another program for {waited}")
        elif self._lock.moves_since(min(began_ns, now - _STALL_NS)):
            error = StoreUnavailable(f"{self._shown} was in use by others for {waited}", away=False)
        else:
            error = StoreUnavailable(f"{self._shown} was locked by a process that made no progress for {waited}")
        self._note(error)
        raise error

    def _note(self, error: StoreUnavailable) -> None:
        self.calls.tell(1, False)
        self.breaker.noted(error)

    # Forks.

    def before_fork(self) -> None:
        """Close the file and keep it closed until the child exists: SQLite cannot share a connection with a child."""
        ends_ns = stopwatch() + _FORK_PATIENCE_NS
        while not self._lock.stop():
            if stopwatch() > ends_ns or self._lock.is_mine():
                return  # `after_fork` deals with it
            time.sleep(0)
        while self._database.is_open and stopwatch() < ends_ns:  # otherwise `after_fork` deals with it
            with suppress(OSError):
                if not isinstance(self._lock.while_stopped(self._files.close), Busy):
                    return
            time.sleep(_SHORTEST_PAUSE)

    def after_fork_in_parent(self) -> None:
        """Let threads in again."""
        self._lock.go_on()

    def after_fork(self) -> None:
        """Start with nothing open."""
        self.breaker.after_fork()
        if self._database.is_open:  # the fork did not wait: SQLite forbids using or closing it here
            keep_open(self._database.abandon())
        self._lock.after_fork()
        self._queue = LockQueue()

    def _unavailable(self, error: Exception) -> StoreUnavailable:
        return StoreUnavailable(f"{self._shown} cannot be used: {type(error).__name__}: {error}")
