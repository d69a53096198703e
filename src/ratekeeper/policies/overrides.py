"""Finds the first of many overrides that a request meets, without trying each of them."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from ratekeeper.http.url_paths import folded
from ratekeeper.policies.attributes import Texts
from ratekeeper.policies.conditions import Patterns, Size, When, networks_around

_Positions = list[int]


class OverrideTable:
    """The conditions of overrides, in order of precedence.

    An override with an attribute that has no wildcards is found by the value of that attribute: of several such
    attributes, by the one whose values the fewest other overrides have. Only the others are tried one by one.
    """

    def __init__(self, conditions: Sequence[When]) -> None:
        self._conditions = conditions
        self._by_text: dict[str, dict[str, _Positions]] = {}
        self._by_network: dict[str, dict[Size, dict[int, _Positions]]] = {}
        self._others: _Positions = []
        frequency = Counter(
            (name, value) for when in conditions for name, patterns in when.indexable for value in _values(patterns)
        )
        for position, when in enumerate(conditions):
            usable = list(when.indexable)
            if not usable:
                self._others.append(position)
                continue
            name, patterns = min(usable, key=lambda each: max(frequency[each[0], value] for value in _values(each[1])))
            for text in patterns.texts:
                self._by_text.setdefault(name, {}).setdefault(text, []).append(position)
            for size, numbers in patterns.networks.items():
                of_size = self._by_network.setdefault(name, {}).setdefault(size, {})
                for number in numbers:
                    of_size.setdefault(number, []).append(position)

    def __len__(self) -> int:
        return len(self._conditions)

    def matching(self, attributes: Texts, *, as_written: bool = False) -> Iterator[int]:
        """Return the positions of the overrides that a request meets, in order."""
        for position in self._candidates(attributes):
            if self._conditions[position].matches(attributes, as_written=as_written):
                yield position

    def _candidates(self, attributes: Texts) -> Iterator[int] | _Positions:
        found = [self._others] if self._others else []
        for name, by_text in self._by_text.items():
            text = attributes.get(name)
            if text is not None:
                positions = by_text.get(folded(text) if name == "path" else text)
                if positions is not None:
                    found.append(positions)
        for name, by_size in self._by_network.items():
            text = attributes.get(name)
            if text is not None:
                hits = (by_size[size].get(number) for size, number in networks_around(text, by_size))
                found += [positions for positions in hits if positions is not None]
        return found[0] if len(found) == 1 else heapq.merge(*found)


def _values(patterns: Patterns) -> Iterator[Any]:
    yield from patterns.texts
    for size, numbers in patterns.networks.items():
        for number in numbers:
            yield size, number
