"""The live chart: decisions second by second."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from ratekeeper.clock import Clock, stopwatch

SECONDS = 120  # how far back the history goes
KINDS = ("admitted", "denied", "degraded")
ADMITTED, DENIED, DEGRADED, _RING = range(4)
_SLOT = 4  # the number of a second, and the totals when it began
_SLOTS = SECONDS + 8
LENGTH = _RING + _SLOTS * _SLOT
"""How many integers it takes."""
SECOND_NS = 1_000_000_000


class Live:
    """The totals of decisions of each kind, and the latest seconds in which there were any, in a ring.

    They are integers that other workers may read.
    """

    def __init__(self, cells: Any = None, clock: Clock = stopwatch) -> None:
        """It takes the first `LENGTH` of `cells`, and goes on with what they have."""
        self.cells: Any = [0] * LENGTH if cells is None else cells
        """Those at `ADMITTED`, `DENIED` and `DEGRADED` count."""
        self._clock = clock

    def begin(self, now_ns: int) -> None:
        """Note the totals with which a second begins, before anything is counted in it."""
        second = now_ns // SECOND_NS
        at = _RING + second % _SLOTS * _SLOT
        for kind in range(_RING):
            self.cells[at + 1 + kind] = self.cells[kind]
        self.cells[at] = second

    def report(self, others: Sequence[Sequence[int]] = ()) -> dict[str, Any]:
        """Return the totals, and the same counts for each of the latest whole seconds, the newest last.

        `others` are the integers of the other workers.
        """
        now = self._clock() // SECOND_NS
        totals = [0, 0, 0]
        counts = [Counter[int](), Counter[int](), Counter[int]()]  # by second
        for cells in (self.cells, *others):
            ended = [0, *cells[:_RING]]  # read first: what is counted meanwhile belongs to a later second
            slots = sorted(list(cells[at : at + _SLOT]) for at in range(_RING, LENGTH, _SLOT))
            for begun, next_begun in pairwise([*slots, ended]):
                for kind in range(_RING):
                    counts[kind][begun[0]] += next_begun[kind + 1] - begun[kind + 1]
            totals = [total + own for total, own in zip(totals, ended[1:], strict=True)]
        seconds = range(now - SECONDS, now)
        return {
            **dict(zip(KINDS, totals, strict=True)),
            "seconds": [{kind: counts[number][second] for number, kind in enumerate(KINDS)} for second in seconds],
        }
