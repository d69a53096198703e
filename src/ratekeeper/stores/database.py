"""The file of a SqliteStore: one table with a row per key, and what one request reads and writes."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ratekeeper.algorithms.rule import EMPTY
from ratekeeper.errors import StoreUnavailable, damaged_key
from ratekeeper.stores.names import head_in
from ratekeeper.stores.protocol import Binding, Demand, begins_with
from ratekeeper.stores.rules_in_force import RulesInForce

_APPLICATION = 0x52_4B_4C_4D  # distinguishes our files from those of other applications
_VERSION = 1
_SETTINGS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = OFF",  # writes outlive the process; surviving a power failure is not promised
    "PRAGMA wal_autocheckpoint = 250",  # pages: checkpoints are short, because a caller waits for each
)
_SCHEMA = (
    """CREATE TABLE keys (
        name BLOB PRIMARY KEY, state NOT NULL, expires_us INTEGER NOT NULL, due_us INTEGER NOT NULL
    ) WITHOUT ROWID""",
    # due_us says when to look at a key again. Most writes leave it unchanged, so they need not touch the index.
    "CREATE INDEX keys_due ON keys (due_us)",
    f"PRAGMA application_id = {_APPLICATION}",
    f"PRAGMA user_version = {_VERSION}",
)
_READ = "SELECT state, CAST(expires_us AS INTEGER) FROM keys WHERE name = ?"
_ADD = "INSERT INTO keys (state, expires_us, due_us, name) VALUES (?, ?, ?, ?)"
_CHANGE = "UPDATE keys SET state = ?, expires_us = ? WHERE name = ?"
_PUT = "INSERT OR REPLACE INTO keys VALUES (?, ?, ?, ?)"
_FORGET = "DELETE FROM keys WHERE name = ?"
_FORGET_EXPIRED = "DELETE FROM keys WHERE name = ? AND expires_us <= ?"  # not if the same request has just written it
_DUE = "SELECT name, state, CAST(expires_us AS INTEGER) FROM keys WHERE due_us <= ? ORDER BY due_us LIMIT ?"
_SOME = "SELECT name FROM keys WHERE name > ? AND name < ? ORDER BY name LIMIT ?"
_FORGET_RANGE = "DELETE FROM keys WHERE name BETWEEN ? AND ?"
_LOOK_LATER = "UPDATE keys SET expires_us = max(expires_us, ?1), due_us = max(expires_us, ?1) WHERE name = ?2"
_TRIAL = b"trial"  # the name of no key
_TRY = "INSERT OR REPLACE INTO keys VALUES (?, zeroblob(1 << 20), 0, 0)"  # as much as the log takes between checkpoints
_FARTHEST = (1 << 63) - 1
_LOOK_US = 1_000_000  # when to look again after finding no more expired keys
_LOOKS = 4  # keys to look at for each one that may be new

UNREADABLE = (ValueError, TypeError, AttributeError, IndexError)
"""What a rule raises for a value that it cannot restore."""
Change = tuple[str, tuple[Any, ...]]
ExpiresAt = Callable[[bytes, Any], int]
"""Given a key's name and stored state, returns until when the key matters in this process; 0 if it does not."""


