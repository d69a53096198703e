"""SqliteStore: one file that the processes of one machine share, with no server.

Every request is decided in Python, under a lock that all these processes share: read the states, decide, write.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any

from ratekeeper import flows
from ratekeeper.clock import Clock, no_time, wall_clock
from ratekeeper.errors import InvalidRule
from ratekeeper.rates import show
from ratekeeper.stores.closing import Files, close_with, closing
from ratekeeper.stores.database import Database, Work, expiry_by, restored
from ratekeeper.stores.deciding import carry_out
from ratekeeper.stores.file_access import Action, Drive, FileAccess, Sleep
from ratekeeper.stores.filelock import FileLock
from ratekeeper.stores.names import head_of, name_of, shared_name
from ratekeeper.stores.paths import checked
from ratekeeper.stores.protocol import (
    Binding,
    CallObserver,
    Demand,
    Inspection,
    Outcome,
    QuickHit,
    SharedValue,
    Snapshot,
    StoreFigures,
    outcome_at,
)
from ratekeeper.stores.rules_in_force import RulesInForce

_STEP = 1_000  # keys that are forgotten under one lock
_AFTER_BRACE = b"|"  # what follows the brace that opens the key in a name
_ROW_BYTES = 24  # roughly what a row takes besides its name and its state


class SqliteStore:
    """Keeps state in a file on this machine, for threads and event loops of any number of processes."""

    may_be_away = True
    is_per_loop = False

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = checked(path)
        # The rules of this process's limiters, by the head of their keys' names, with the ids of their bindings.
        self._in_force: dict[bytes, RulesInForce] = {}
        self._database = Database(self.path, expiry_by(self._in_force))
        self._files = Files(FileLock(f"{self.path}-lock"), self._database)
        self._access = FileAccess(repr(self), self._files)
        self.breaker = self._access.breaker
        self.ask = self._access.ask
        """Runs an action on the file, for threads and event loops."""
        self._clock: Clock = wall_clock
        self._bound: dict[int, tuple[Binding, bytes]] = {}  # by id: a binding, and the head of its keys' names
        close_with(self._files, self)

    def __repr__(self) -> str:
        return f"SqliteStore({self.path!r})"

    @property
    def is_away(self) -> bool:
        """Whether the file cannot be used at the moment."""
        return self.breaker.is_open

    def figures(self) -> StoreFigures:
        """Return how the store stands now; its keys are not counted, which would take longer the more there are."""
        return StoreFigures(not self.is_away)

    def observe_calls(self, observer: CallObserver) -> None:
        """Tell an observer of every decision, and of every call that fails, from now on."""
        self._access.calls.observe(observer)

    def for_threads(self) -> SqliteStore:
        return self

    def for_asyncio(self) -> AsyncSqliteLayer:
        return AsyncSqliteLayer(self)

    def bind(self, binding: Binding, clock: Clock | None) -> None:
        """Prepare for a limiter's rule and its clock. All limiters of one store share one clock."""
        clock = clock or wall_clock
        if self._bound and clock != self._clock:
            raise InvalidRule(
                f"clock {show(clock)} differs from this store's, {show(self._clock)}; use one clock per store"
            )
        self._clock = clock
        head = head_of(binding)
        self._bound[id(binding)] = binding, head
        self._in_force.setdefault(head, RulesInForce()).add(binding.rule)

    def unbind(self, bindings: Sequence[Binding]) -> None:
        """Forget a limiter's rules."""
        for binding in bindings:
            bound = self._bound.pop(id(binding), None)
            if bound is not None:
                rules = self._in_force[bound[1]]
                rules.remove(binding.rule)
                if not rules:
                    del self._in_force[bound[1]]

    def quick_hit(self, binding: Binding) -> QuickHit | None:  # noqa: ARG002 - a file has no shortcut
        """Return None: a file has no shortcut."""
        return None

    def execute(self, demands: Sequence[Demand], ends_ns: int | None = None) -> Outcome:
        """Decide or change all demands at one instant; raise StoreUnavailable if that cannot be done in time."""
        return self.ask(self.decide, demands, ends_ns, flows.run, time.sleep)  # type: ignore[no-any-return]

    def snapshot(self, demands: Sequence[Demand], ends_ns: int | None = None) -> Snapshot:
        """Return the time and the state of each demand's key."""
        return self.ask(self.look, demands, ends_ns, flows.run, time.sleep)  # type: ignore[no-any-return]

    def inspect(self, demands: Sequence[Demand]) -> list[Inspection]:
        """Show how each demand's key is stored."""
        return self.ask(self.show, demands, None, flows.run, time.sleep)  # type: ignore[no-any-return]

    def forget(self, bindings: Sequence[Binding]) -> None:
        """Forget every key of these rules, in steps between which others may use the file."""
        flows.run(self.forgetting(bindings, flows.run, time.sleep))

    def read_shared(self, name: str, most: int | None = None) -> SharedValue:
        """Return a shared value, or its first `most` bytes."""
        return self.ask(self.reading(name, most), (), None, flows.run, time.sleep)  # type: ignore[no-any-return]

    def replace_shared(self, name: str, before: bytes, content: bytes) -> bool:
        """Replace a shared value that begins with `before`; tell whether it did."""
        return self.ask(self.replacing(name, before, content), (), None, flows.run, time.sleep)  # type: ignore[no-any-return]

    def close(self) -> None:
        """Close the file; the next request opens it again. It stays open while others hold its lock."""
        flows.run(self.closing(time.sleep))

    # What threads and event loops share.

    def closing(self, sleep: Sleep) -> flows.Flow[bool]:
        """Close the file under the lock; return whether that was done in time."""
        return closing(self._files, sleep)

    def forgetting(self, bindings: Sequence[Binding], drive: Drive, sleep: Sleep) -> flows.Flow[None]:
        """Forget every key of these rules, each step under the lock."""
        for binding in bindings:
            head = head_of(binding)
            after: bytes | None = head
            while after is not None:
                step = partial(self.forget_some, head, after)
                after = yield self.ask(step, (), None, drive, sleep)

    def forget_some(self, head: bytes, after: bytes, _: Sequence[Demand]) -> bytes | None:
        """Forget some keys of a rule; return the last of them if there may be more."""
        return self._database.forget(after, head[:-1] + _AFTER_BRACE, _STEP, self._now())

    def reading(self, name: str, most: int | None) -> Action:
        """Return the action that reads a shared value."""
        return lambda _: SharedValue(self._database.shared(shared_name(name))[:most], self._now())

    def replacing(self, name: str, before: bytes, content: bytes) -> Action:
        """Return the action that replaces a shared value."""
        return lambda _: self._database.replace_shared(shared_name(name), before, content, self._now())

    def decide(self, demands: Sequence[Demand]) -> Outcome:
        """Decide or change all demands."""
        now = self._now()
        work = Work(self._database, self._name)
        answers = carry_out(demands, now, work.read, work.write)
        self._database.write(work.changes, now)
        if self._access.calls.observers:
            self._access.calls.tell(1, True)
        return outcome_at(now, answers)

    def look(self, demands: Sequence[Demand]) -> Snapshot:
        """Read all states."""
        now = self._now()
        work = Work(self._database, self._name)
        return Snapshot(now, [demand.binding.rule for demand in demands], [work.read(demand) for demand in demands])

    def show(self, demands: Sequence[Demand]) -> list[Inspection]:
        """Read all states as they are stored."""
        now = self._now()
        return [self._inspection(demand, now) for demand in demands]

    def _inspection(self, demand: Demand, now: int) -> Inspection:
        rule, name = demand.binding.rule, self._name(demand)
        found = self._database.read(name)
        state = None if found is None else restored(demand.binding, found[0])
        ttl = rule.expires_at(state) - now if state else 0
        shown = name.decode("utf-8", "backslashreplace")
        if found is None or ttl <= 0:
            return Inspection(rule.text, dict(rule.words(None, now)), None, None, 0, now / 1e6, shown)
        size = len(name) + len(found[0]) + _ROW_BYTES
        return Inspection(rule.text, dict(rule.words(state, now)), found[0], ttl / 1e6, size, now / 1e6, shown)

    def _now(self) -> int:
        now_ns = self._clock()
        if not isinstance(now_ns, int):
            raise no_time(now_ns)
        return now_ns // 1000

    def _name(self, demand: Demand) -> bytes:
        bound = self._bound.get(id(demand.binding))  # missing if the limiter is gone
        return name_of(head_of(demand.binding) if bound is None else bound[1], demand.key)


