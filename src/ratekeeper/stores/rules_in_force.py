"""The rules that are in force under one name: those of several limiters, or of a policy and its overrides."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from ratekeeper.algorithms.rule import Rule

_FEW = 8  # rules that are all asked


class RulesInForce:
    """Rules of one algorithm under one name: a state ends when it has ended for all of them.

    Of many rules, only those are asked that decide that, and by which nearly the largest share is in use.
    """

    __slots__ = ("_removed", "_users", "asked", "limit", "span_us")

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self._users: dict[Rule, int] = {}  # how many use a rule
        self._removed = 0  # rules, since all were looked at
        self.asked: Collection[Rule] = ()
        """The rules that are asked."""
        self.limit = 0
        """The largest limit."""
        self.span_us = 0
        for rule in rules:
            self.add(rule)

    def __len__(self) -> int:
        return len(self._users)

    def __iter__(self) -> Iterator[Rule]:
        return iter(self._users)

    def add(self, rule: Rule) -> None:
        """Put a rule in force, once more if it is already."""
        users = self._users.get(rule, 0)
        if not users:
            self._ask([*self.asked, rule], len(self._users) + 1)
            self.limit = max(self.limit, rule.limit)
            self.span_us = max(self.span_us, rule.span_us)
        self._users[rule] = users + 1

    def remove(self, rule: Rule) -> None:
        """End one use of a rule."""
        users = self._users.get(rule, 0) - 1
        if users > 0:
            self._users[rule] = users
        elif users == 0:
            del self._users[rule]
            self._removed += 1
            left = len(self._users)
            if left and (left <= _FEW or self._removed >= left):  # until then, states may be kept for too long
                rules = list(self._users)
                self._ask(rules, left)
                self.limit = max(each.limit for each in rules)
                self.span_us = max(each.span_us for each in rules)
                self._removed = 0

    def expires_at(self, state: Any) -> int:
        """Return when a state has ended for all rules."""
        return max(rule.expires_at(state) for rule in self.asked)

    def share(self, state: Any, now: int) -> float:
        """Return the largest share of a limit that is in use; of many rules, about that."""
        return max(rule.share(state, now) for rule in self.asked)

    def _ask(self, rules: Collection[Rule], count: int) -> None:
        self.asked = rules if count <= _FEW else type(next(iter(rules))).decisive(rules)
