"""Expiry and eviction: when to check each key again, and which key to evict when the store is full.

Every stored key is in a cohort. A key that is used again stays in its cohort; it is checked, and moved to its new
cohort, only when the cohort is due or room is needed. So a decision on a known key costs nothing here, and no call
takes longer because there are many keys.

A caller may be interrupted, or the process forked, between any two steps. What is stored is what `Table.states` holds,
and a key comes or goes there in one step. It is put into a cohort before it is stored, and taken out after it is gone:
no stored key is ever in none, and a key too many is dropped when it is checked. Counts that an interruption may have
left wrong are taken anew.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence
from itertools import count, islice
from typing import Any

from ratekeeper.stores.protocol import Binding, Key
from ratekeeper.stores.tables import LEVELS, NO_KEYS, Cohort, Group, Table, by_due, by_level, discard

_Standing = tuple[float, int]  # the share that a key has used, and when it expires

NEVER = 1 << 63
_LOOKS = 8  # due keys that one call checks for each of its demands
_CANDIDATES = 16  # keys that are checked to find one to evict; all keys if there are no more than twice as many
_EVICTIONS = 2  # keys that one new key evicts, if rules have lost their limiters and take more room than before
_RIVALS = 4  # groups that are considered besides the newcomer's own
_MANY = 64  # with more keys, a flood evicts the first key found that has used almost nothing
_EXPIRED: _Standing = (-1.0, 0)
_STAYS: _Standing = (2.0, 0)
_SPARE = 8  # emptied keys that may be in cohorts besides as many as are stored
_SWEEPS = 8  # keys that are checked for each that is emptied beyond these


class EvictionQueue:
    """The tables of a store, and the order in which their keys go. Not thread-safe: callers hold the store's lock."""

    def __init__(self, max_keys: int) -> None:
        self.max_keys = max_keys
        self.evictions = 0
        self.due = NEVER
        self.tables: dict[tuple[str, str, str], Table] = {}
        self._named: dict[str, Group] = {}  # few: clients do not choose the names
        self._agenda: list[Cohort] = []  # by due
        self._serial = count()
        self._sweeping: Iterator[Cohort] = iter(())
        self._counts_are_wrong = False
        self._used = self._emptied = 0
        self._groups: dict[Group, None] = {}  # that use room

    def bind(self, binding: Binding) -> Table:
        """Note that a limiter uses a rule; return its table."""
        self._begin()
        table = self.tables.get(binding.space)
        if table is None:
            name = binding.group
            group = Group() if name is None else self._named.setdefault(name, Group(is_shared=True))
            table = Table(binding.space, group)
            table.bind(binding)
            self.tables[binding.space] = table
        else:
            before = table.used
            table.bind(binding)
            self._use(table.group, table.used - before)
            if binding.group is None and table.group.is_shared:
                self._part(table)
        self._counts_are_wrong = False
        return table

    def unbind(self, binding: Binding) -> None:
        """Note that a limiter no longer exists, if it was noted that it does."""
        table = self.tables.get(binding.space)
        if table is not None:
            self._begin()
            before = table.used
            table.unbind(binding)
            self._use(table.group, table.used - before)
            self._drop_if_over(table)
            self._counts_are_wrong = False

    def clear(self) -> None:
        """Forget all keys."""
        self._counts_are_wrong = True
        tables = list(self.tables.values())
        for table in tables:
            table.states.clear()
            table.emptied = NO_KEYS
        for table in tables:  # now that no key needs a cohort
            table.cohorts.clear()
        for table in tables:
            table.group.clear()
            if not table.bindings:
                self.tables.pop(table.space, None)
        self._agenda.clear()
        self.due = NEVER
        self._count()

    def add(self, table: Table, key: Key, state: Any, now: int) -> None:
        """Store a new key; if the store is full, evict a key, which may be the new one itself."""
        if self._counts_are_wrong:
            self._count()
        if self._used >= self.max_keys:
            if now >= self.due:
                self.collect(now)
            for _ in range(_EVICTIONS):
                if self._used < self.max_keys:
                    break
                if not self._make_room(table, state, now):
                    return
        if key not in table.emptied:  # otherwise it is still in a cohort
            self._place(table, key, state, now)
        self._counts_are_wrong = True
        table.states[key] = state
        if key in table.emptied:
            table.emptied.remove(key)
            self._emptied -= 1
        self._use(table.group, 1)
        self._counts_are_wrong = False

    def empty(self, table: Table, key: Key) -> None:
        """Forget a key at once; it stays in its cohort until it is checked or comes back."""
        self._begin()
        if table.emptied is NO_KEYS:
            table.emptied = set()
        table.emptied.add(key)
        self._emptied += 1
        if table.states.pop(key, None) is not None:
            self._use(table.group, -1)
        self._counts_are_wrong = False
        if self._emptied > self._used + _SPARE:
            self._sweep()

    def forget(self, table: Table) -> None:
        """Forget all keys of a table."""
        self._counts_are_wrong = True
        table.states.clear()
        table.emptied = NO_KEYS
        for cohort in list(table.cohorts.values()):  # now that no key needs one
            cohort.keys.clear()
            self._close(cohort)
        self._count()

    def collect(self, now: int, demands: int = 1) -> None:
        """Forget keys that have expired, a few at a time, and more of them than so many demands can add."""
        if self._counts_are_wrong:
            self._count()
        agenda = self._agenda
        for _ in range(_LOOKS * demands):
            if not agenda or agenda[0].due > now:
                break
            cohort = agenda[0]
            if not cohort.keys:  # left by an interruption
                self._close(cohort)
                continue
            table, key = cohort.table, cohort.keys[0]
            state = table.states.get(key)
            if state is None or table.rule.expires_at(state) <= now:
                self._forget(table, key)
            else:
                self._place(table, key, state, now)
            self._take(cohort)
        self.due = agenda[0].due if agenda else NEVER

    # Keys and their cohorts.

    def _place(self, table: Table, key: Key, state: Any, now: int) -> None:
        """Put a key into the cohort where it belongs now."""
        granule_us = table.granule_us
        # a key charged beyond its limit is checked before it expires, or each such key would need its own cohort
        due = min(max(table.rule.expires_at(state), now + 1), now + 1 + table.rule.span_us)
        due = -(-due // granule_us) * granule_us
        level = min(LEVELS - 1, int(table.rule.share(state, now) * LEVELS))
        cohort = table.cohorts.get(due * LEVELS + level)
        if cohort is None:
            cohort = Cohort(table, due, level, next(self._serial))
            self.due = min(self.due, due)
            insort(self._agenda, cohort, key=by_due)
            table.group.add(cohort)
            table.cohorts[due * LEVELS + level] = cohort  # last: what is found here is in all lists
        cohort.append(key)

    def _take(self, cohort: Cohort) -> None:
        """Take the first key out of a cohort."""
        del cohort.keys[0]
        if not cohort.keys:
            self._close(cohort)

    def _close(self, cohort: Cohort) -> None:
        """Remove a cohort without keys from all lists."""
        table = cohort.table
        if table.cohorts.get(cohort.due * LEVELS + cohort.level) is cohort:
            del table.cohorts[cohort.due * LEVELS + cohort.level]
        table.group.discard(cohort)
        discard(self._agenda, cohort, by_due)  # last: what is left by an interruption is found here

    def _forget(self, table: Table, key: Key) -> None:
        """Forget a key that is about to be taken out of its cohort."""
        self._counts_are_wrong = True
        if key in table.emptied:
            table.emptied.remove(key)
            self._emptied -= 1
        if table.states.pop(key, None) is not None:
            self._use(table.group, -1)
        if not table.bindings:
            self._drop_if_over(table)
        self._counts_are_wrong = False

    def _drop_if_over(self, table: Table) -> None:
        """Drop a table that no limiter uses and that has no keys."""
        if not (table.bindings or table.states or table.emptied) and self.tables.get(table.space) is table:
            del self.tables[table.space]
            self._use(table.group, -table.used)

    # Counts.

    def _use(self, group: Group, keys: int) -> None:
        """Note that a group uses more room, or less."""
        self._used += keys
        group.used += keys
        if not group.used:
            self._groups.pop(group, None)
        elif group.used == keys:
            self._groups[group] = None

    def _begin(self) -> None:
        """Expect an interruption that leaves the counts wrong."""
        if self._counts_are_wrong:
            self._count()
        self._counts_are_wrong = True

    def _count(self) -> None:
        """Take all counts anew."""
        used = dict.fromkeys(self._named.values(), 0)
        for table in self.tables.values():
            used[table.group] = used.get(table.group, 0) + table.used
        for group, keys in used.items():
            group.used = keys
        self._groups = {group: None for group, keys in used.items() if keys}
        self._used = sum(used.values())
        self._emptied = sum(len(table.emptied) for table in self.tables.values())
        self._counts_are_wrong = False

    def _part(self, table: Table) -> None:
        """Give a table a group of its own."""
        old, new = table.group, Group()
        for cohort in table.cohorts.values():
            new.add(cohort)
        table.group = new
        for cohort in table.cohorts.values():
            old.discard(cohort)
        self._count()

    def _sweep(self) -> None:
        """Check a few keys, in turn, and drop those that were emptied."""
        for _ in range(_SWEEPS):
            cohort = next(self._sweeping, None)
            if cohort is None:
                self._sweeping = self._all_in_turn()
                continue
            table, key = cohort.table, cohort.keys[0]
            if key in table.states:
                cohort.append(key)
            else:
                self._forget(table, key)
            self._take(cohort)

    def _all_in_turn(self) -> Iterator[Cohort]:
        """Return every cohort as often as it has keys."""
        for table in list(self.tables.values()):
            for cohort in list(table.cohorts.values()):
                for _ in range(len(cohort.keys)):
                    if cohort.keys:
                        yield cohort

    # Eviction.

    def _make_room(self, table: Table, state: Any, now: int) -> bool:
        """Evict the key that has used the smallest share of its limit; ties: the first to expire.

        Each group has an equal part of the store. If the new key's group has less than its part, a group that has more
        gives up a key. Otherwise the new key competes with these and with its own group: return False if it has to go.
        """
        own = table.group
        part = self.max_keys // (len(self._groups) + (own not in self._groups))
        groups = self._above(part, own) if len(self._groups) > 1 or own not in self._groups else []
        newcomer = None
        if own.used >= part:
            groups.append(own)
            newcomer = _standing(table, state, now)
        checked, goes = self._check(groups, newcomer, now)
        if goes is not _EXPIRED:
            self.evictions += 1
            if newcomer is not None and goes is not None and newcomer < goes:
                goes = None
        for standing, cohort, key in checked:  # each is the first in its cohort
            known = cohort.table.states.get(key)
            if known is None or standing is goes or standing is _EXPIRED:
                self._forget(cohort.table, key)
            else:
                self._place(cohort.table, key, known, now)
            self._take(cohort)
        return newcomer is None or goes is not None

    def _above(self, part: int, own: Group) -> list[Group]:
        """Return some groups that have more than their part, other ones each time; none only if there is none."""
        above: list[Group] = []
        for group in self._groups:
            if group.used > part and group is not own:
                above.append(group)
                if len(above) == _RIVALS:
                    self._counts_are_wrong = True
                    del self._groups[above[0]]
                    self._groups[above[0]] = None  # now the last
                    self._counts_are_wrong = False
                    break
        return above

    def _check(
        self, groups: Sequence[Group], newcomer: _Standing | None, now: int
    ) -> tuple[list[tuple[_Standing, Cohort, Key]], _Standing | None]:
        """Look at keys until one is found that has expired or is surely light enough; return these and the lightest."""
        are_few = self._used + self._emptied <= 2 * _CANDIDATES
        most = 2 * _CANDIDATES if are_few else _CANDIDATES // (2 if len(groups) == 1 else 4)
        checked: list[tuple[_Standing, Cohort, Key]] = []
        lightest = None
        for cohort in self._agenda if are_few else self._likely(groups):
            table = cohort.table
            may_go = table.group in groups
            for key in islice(cohort.keys, most):
                state = table.states.get(key)
                if state is None:
                    checked.append((_EXPIRED, cohort, key))  # it was emptied
                    continue
                standing = _standing(table, state, now)
                if standing[1] <= now:
                    checked.append((_EXPIRED, cohort, key))
                    return checked, _EXPIRED
                checked.append((standing if may_go else _STAYS, cohort, key))
                if may_go and (lightest is None or standing < lightest):
                    lightest = standing
                    is_light = standing[0] * table.rule.limit <= 1 and (newcomer is None or standing <= newcomer)
                    if is_light and self._used > _MANY:
                        return checked, lightest  # it has used at most one unit, as in a flood of fresh keys
        return checked, lightest

    def _likely(self, groups: Sequence[Group]) -> Iterator[Cohort]:
        """Return the cohorts with the smallest shares and those due first in these groups, and the first of all."""
        if len(groups) > 1:  # the two whose keys have used the least
            lightest = [first for group in groups if (first := self._first(group, group.by_level)) is not None]
            groups = [cohort.table.group for cohort in sorted(lightest, key=by_level)[:2]]
        seen: list[Cohort] = []
        for group in groups:
            for cohorts in (group.by_level, group.by_due):
                first = self._first(group, cohorts)
                if first is not None and first not in seen:
                    seen.append(first)
                    yield first
        if self._agenda and self._agenda[0] not in seen:
            yield self._agenda[0]

    def _first(self, group: Group, cohorts: list[Cohort]) -> Cohort | None:
        """Return the first cohort in a group's list."""
        while cohorts:
            cohort = cohorts[0]
            if cohort.keys and cohort.table.group is group:
                return cohort
            if not cohort.keys:  # left by an interruption
                self._close(cohort)
            group.discard(cohort)
        return None


def _standing(table: Table, state: Any, now: int) -> _Standing:
    return min(1.0, table.rule.share(state, now)), table.rule.expires_at(state)
