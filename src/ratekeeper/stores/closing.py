"""How a SqliteStore closes its files: under its lock, because the last process to close a database cleans it up.

A caller that does not get the lock leaves the files open. If their store no longer exists, they are closed together
with those of the next store that goes, or when the program ends. Files that are still locked then are left to the
kernel.
"""

from __future__ import annotations

import atexit
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from ratekeeper import flows, forks
from ratekeeper.clock import stopwatch
from ratekeeper.stores.database import Database
from ratekeeper.stores.filelock import Busy, FileLock

_PATIENCE_NS = 100_000_000
_PAUSE = 0.0005  # seconds


class Files(NamedTuple):
    """The open files of one store, which may be gone."""

    lock: FileLock
    database: Database

    def close(self) -> None:
        """Close both. The caller must hold the lock."""
        self.database.close()
        self.lock.close()

    def abandon(self) -> None:
        """Give up both without closing the database."""
        keep_open(self.database.abandon())
        self.lock.close()


def closing(files: Files, sleep: Callable[[float], Any], ends_ns: int | None = None) -> flows.Flow[bool]:
    """Close both files under the lock; return False if others hold it for too long."""
    if ends_ns is None:
        ends_ns = stopwatch() + _PATIENCE_NS
    while files.database.is_open or files.lock.is_open:
        with suppress(OSError):  # the lock's file cannot be opened
            if not isinstance(files.lock.attempt(files.close), Busy):
                return True
        if stopwatch() >= ends_ns:
            return False
        yield sleep(_PAUSE)
    return True


class _Unclosed:
    """The files of all stores of this process."""

    def __init__(self) -> None:
        self._all: set[Files] = set()
        self._orphans: set[Files] = set()  # whose store is gone
        forks.renew_in_child(self)
        atexit.register(self._end)

    def add(self, files: Files, store: object) -> None:
        """Close these files once the store is gone, or when the program ends."""
        self._all.add(files)
        weakref.finalize(store, self._store_is_gone, files).atexit = False

    def _store_is_gone(self, files: Files) -> None:
        """Close the files of stores that are gone, unless they are locked. This may interrupt any code."""
        self._orphans.add(files)
        for each in list(self._orphans):
            if flows.run(closing(each, time.sleep, 0)):
                self._orphans.discard(each)
                self._all.discard(each)

    def _end(self) -> None:
        ends_ns = stopwatch() + _PATIENCE_NS
        for files in list(self._all):
            if not flows.run(closing(files, time.sleep, ends_ns)):
                files.abandon()

    def after_fork(self) -> None:
        """Leave the files of stores that are gone to the parent; each store deals with its own."""
        for files in self._orphans:
            files.abandon()
        self._all -= self._orphans
        self._orphans.clear()


_unclosed = _Unclosed()
close_with = _unclosed.add
"""Close files once their store is gone, or when the program ends."""


_kept: list[object] = []


def keep_open(connection: object) -> None:
    """Never close this connection, not even when the interpreter drops all objects at its end."""
    if connection is not None:
        _kept.append(connection)
        with suppress(ImportError):
            import ctypes

            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