class Database:
    """A connection to the file, opened when it is needed. Callers must hold the store's lock."""

    def __init__(self, path: str, expires_at: ExpiresAt) -> None:
        self.path = path
        self._expires_at = expires_at
        self._connection: sqlite3.Connection | None = None
        self._opened: os.stat_result | None = None  # the file, once the connection is set up
        self._looked_us = 0
        self._look_again_us = 0
        self._write_failed = False
        self._is_abandoned = False

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    def is_in_place(self) -> bool:
        """Return whether the file is still the one that others find under its name."""
        if self._opened is None:
            return False
        try:
            return os.path.samestat(self._opened, Path(self.path).stat())
        except FileNotFoundError:
            return False

    def ready(self) -> None:
        """Open the file if it is not open, and roll back what an interrupted caller left unfinished.

        After a failed write, first try whether there is room again: reads work on a full disk, too.
        """
        connection = self._connection
        if connection is None or self._opened is None:
            self._open()
        elif connection.in_transaction:
            connection.execute("ROLLBACK")
        if self._write_failed:
            self._run(_TRY, (_TRIAL,))
            self._run(_FORGET, (_TRIAL,))
            self._write_failed = False

    def read(self, name: bytes) -> tuple[Any, int] | None:
        """Return a key's stored state and when it expires."""
        rows = self._run(_READ, (name,)).fetchall()  # all: an unfinished statement would keep a lock
        return rows[0] if rows else None

    def shared(self, name: bytes) -> bytes:
        """Return a shared value; empty if there is none."""
        found = self.read(name)
        return found[0] if found is not None and isinstance(found[0], bytes) else b""

    def replace_shared(self, name: bytes, before: bytes, content: bytes, now: int) -> bool:
        """Replace a shared value, which never expires, if it begins with `before`; tell whether it did."""
        replaces = begins_with(self.shared(name), before)
        if replaces:
            self.write([(_PUT, (name, content, _FARTHEST, _FARTHEST))], now)
        return replaces

    def forget(self, after: bytes, before: bytes, most: int, now: int) -> bytes | None:
        """Forget some of the keys whose names are between these two; return the last of them if there may be more."""
        assert self._connection is not None  # noqa: S101 - `ready` was called
        names = [name for (name,) in self._connection.execute(_SOME, (after, before, most)).fetchall()]
        if names:
            self.write([(_FORGET_RANGE, (names[0], names[-1]))], now)
        return names[-1] if len(names) == most else None

    def write(self, changes: list[Change], now: int) -> None:
        """Write all changes or none, and forget some of the keys that have expired."""
        if not self._looked_us <= now < self._look_again_us:
            changes = changes + self._expiry(now, _LOOKS * (len(changes) + 1))
        if not changes:
            return
        try:
            if len(changes) == 1:
                self._run(*changes[0])  # its own transaction
                return
            self._run("BEGIN IMMEDIATE")
            for change in changes:
                self._run(*change)
            self._run("COMMIT")
        except sqlite3.Error as error:
            self._write_failed = not is_locked(error)
            raise
        finally:
            connection = self._connection
            if connection is not None and connection.in_transaction:
                connection.execute("ROLLBACK")

    def close(self) -> None:
        """Close the connection; the next `ready` opens another."""
        connection, self._connection = self._connection, None
        self._opened = None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def abandon(self) -> object:
        """Give up the connection for ever without closing it, because it belongs to the parent; return it."""
        self._is_abandoned = self._is_abandoned or self.is_open
        connection, self._connection = self._connection, None
        return connection

    def _run(self, statement: str, parameters: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        """Execute a statement. After each one a signal handler may fork, and take the connection from the child."""
        connection = self._connection
        if connection is None:
            raise self._forked()
        return connection.execute(statement, parameters)

    def _forked(self) -> StoreUnavailable:
        return StoreUnavailable(f"{self.path} was in use when this process was forked; create the store after the fork")

    def _expiry(self, now: int, looks: int) -> list[Change]:
        """Return changes that delete a few expired keys, and that postpone those that turn out not to have expired."""
        due = self._run(_DUE, (now, looks)).fetchall()
        self._looked_us = now
        self._look_again_us = now if len(due) == looks else now + _LOOK_US
        changes: list[Change] = []
        for name, value, written_us in due:
            matters_us = written_us if written_us > now else min(self._expires_at(name, value), _FARTHEST)
            changes.append((_LOOK_LATER, (matters_us, name)) if matters_us > now else (_FORGET_EXPIRED, (name, now)))
        return changes

    def _open(self) -> None:
        if self._is_abandoned:  # SQLite would take its own note of the parent's locks for locks of this process
            raise self._forked()
        self.close()  # a caller may have been interrupted before the connection was set up
        self._connection = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            self._set_up()
            opened = Path(self.path).stat()
        except BaseException:
            self.close()
            raise
        self._look_again_us = self._looked_us = 0
        self._opened = opened

    def _set_up(self) -> None:
        def ask(question: str) -> Any:
            return self._run(question).fetchall()[0][0]

        found = ask("PRAGMA application_id"), ask("PRAGMA user_version")
        is_new = found == (0, 0) and not ask("SELECT count(*) FROM sqlite_master")
        if not is_new and found != (_APPLICATION, _VERSION):
            whose = "of another version of ratekeeper" if found[0] == _APPLICATION else "of another application"
            raise StoreUnavailable(f"{self.path} is a database {whose}")
        for setting in _SETTINGS:
            self._run(setting).fetchall()
        if (mode := ask("PRAGMA journal_mode")) != "wal":
            raise StoreUnavailable(f"{self.path} does not support a write-ahead log; its journal mode is {mode!r}")
        if is_new:
            self._run("BEGIN IMMEDIATE")
            for statement in _SCHEMA:
                self._run(statement)
            self._run("COMMIT")


class Work:
    """What one request has read from the database, and what it will write."""

    __slots__ = ("_database", "_name", "_names", "_rows", "changes")

    def __init__(self, database: Database, name: Callable[[Demand], bytes]) -> None:
        self._database = database
        self._name = name
        self._names: dict[int, bytes] = {}  # by demand
        self._rows: dict[bytes, tuple[Any, int | None]] = {}  # by name: the state, and when it expires
        self.changes: list[Change] = []

    def read(self, demand: Demand) -> Any:
        """Return the state of a demand's key; None if the key is untouched."""
        name = self._names.get(id(demand))
        if name is None:
            name = self._names[id(demand)] = self._name(demand)
        row = self._rows.get(name)
        if row is None:
            found = self._database.read(name)
            row = (None, None) if found is None else (self._restored(demand, found[0]), found[1])
            self._rows[name] = row
        return row[0]

    @staticmethod
    def _restored(demand: Demand, value: Any) -> Any:
        try:
            return restored(demand.binding, value)
        except StoreUnavailable:
            if demand.operation != "reset":
                raise
            return EMPTY  # it is forgotten, whatever it is

    def write(self, demand: Demand, _before: Any, state: Any, _now: int) -> None:
        """Record a demand's next state, to be written together with all others."""
        name = self._names[id(demand)]
        _, expired_us = self._rows[name]
        if not state:
            self._rows[name] = None, None
            if expired_us is not None:
                self.changes.append((_FORGET, (name,)))
            return
        rule = demand.binding.rule
        expires_us = min(rule.expires_at(state), _FARTHEST)
        if expired_us is None:
            self.changes.append((_ADD, (rule.dump(state), expires_us, expires_us, name)))
        else:  # another limiter's rule of this name may need the key for longer
            expires_us = max(expires_us, expired_us)
            self.changes.append((_CHANGE, (rule.dump(state), expires_us, name)))
        self._rows[name] = state, expires_us


def restored(binding: Binding, value: Any) -> Any:
    """Return the state that a stored value represents."""
    try:
        return binding.rule.restore(value)
    except UNREADABLE as error:
        raise damaged_key(binding.name, binding.rule.algorithm) from error


def is_locked(error: sqlite3.Error) -> bool:
    """Return whether another program, which does not use our lock, is using the file at the moment."""
    return isinstance(error, sqlite3.OperationalError) and "lock" in str(error)


def expiry_by(in_force: Mapping[bytes, RulesInForce]) -> ExpiresAt:
    """Return a function that judges a key by all rules in force here now under its name."""

    def expires_at(name: bytes, value: Any) -> int:
        rules = in_force.get(head_in(name))
        try:
            return 0 if rules is None else max(rule.expires_at(rule.restore(value)) for rule in rules.asked)
        except UNREADABLE:
            return 0

    return expires_at
