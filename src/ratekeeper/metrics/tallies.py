"""Tallies: the counts of one writer, a thread or a worker of the service. So counting needs no lock, and loses nothing.

Each writer counts in its own tally, and a figure is the sum over all of them. A tally outlives its writer: the next one
goes on counting where the last one stopped.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Iterable, Iterator, MutableSequence

from ratekeeper import forks
from ratekeeper.metrics.families import BY_NAME, FAMILIES, MORE, Family, Labels, Sample

MAX_SERIES = 20_000  # of one tally
_WIDEST = max(family.width for family in FAMILIES)
_ORDER = {family.name: number for number, family in enumerate(FAMILIES)}
_log = logging.getLogger("ratekeeper")


class Tally:
    """The counts of one writer: `tally.cells[tally.at(FAMILY, labels)] += 1` counts."""

    def __init__(self, most: int) -> None:
        self.cells: MutableSequence[int] = []
        self._most = most
        self._at: dict[tuple[str, Labels], int] = {}  # by the names of families, whose hashes are known
        self._numbers = itertools.count()
        self._is_full = False

    def at(self, family: Family, labels: Labels = ()) -> int:
        """Return where the integers of a series begin; beyond the most series, one stands for all others."""
        known = self._at.get((family.name, labels))
        if known is not None:
            return known
        if len(self._at) >= self._most and labels != (more := (MORE,) * len(labels)):
            if not self._is_full:
                self._is_full = True
                _log.warning("metrics: there are %d series; further ones are counted as %r", self._most, MORE)
            return self.at(family, more)
        return self._at.setdefault((family.name, labels), self._make(family, labels))

    def samples(self) -> Iterator[Sample]:
        """Yield the values of each series now."""
        for (name, labels), at in list(self._at.items()):
            family = BY_NAME[name]
            yield Sample(family, labels, list(self.cells[at : at + family.width]))

    def _make(self, family: Family, labels: Labels) -> int:  # noqa: ARG002 - a tally in a file writes them down
        at = next(self._numbers) * _WIDEST  # one step: a signal handler may count in the middle of this
        while len(self.cells) < at + family.width:
            self.cells.append(0)
        return at


def summed(samples: Iterable[Sample]) -> list[Sample]:
    """Return one sample for each series, with the sums."""
    sums: dict[tuple[Family, Labels], list[int]] = {}
    for family, labels, values in samples:
        known = sums.setdefault((family, labels), values)
        if known is not values:
            sums[family, labels] = [one + other for one, other in zip(known, values, strict=True)]
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
