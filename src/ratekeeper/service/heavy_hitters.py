"""The items of a stream with the most weight, in bounded memory.

This is the summary of Misra and Gries, with weights, and with its decrements put together: once twice as many items
are kept as wanted, the same is taken from all, so that no more stay than are wanted.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

_Item = TypeVar("_Item", bound=Hashable)


class HeavyHitters(Generic[_Item]):
    """Adds up the weight of each item, for up to twice `most` of them.

    A weight is never too high. It is too low by at most `missed`, which is at most 1/`most` of the weight of all items;
    an item that is not there weighs at most that. Nothing is missed of up to twice `most` different items.
    """

    __slots__ = ("_most", "missed", "taken", "weights")

    def __init__(self, most: int, missed: int = 0, taken: int = 0, weights: dict[_Item, int] | None = None) -> None:
        self._most = most
        self.missed = missed
        self.taken = taken
        """The weight that was taken from items, all together."""
        self.weights = {} if weights is None else weights
        """The weight of each item. What is in it can be added to right here."""

    def add(self, item: _Item, weight: int) -> None:
        """Add to the weight of an item."""
        weights = self.weights
        weights[item] = weights.get(item, 0) + weight
        if len(weights) > 2 * self._most:
            self._prune()

    def _prune(self) -> None:
        weights = self.weights
        before = sum(weights.values())
        least = sorted(weights.values())[-self._most - 1]
        for item, weight in list(weights.items()):
            if weight > least:
                weights[item] = weight - least
            else:
                del weights[item]
        self.missed += least
        self.taken += before - sum(weights.values())

    @property
    def total(self) -> int:
        """The weight of all items."""
        return self.taken + sum(self.weights.values())


def merged(summaries: Iterable[HeavyHitters[_Item]]) -> HeavyHitters[_Item]:
    """Return the summary of several streams together: what each has missed adds up."""
    together: HeavyHitters[_Item] = HeavyHitters(0)
    for summary in summaries:
        together.missed += summary.missed
        together.taken += summary.taken
        for item, weight in summary.weights.items():
            together.weights[item] = together.weights.get(item, 0) + weight
    return together
