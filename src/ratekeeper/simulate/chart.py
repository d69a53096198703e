"""A simulation in the terminal: a lane for each rule over time, and a table of the figures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ratekeeper.simulate.grid import Grid, fit, seconds_text
from ratekeeper.simulate.run import RuleOutcome, Simulation
from ratekeeper.simulate.table import notes, table
from ratekeeper.simulate.traffic import Traffic

NARROWEST = 60
_LABEL_WIDTH = 23
_OFFERED, _ADMITTED, _DENIED, _QUIET = "", "94", "33", "2"  # as it is, bright blue, yellow, dim: ANSI


@dataclass(frozen=True, slots=True)
class Glyphs:
    """What lanes are drawn with: characters for ever more admitted or denied in a cell, and the window boundary."""

    admitted: str
    denied: str
    boundary: str
    ellipsis: str


BLOCKS = Glyphs("▁▂▃▄▅▆▇█", "░▒▓", "┊", "…")
ASCII = Glyphs(".:oO#", "-xX", "|", "~")


def glyphs_for(encoding: str | None) -> Glyphs:
    """Choose blocks where the output's encoding has them, and plain ASCII elsewhere."""
    try:
        f"{BLOCKS.admitted}{BLOCKS.denied}{BLOCKS.boundary}{BLOCKS.ellipsis}".encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BLOCKS


@dataclass(frozen=True, slots=True)
class Chart:
    """How to show simulations: how wide, with which characters, and whether in color."""

    width: int = 80
    glyphs: Glyphs = BLOCKS
    color: bool = False

    def render(self, simulation: Simulation) -> str:
        """Return the lanes and the table as lines of text."""
        lines = (
            *self._lanes(simulation),
            "",
            *table(simulation, self.width),
            "",
            *notes(simulation, self.width),
        )
        return "\n".join(lines)

    def _lanes(self, simulation: Simulation) -> Iterator[str]:
        traffic = simulation.traffic
        window_us = simulation.outcomes[0].window_us
        grid = fit(traffic.start_us, simulation.end_us, window_us, self.width - _LABEL_WIDTH)
        offered = grid.totals(traffic.at_us, traffic.costs)
        passed = [grid.totals(outcome.departures_us, traffic.costs) for outcome in simulation.outcomes]
        most = max(max(lane) for lane in (offered, *passed))
        yield from self._legend(grid, window_us)
        yield self._ruler(grid)
        yield self._row("offered", self._bars(offered, most, self.glyphs.admitted, grid), _OFFERED)
        for outcome, admitted in zip(simulation.outcomes, passed, strict=True):
            name, _, parameters = outcome.name.partition(" ")
            denied = grid.totals(_denied_us(outcome, traffic), traffic.costs)
            yield self._row(name, self._bars(admitted, most, self.glyphs.admitted, grid), _ADMITTED)
            yield self._row(f"  {parameters}", self._bars(denied, most, self.glyphs.denied, grid), _DENIED)

    def _legend(self, grid: Grid, window_us: int) -> Iterator[str]:
        windows = grid.section_us // window_us
        every = f"every {seconds_text(window_us)}" if windows == 1 else f"1 of {windows} shown"
        parts = [
            self._paint(f"{self.glyphs.admitted[-1]} admitted", _ADMITTED),
            self._paint(f"{self.glyphs.denied[1]} denied", _DENIED),
            self._paint(f"{self.glyphs.boundary} window boundary, {every}", _QUIET),
        ]
        yield "  ".join(parts)
        if grid.origin_us:
            yield f"0 s is {seconds_text(grid.origin_us)} after the epoch"

    def _ruler(self, grid: Grid) -> str:
        """Write the time of each boundary above its column, as far as there is room."""
        ruler = ""
        marks = [(0, grid.start_us), *((grid.column(at_us) - 1, at_us) for at_us in grid.boundaries_us())]
        for column, at_us in marks:
            label = seconds_text(at_us - grid.origin_us)
            if (not ruler or column > len(ruler)) and column + len(label) <= self.width - _LABEL_WIDTH:
                ruler = ruler.ljust(column) + label
        return self._paint(" " * _LABEL_WIDTH + ruler, _QUIET)

    def _bars(self, totals: list[int], most: int, levels: str, grid: Grid) -> str:
        """Draw a cell for each total, the higher the more, and the boundaries between them."""
        cells = [levels[-(-units * len(levels) // most) - 1] if units else " " for units in totals]
        for at_us in grid.boundaries_us():
            cells[grid.column(at_us) - 1] = self.glyphs.boundary
        return "".join(cells)

    def _row(self, label: str, bars: str, color: str) -> str:
        room = _LABEL_WIDTH - 1
        label = label if len(label) <= room else label[: room - 1] + self.glyphs.ellipsis
        boundary = self._paint(self.glyphs.boundary, _QUIET)
        return (
            label.ljust(_LABEL_WIDTH)
            + boundary.join(self._paint(part, color) for part in bars.split(self.glyphs.boundary))
        ).rstrip()

    def _paint(self, text: str, color: str) -> str:
        return f"\x1b[{color}m{text}\x1b[0m" if self.color and color and text.strip() else text


def _denied_us(outcome: RuleOutcome, traffic: Traffic) -> Iterator[int | None]:
    for at_us, departure_us in zip(traffic.at_us, outcome.departures_us, strict=True):
        yield at_us if departure_us is None else None
