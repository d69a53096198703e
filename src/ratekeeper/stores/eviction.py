"""Expiry and eviction: when to check each key again, and which key to evict when the store is full.

Every stored key is in exactly one cohort: the keys of a table that may expire at the same time and had used about the
same share of their limit when they were last checked. A key that is used again stays in its cohort; it is checked, and
moved to its new cohort, only when the cohort is due or room is needed. So a decision on a known key costs nothing
here, and every call does a bounded amount of work.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from ratekeeper.algorithms import Rule
from ratekeeper.stores.protocol import Binding, Key

NEVER = 1 << 63
_LEVELS = 16  # levels of the share used
_GRANULES = 8  # parts into which a rule's span is divided for cohorts
_LOOKS = 8  # due keys that one call checks
_CANDIDATES = 16  # keys that are checked to find one to evict
_MANY = 64  # with more keys, a flood evicts the first key found that has used almost nothing


class Table:
    """The states of one name, by key."""

    __slots__ = ("bindings", "cohorts", "emptied", "granule_us", "rule", "states")

    def __init__(self) -> None:
        self.states: dict[Key, Any] = {}
        self.emptied: set[Key] = set()
        self.cohorts: dict[tuple[int, int], Cohort] = {}
        self.bindings: tuple[Binding, ...] = ()  # of the limiters that use it
        self.rule: Rule | _RulesInForce  # says when a state ends, and how large the share in use is

    def bind(self, binding: Binding) -> None:
        """Note that a limiter uses this table."""
        self.bindings = (*self.bindings, binding)
        self._judge()

    def unbind(self, binding: Binding) -> None:
        """Note that a limiter no longer exists, if it used this table."""
        self.bindings = tuple([other for other in self.bindings if other is not binding])
        if self.bindings:  # otherwise the last rule remains, for the keys that it leaves behind
            self._judge()

    def _judge(self) -> None:
        rules = list({binding.rule: None for binding in self.bindings})
        self.rule = rules[0] if len(rules) == 1 else _RulesInForce(rules)
        self.granule_us = max(1, self.rule.span_us // _GRANULES)


class _RulesInForce:
    """Several rules under one name: a state ends when it has ended for all of them."""

    __slots__ = ("_rules", "limit", "span_us")

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self.limit = max(rule.limit for rule in rules)
        self.span_us = max(rule.span_us for rule in rules)

    def expires_at(self, state: Any) -> int:
        return max(rule.expires_at(state) for rule in self._rules)

    def share(self, state: Any, now: int) -> float:
        return max(rule.share(state, now) for rule in self._rules)


class Cohort:
    """Keys of one table that are due at the same time and had used about the same share."""

    __slots__ = ("due", "keys", "level", "table")

    def __init__(self, table: Table, due: int, level: int) -> None:
        self.table = table
        self.due = due
        self.level = level
        self.keys: deque[Key] = deque()


class EvictionQueue:
    """All cohorts of a store. Not thread-safe: callers hold the store's lock."""

    def __init__(self, max_keys: int) -> None:
        self.max_keys = max_keys
        self.evictions = 0
        self._agenda: list[tuple[int, int, Cohort]] = []
        self._serial = count()
        self.clear()

    def clear(self) -> None:
        """Forget all keys."""
        self.stored = 0
        self.due = NEVER
        self._emptied = 0
        self._agenda.clear()
        self._ranking: list[tuple[int, int, int, Cohort]] = []  # every cohort that has keys, and some that had keys

    def add(self, table: Table, key: Key, state: Any, now: int) -> None:
        """Store a new key; if the store is full, evict a key, which may be the new one itself."""
        if self._is_full():
            self.collect(now)
        if self._is_full() and not self._make_room(table, state, now):
            return
        if not self._was_emptied(table, key):  # otherwise it still has an entry in a cohort
            self._place(table, key, state, now)
        table.states[key] = state
        self.stored += 1

    def empty(self, table: Table, key: Key) -> None:
        """Forget a key at once; its entry in a cohort stays until it is checked or the key comes back."""
        del table.states[key]
        self.stored -= 1
        table.emptied.add(key)
        self._emptied += 1

    def collect(self, now: int) -> None:
        """Forget keys that have expired, a few at a time."""
        agenda = self._agenda
        looks = 0
        while agenda and agenda[0][0] <= now and looks < _LOOKS:
            cohort = agenda[0][2]
            if not cohort.keys:
                heapq.heappop(agenda)
                del cohort.table.cohorts[cohort.due, cohort.level]
                continue
            looks += 1
            table, key = cohort.table, cohort.keys[0]
            if not self._drop(table, key, now):
                self._place(table, key, table.states[key], now)
            cohort.keys.popleft()  # last: an interruption before this leaves the key in two cohorts, never in none
        self.due = agenda[0][0] if agenda else NEVER

    def _is_full(self) -> bool:
        # An emptied key keeps its entry in a cohort until it is checked: at most as many entries again as keys.
        return self.stored >= self.max_keys or self.stored + self._emptied >= 2 * self.max_keys

    def _was_emptied(self, table: Table, key: Key) -> bool:
        """Tell whether a key was emptied and has only its cohort entry left; if so, no longer count that entry."""
        if key not in table.emptied:
            return False
        table.emptied.remove(key)
        self._emptied -= 1
        return True

    def _drop(self, table: Table, key: Key, now: int) -> bool:
        """Drop a key that was taken from its cohort if it was emptied or has expired; tell whether it was dropped."""
        if self._was_emptied(table, key):
            return True
        state = table.states.get(key)
        if state is not None and table.rule.expires_at(state) > now:
            return False
        self._remove(table, key)
        return True

    def _remove(self, table: Table, key: Key) -> None:
        if table.states.pop(key, None) is not None:
            self.stored -= 1

    def _place(self, table: Table, key: Key, state: Any, now: int) -> None:
        granule_us = table.granule_us
        # a key charged beyond its limit is checked before it expires, or each such key would need its own cohort
        due = min(max(table.rule.expires_at(state), now + 1), now + 1 + table.rule.span_us)
        due = -(-due // granule_us) * granule_us
        level = min(_LEVELS - 1, int(table.rule.share(state, now) * _LEVELS))
        cohort = table.cohorts.get((due, level))
        if cohort is None:
            cohort = table.cohorts[due, level] = Cohort(table, due, level)
            heapq.heappush(self._agenda, (due, next(self._serial), cohort))
            self.due = self._agenda[0][0]
        if not cohort.keys:
            heapq.heappush(self._ranking, (level, due, next(self._serial), cohort))
        cohort.keys.append(key)
        if len(self._ranking) > 2 * len(self._agenda) + 16:  # drop the cohorts without keys
            self._ranking = [(kept.level, kept.due, turn, kept) for _, turn, kept in self._agenda if kept.keys]
            heapq.heapify(self._ranking)

    def _make_room(self, table: Table, state: Any, now: int) -> bool:
        """Evict the key with the smallest share; ties: the first to expire. Return False if that is the new key."""
        newcomer = _standing(table, state, now)
        looked_at: list[tuple[tuple[float, int], Table, Key]] = []
        try:
            for owner, key in self._candidates():
                if self._drop(owner, key, now):
                    if not self._is_full():
                        return True
                    continue
                standing = _standing(owner, owner.states[key], now)
                looked_at.append((standing, owner, key))
                if (
                    owner is table
                    and standing <= newcomer
                    and standing[0] * table.rule.limit <= 1
                    and self.stored > _MANY
                ):
                    break  # it has used at most one unit, as in a flood of fresh keys: stop searching
            self.evictions += 1
            lightest = min(looked_at, key=lambda candidate: candidate[0], default=None)
            if lightest is None or lightest[0] > newcomer:
                return False
            looked_at.remove(lightest)
            self._remove(*lightest[1:])
            return True
        finally:
            for _, owner, key in looked_at:
                self._place(owner, key, owner.states[key], now)

    def _candidates(self) -> Iterator[tuple[Table, Key]]:
        """Take keys from the cohort with the smallest shares and from the one due first; with few keys, take all."""
        cohorts = [self._lowest_cohort(), self._agenda[0][2]]
        few = self.stored + self._emptied <= _CANDIDATES
        if few:
            cohorts = [cohort for _, _, cohort in self._agenda]
        for cohort in cohorts:
            for _ in range(min(len(cohort.keys), _CANDIDATES if few else _CANDIDATES // 2)):
                yield cohort.table, cohort.keys.popleft()

    def _lowest_cohort(self) -> Cohort:
        """Return the cohort with the smallest shares."""
        while not self._ranking[0][3].keys:
            heapq.heappop(self._ranking)
        return self._ranking[0][3]


def _standing(table: Table, state: Any, now: int) -> tuple[float, int]:
    return min(1.0, table.rule.share(state, now)), table.rule.expires_at(state)
