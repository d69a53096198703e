"""A lock that all threads of all processes share who name the same file."""

from __future__ import annotations

import fcntl
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from ratekeeper.clock import stopwatch

_Result = TypeVar("_Result")

_STAMPED_NS = 10_000_000  # how old the note may be of when the lock was last taken
_LONG_NS = 2_000_000
_ABSENT_NS = 20_000_000
_TAKE = fcntl.LOCK_EX | fcntl.LOCK_NB


class Taken:
    """What an attempt returns when somebody else is inside."""


TAKEN = Taken()


class FileLock:
    """Lets one thread of one process in at a time. Nobody waits here: who finds it taken may try again.

    The kernel frees it when a process ends, however that comes. Whoever takes it notes when, so that those who wait can
    tell a queue that moves from an owner that does not.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._free = {0: True}  # for the threads of this process, as in `SpinLock`: a file is locked by a process
        self._is_stopped = False
        self._file: int | None = None
        self._stamped_ns = 0

    @property
    def is_open(self) -> bool:
        """Whether the file is open."""
        return self._file is not None

    def attempt(self, action: Callable[..., _Result], *arguments: Any) -> _Result | Taken:
        """Call `action` if nobody else is inside. OSError if the file cannot be opened."""
        free = self._free
        try:
            del free[0]
        except KeyError:
            return TAKEN
        file = self._file
        try:
            if file is None:
                file = self._open()
            try:
                fcntl.flock(file, _TAKE)
            except BlockingIOError:
                return TAKEN
            now = stopwatch()
            if now - self._stamped_ns > _STAMPED_NS:
                self._stamp(file, now)
            return action(*arguments)
        finally:
            try:
                if file is not None and file == self._file:  # the action may have closed it
                    fcntl.flock(file, fcntl.LOCK_UN)
            finally:
                free[0] = True

    def alone(self, action: Callable[[], _Result]) -> _Result | Taken:
        """Call `action` if no other thread of this process is inside, whatever other processes do."""
        free = self._free
        try:
            del free[0]
        except KeyError:
            return TAKEN
        try:
            return action()
        finally:
            free[0] = True

    def moves_since(self, since_ns: int) -> bool:
        """Tell whether anybody has taken the lock since that time on the stopwatch, or just before."""
        if self._file is None:
            return True
        try:
            stamp = int.from_bytes(os.pread(self._file, 8, 0), "big")
        except OSError:
            return False
        return stamp >= since_ns - 2 * _STAMPED_NS

    def stop(self) -> bool:
        """Let no thread of this process in until `go_on`; False if one is inside."""
        try:
            del self._free[0]
        except KeyError:
            return False
        self._is_stopped = True
        return True

    def go_on(self) -> None:
        """Let threads in again, if `stop` kept them out."""
        if self._is_stopped:
            self._is_stopped = False
            self._free[0] = True

    def renew(self) -> None:
        """Let threads in, whoever was inside: in a forked child they do not exist."""
        self._is_stopped = False
        self._free[0] = True

    def close(self) -> None:
        """Let go of the file; the next attempt opens it again. No other thread may be inside."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def is_in_place(self) -> bool:
        """Tell whether the file is still the one that others find under its name."""
        if self._file is None:
            return False
        with suppress(OSError):
            return os.path.samestat(os.fstat(self._file), Path(self.path).stat())
        return False

    def _open(self) -> int:
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._stamped_ns = 0
        return self._file

    def _stamp(self, file: int, now: int) -> None:
        with suppress(OSError):  # on a full disk; then the database says so
            os.pwrite(file, now.to_bytes(8, "big"), 0)
        self._stamped_ns = now


class Line:
    """Who of this process has found the lock taken. Nobody has to wait long because others are quicker.

    A thread that asks again and again gives up the interpreter only while it is inside, so that another one, when it
    looks, would always find the lock taken.
    """

    def __init__(self) -> None:
        self._places: dict[int, list[int]] = {}  # by number: since when, and when it looked last
        self._numbers = itertools.count()

    @contextmanager
    def place(self) -> Iterator[int]:
        """Stand in line."""
        number = next(self._numbers)
        now = stopwatch()
        try:
            self._places[number] = [now, now]
            yield number
        finally:
            self._places.pop(number, None)

    def lets(self, number: int | None) -> bool:
        """Tell whether one in this place, or one who has just come, may try: not if somebody has waited too long."""
        places = self._places
        if not places:
            return True
        now = stopwatch()
        if number in places:  # not in a child that was forked meanwhile
            places[number][1] = now
        try:
            first, (since_ns, looked_ns) = next(iter(places.items()))
        except (RuntimeError, StopIteration):  # somebody left meanwhile
            return True
        # Whose event loop is busy elsewhere does not look, and keeps nobody waiting.
        return first == number or now - since_ns < _LONG_NS or now - looked_ns > _ABSENT_NS
