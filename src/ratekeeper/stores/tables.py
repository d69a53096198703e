"""The states of a MemoryStore: a table for each name, whose keys are in cohorts, and groups of tables.

A cohort lists the keys of one table that may expire at the same time and had used about the same share of their limit
when they were last checked. The tables of a group have one part of a full store together.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from ratekeeper.algorithms import Rule
from ratekeeper.stores.protocol import Binding, Key
from ratekeeper.stores.rules_in_force import RulesInForce

KEYS_PER_RULE = 8  # the room that a rule takes in which no limiter remains, since it takes the memory of so many keys
LEVELS = 16  # levels of the share used
_GRANULES = 8  # parts into which a rule's span is divided for cohorts
_FEW = 16  # keys in a list; more are in a deque, which takes 600 bytes at least
NO_KEYS: Any = frozenset()  # nearly no table needs a set of its own
_NO_BINDINGS: Any = MappingProxyType({})

_Order = Callable[["Cohort"], Any]
by_due: _Order = attrgetter("due", "serial")
by_level: _Order = attrgetter("level", "due", "serial")


class Cohort:
    """Keys of one table that are due at the same time and had used about the same share."""

    __slots__ = ("due", "keys", "level", "serial", "table")

    def __init__(self, table: Table, due: int, level: int, serial: int) -> None:
        self.table = table
        self.due = due
        self.level = level
        self.serial = serial
        self.keys: list[Key] | deque[Key] = []  # the first is checked next

    def append(self, key: Key) -> None:
        keys = self.keys
        if len(keys) == _FEW and keys.__class__ is list:
            keys = self.keys = deque(keys)
        keys.append(key)


class Group:
    """Tables that have one part of a full store together, and the cohorts of their keys."""

    __slots__ = ("by_due", "by_level", "is_shared", "used")

    def __init__(self, *, is_shared: bool = False) -> None:
        self.is_shared = is_shared  # by a name, so that other tables may join
        self.used = 0  # the room that its tables take, in keys
        self.by_due: list[Cohort] = []
        self.by_level: list[Cohort] = []

    def add(self, cohort: Cohort) -> None:
        insort(self.by_due, cohort, key=by_due)
        insort(self.by_level, cohort, key=by_level)

    def clear(self) -> None:
        self.by_due.clear()
        self.by_level.clear()

    def discard(self, cohort: Cohort) -> None:
        discard(self.by_due, cohort, by_due)
        discard(self.by_level, cohort, by_level)


def discard(cohorts: list[Cohort], cohort: Cohort, order: _Order) -> None:
    """Remove a cohort from a sorted list, if it is there."""
    at = bisect_left(cohorts, order(cohort), key=order)
    if at < len(cohorts) and cohorts[at] is cohort:
        del cohorts[at]


class Table:
    """The states of one name, by key."""

    __slots__ = ("bindings", "cohorts", "emptied", "granule_us", "group", "rule", "space", "states")

    def __init__(self, space: tuple[str, str, str], group: Group) -> None:
        self.space = space
        self.states: dict[Key, Any] = {}
        self.emptied: set[Key] = NO_KEYS  # keys without a state that are still in a cohort
        self.cohorts: dict[int, Cohort] = {}  # by when they are due and their level
        self.group = group
        self.bindings: dict[int, Binding] = _NO_BINDINGS  # of the limiters that use it, by id
        self.rule: Rule | RulesInForce  # says when a state ends, and how large the share in use is

    @property
    def used(self) -> int:
        """The room that it takes, in keys."""
        return len(self.states) if self.bindings else len(self.states) + KEYS_PER_RULE

    def bind(self, binding: Binding) -> None:
        """Note that a limiter uses this table."""
        if not self.bindings:
            self._obey(binding.rule)
        elif isinstance(self.rule, RulesInForce):
            self.rule.add(binding.rule)
            self._obey(self.rule)
        elif binding.rule != self.rule:
            users = [other.rule for other in self.bindings.values()]
            self._obey(RulesInForce([*users, binding.rule]))
        if self.bindings is _NO_BINDINGS:
            self.bindings = {id(binding): binding}
        else:
            self.bindings[id(binding)] = binding

    def unbind(self, binding: Binding) -> None:
        """Note that a limiter no longer exists, if it used this table."""
        if id(binding) not in self.bindings:
            return
        if len(self.bindings) == 1:
            self.bindings = _NO_BINDINGS  # the last rule remains, for the keys that its limiter leaves behind
            return
        del self.bindings[id(binding)]
        if isinstance(self.rule, RulesInForce):
            self.rule.remove(binding.rule)
            self._obey(next(iter(self.rule)) if len(self.rule) == 1 else self.rule)

    def _obey(self, rule: Rule | RulesInForce) -> None:
        self.rule = rule
        self.granule_us = max(1, rule.span_us // _GRANULES)