class AsyncSqliteLayer:
    """A SqliteStore as event loops call it: returns what it can decide at once, and awaits the lock otherwise."""

    def __init__(self, store: SqliteStore) -> None:
        import asyncio

        self._store = store
        self._sleep: Sleep = asyncio.sleep

    def execute(self, demands: Sequence[Demand], ends_ns: int | None = None) -> Outcome | Awaitable[Outcome]:
        """Decide or change all demands at one instant."""
        return self._ask(self._store.decide, demands, ends_ns)  # type: ignore[no-any-return]

    def snapshot(self, demands: Sequence[Demand], ends_ns: int | None = None) -> Snapshot | Awaitable[Snapshot]:
        """Return the time and the state of each demand's key."""
        return self._ask(self._store.look, demands, ends_ns)  # type: ignore[no-any-return]

    def inspect(self, demands: Sequence[Demand]) -> list[Inspection] | Awaitable[list[Inspection]]:
        """Show how each demand's key is stored."""
        return self._ask(self._store.show, demands, None)  # type: ignore[no-any-return]

    def read_shared(self, name: str, most: int | None = None) -> SharedValue | Awaitable[SharedValue]:
        """Return a shared value, or its first `most` bytes."""
        return self._ask(self._store.reading(name, most), (), None)  # type: ignore[no-any-return]

    def replace_shared(self, name: str, before: bytes, content: bytes) -> bool | Awaitable[bool]:
        """Replace a shared value that begins with `before`; tell whether it did."""
        return self._ask(self._store.replacing(name, before, content), (), None)  # type: ignore[no-any-return]

    async def forget(self, bindings: Sequence[Binding]) -> None:
        """Forget every key of these rules, in steps between which others may use the file."""
        await flows.run_async(self._store.forgetting(bindings, flows.run_async, self._sleep))

    async def close(self) -> None:
        """Close the file; the next request opens it again. It stays open while others hold its lock."""
        await flows.run_async(self._store.closing(self._sleep))

    def _ask(self, action: Action, demands: Sequence[Demand], ends_ns: int | None) -> Any:
        return self._store.ask(action, demands, ends_ns, flows.run_async, self._sleep)
