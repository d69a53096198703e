"""A lock shared by all threads of all processes that name the same file."""

from __future__ import annotations

import fcntl
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from ratekeeper.clock import stopwatch
from ratekeeper.stores.spinlock import is_mine

_Result = TypeVar("_Result")

_STAMPED_NS = 10_000_000  # how old the stamp that says when the lock was last taken may be
_LONG_NS = 2_000_000
_ABSENT_NS = 20_000_000
_TAKE = fcntl.LOCK_EX | fcntl.LOCK_NB


class Busy:
    """Returned by an attempt when somebody else holds the lock."""


class LockedOut(Busy):
    """Returned by an attempt when another program, which does not use our lock, has locked the database."""


BUSY = Busy()
LOCKED_OUT = LockedOut()


class FileLock:
    """Lets one thread of one process in at a time. It never blocks: a caller that finds it taken may try again.

    The kernel releases it when a process ends, for whatever reason. Each owner writes down the time, so that waiting
    callers can tell a queue that moves from an owner that is stuck.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._free = {0: True}  # between threads, as in `SpinLock`: flock excludes only other processes
        self._stopped_by: int | None = None  # the thread that is about to fork
        self._file: int | None = None
        self._stamped_ns = 0

    @property
    def is_open(self) -> bool:
        """Whether the file is open."""
        return self._file is not None

    def attempt(self, action: Callable[..., _Result], *arguments: Any) -> _Result | Busy:
        """Call `action` if nobody else holds the lock. Raises OSError if the file cannot be opened."""
        free = self._free
        try:
            del free[0]
        except KeyError:
            return BUSY
        try:
            has_lock = True  # noqa: F841 - for `is_mine`, as in `SpinLock`
            return self.while_stopped(action, *arguments)
        finally:
            free[0] = True

    def while_stopped(self, action: Callable[..., _Result], *arguments: Any) -> _Result | Busy:
        """Call `action` if no other process holds the lock; `stop` must have kept out the threads of this one."""
        file = self._file
        try:
            if file is None:
                file = self._open()
            try:
                fcntl.flock(file, _TAKE)
            except BlockingIOError:
                return BUSY
            now = stopwatch()
            if now - self._stamped_ns > _STAMPED_NS:
                self._stamp(file, now)
            return action(*arguments)
        finally:
            if file is not None and file == self._file:  # the action may have closed it
                fcntl.flock(file, fcntl.LOCK_UN)

    def is_mine(self) -> bool:
        """Return whether this call is in the middle of another call of the same thread, which has the lock."""
        return is_mine(self._free)

    def moves_since(self, since_ns: int) -> bool:
        """Return whether anybody has taken the lock since that time on the stopwatch, or just before."""
        file = self._file
        if file is None:
            return True
        try:
            stamp = int.from_bytes(os.pread(file, 8, 0), "big")
        except OSError:
            return False
        return stamp >= since_ns - 2 * _STAMPED_NS

    def stop(self) -> bool:
        """Let no thread of this process in until `go_on`; return False if another one is inside."""
        me = threading.get_ident()
        if self._stopped_by == me:
            return True
        try:
            del self._free[0]
        except KeyError:
            return False
        self._stopped_by = me
        return True

    def go_on(self) -> None:
        """Let threads in again, if `stop` kept them out."""
        if self._stopped_by == threading.get_ident():
            self._stopped_by = None
            self._free[0] = True

    def after_fork(self) -> None:
        """Leave the file to the parent, and let threads in again: one that was inside does not exist in the child."""
        if self.is_mine() and self._file is not None:  # it may use the file's number yet, which must be no other file
            nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            os.dup2(nothing, self._file, inheritable=False)
            os.close(nothing)
            self._file = None
        self.close()
        self._stopped_by = None
        self._free[0] = True

    def close(self) -> None:
        """Close the file; the next attempt opens it again. No other thread may be inside."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def is_in_place(self) -> bool:
        """Return whether the file is still the one that others find under its name."""
        file = self._file
        if file is None:
            return False
        with suppress(OSError):
            return os.path.samestat(os.fstat(file), Path(self.path).stat())
        return False

    def _open(self) -> int:
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._stamped_ns = 0
        return self._file

    def _stamp(self, file: int, now: int) -> None:
        with suppress(OSError):  # on a full disk; writing to the database will report it
            os.pwrite(file, now.to_bytes(8, "big"), 0)
        self._stamped_ns = now


class LockQueue:
    """The callers of this process that found the lock taken, so that quicker ones cannot keep them out for long.

    A thread that calls in a loop gives up the interpreter only while it holds the lock, so another thread that tries
    would find it taken every time.
    """

    def __init__(self) -> None:
        self._callers: dict[int, list[int]] = {}  # by number: since when, and when it looked last
        self._numbers = itertools.count()

    @contextmanager
    def join(self) -> Iterator[int]:
        """Join the queue for as long as the block lasts; give its number."""
        number = next(self._numbers)
        now = stopwatch()
        try:
            self._callers[number] = [now, now]
            yield number
        finally:
            self._callers.pop(number, None)

    def may_try(self, number: int | None) -> bool:
        """Return whether the caller with this number (None: a newcomer) may try; not if another has waited too long."""
        callers = self._callers
        if not callers:
            return True
        now = stopwatch()
        if number in callers:  # it is not in a child that was forked meanwhile
            callers[number][1] = now
        try:
            first, (since_ns, looked_ns) = next(iter(callers.items()))
        except (RuntimeError, StopIteration):  # another caller left meanwhile
            return True
        # A caller whose event loop is busy elsewhere stops looking, and must not hold up the others.
        return first == number or now - since_ns < _LONG_NS or now - looked_ns > _ABSENT_NS
