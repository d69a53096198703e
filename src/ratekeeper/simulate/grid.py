"""A time axis of a given number of columns, in which a window boundary has a column of its own.

So a boundary can be drawn between what came just before it and what came just after it, and no cell holds both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count

from ratekeeper import rates

_FEWEST_CELLS = 6  # between two boundaries; where windows are too many for that, not every boundary is marked
_ROUND_CELLS = 5
_FAR_US = 10**9 * rates.SECOND_US  # such times are counted from the epoch


@dataclass(frozen=True, slots=True)
class Grid:
    """Columns over [start_us, end_us): each `section_us` (one or more windows) has `cells` cells and a boundary."""

    start_us: int
    end_us: int
    section_us: int
    cells: int

    @property
    def columns(self) -> int:
        return self.column(self.end_us - 1) + 1

    def cell(self, at_us: int) -> int:
        """Return the number of the cell that this moment is in, counted from time 0."""
        return at_us * self.cells // self.section_us

    def column(self, at_us: int) -> int:
        """Return the column of the cell that this moment is in."""
        cells = self.cell(at_us) - self.cell(self.start_us)
        return cells + at_us // self.section_us - self.start_us // self.section_us

    @property
    def origin_us(self) -> int:
        """The time that is shown as 0: the epoch if it is near, otherwise the last boundary before the start."""
        return 0 if self.start_us < _FAR_US else self.start_us - self.start_us % self.section_us

    def boundaries_us(self) -> range:
        """Return the boundaries that have a column: the one before the column of their own moment."""
        first = self.start_us - self.start_us % self.section_us + self.section_us
        return range(first, self.end_us, self.section_us)

    def totals(self, moments_us: Iterable[int | None], units: Iterable[int]) -> list[int]:
        """Add up units by column; entries without a time are left out."""
        totals = [0] * self.columns
        for at_us, some in zip(moments_us, units, strict=True):
            if at_us is not None:
                totals[self.column(at_us)] += some
        return totals


def fit(start_us: int, end_us: int, window_us: int, columns: int) -> Grid:
    """Make a grid of at most so many columns, with a mark at every window boundary or, if they are many, at some."""
    length_us = end_us - start_us
    section_us = next(
        windows * window_us
        for windows in round_numbers()
        if length_us * (_FEWEST_CELLS + 1) <= windows * window_us * (columns - 2)
    )
    boundaries = length_us // section_us + 1
    cells = min((columns - boundaries - 1) * section_us // length_us, section_us)
    if cells > _ROUND_CELLS:  # so that what comes evenly looks even
        cells -= cells % _ROUND_CELLS
    return Grid(start_us, end_us, section_us, cells)


def round_numbers() -> Iterator[int]:
    """Return 1, 2, 5, 10, 20, 50 and so on."""
    return (factor * 10**exponent for exponent in count() for factor in (1, 2, 5))


def seconds_text(microseconds: int) -> str:
    """Write a time for people: "10 s", "0.25 s"."""
    return f"{rates.seconds(microseconds)} s"
