"""Tallies: the counts of one writer, a thread or a worker of the service. So counting needs no lock, and loses nothing.

Each writer counts in its own tally, and a figure is the sum over all of them. A tally outlives its writer: the next one
goes on counting where the last one stopped.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from operator import add
from typing import Any

from ratekeeper import forks
from ratekeeper.metrics.families import BY_NAME, FAMILIES, MORE, Family, Labels, Sample

MAX_SERIES = 20_000  # of one tally
WIDEST = max(family.width for family in FAMILIES)
"""How many integers each series has room for."""
_ORDER = {family.name: number for number, family in enumerate(FAMILIES)}
_log = logging.getLogger("ratekeeper")


class Tally:
    """The counts of one writer: `tally.cells[tally.at(FAMILY, labels)] += 1` counts."""

    def __init__(self, most: int) -> None:
        self.cells: Any = []  # of a tally in a file, a view of it
        self.places: dict[tuple[str, Labels], int] = {}
        """Where the integers of each series begin, by the name of its family and its labels."""
        self._most = most
        self._numbers = itertools.count()
        self._is_full = False

    def at(self, family: Family, labels: Labels = ()) -> int:
        """Return where the integers of a series begin; beyond the most series, one stands for all others."""
        known = self.places.get((family.name, labels))
        if known is not None:
            return known
        if len(self.places) >= self._most and labels != (more := (MORE,) * len(labels)):
            if not self._is_full:
                self._is_full = True
                _log.warning("metrics: there are %d series; further ones are counted as %r", self._most, MORE)
            return self.at(family, more)
        return self.places.setdefault((family.name, labels), self.make_room(family, labels))

    def samples(self) -> Iterator[Sample]:
        """Yield the values of each series now."""
        for (name, labels), at in list(self.places.items()):
            family = BY_NAME[name]
            yield Sample(family, labels, list(self.cells[at : at + family.width]))

    def make_room(self, family: Family, labels: Labels) -> int:  # noqa: ARG002 - a tally in a file writes them down
        """Return where the integers of a new series begin."""
        at = next(self._numbers) * WIDEST  # one step: a signal handler may count in the middle of this
        while len(self.cells) < at + family.width:
            self.cells.append(0)
        return at


def summed(samples: Iterable[Sample]) -> list[Sample]:
    """Return one sample for each series, with what its family shows for several writers."""
    sums: dict[tuple[Family, Labels], list[int]] = {}
    for family, labels, values in samples:
        known = sums.setdefault((family, labels), values)
        if known is not values:
            fold = min if family.shows_least else add
            sums[family, labels] = list(map(fold, known, values))
    return [Sample(family, labels, values) for (family, labels), values in sums.items()]


def in_order(samples: Iterable[Sample]) -> list[Sample]:
    """Return samples in the order of families and labels."""
    return sorted(samples, key=lambda sample: (_ORDER[sample.family.name], sample.labels))


class ThreadTallies:
    """The tallies of the threads of this process; a thread that ends leaves its tally to the next one."""

    def __init__(self) -> None:
        self.after_fork()
        forks.renew_in_child(self)

    def after_fork(self) -> None:
        """Begin with nothing: it is the parent that goes on with its counts."""
        self._all: deque[Tally] = deque()
        self._free: deque[Tally] = deque()
        self._local = threading.local()

    def mine(self) -> Tally:
        """Return the tally of this thread."""
        try:
            tally: Tally = self._local.held.tally
        except AttributeError:
            held = self._local.held = _Held(self._take(), self._free)
            return held.tally
        return tally

    def samples(self) -> Iterator[Sample]:
        """Yield the values of each series of each tally now."""
        for tally in list(self._all):
            yield from tally.samples()

    def _take(self) -> Tally:
        try:
            return self._free.popleft()
        except IndexError:
            made = Tally(MAX_SERIES)
            self._all.append(made)
            return made


class _Held:
    """A thread's hold on its tally; it is garbage-collected when the thread ends."""

    __slots__ = ("_free", "tally")

    def __init__(self, tally: Tally, free: deque[Tally]) -> None:
        self.tally = tally
        self._free = free

    def __del__(self) -> None:
        self._free.append(self.tally)
