"""The figures of a simulation as a table, and what they mean in plain sentences."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from ratekeeper.simulate.grid import seconds_text
from ratekeeper.simulate.run import RuleOutcome, Simulation

_HEADINGS = ("rule", "offered", "admitted", "denied", "peak", "error")
_PEAK_NOTE = (
    "peak: the most units that passed in any one window, out of the rule's limit. A bucket's window is the time that "
    "it takes to refill."
)
_ERROR_NOTE = (
    "error: decisions that the exact sliding log would have made differently: + admitted although the last window was "
    "full, - denied although it had room; and their share of all decisions."
)


def table(simulation: Simulation, width: int) -> Iterator[str]:
    """Return the lines of the table; where it is too wide, parameters and error go to a second line for each rule."""
    rows = [_HEADINGS, *(_figures(outcome, simulation) for outcome in simulation.outcomes)]
    lines = _aligned(rows)
    if len(lines[0]) <= width:
        yield from lines
        return
    names = [row[0].partition(" ") for row in rows]
    firsts = _aligned([(name, *row[1:-1]) for (name, _, _), row in zip(names, rows, strict=True)])
    for first, (_, _, parameters), row in zip(firsts, names, rows, strict=True):
        second = f"  {parameters}"
        yield first
        yield second + row[-1].rjust(len(first) - len(second))


def notes(simulation: Simulation, width: int) -> Iterator[str]:
    """Say what the figures mean, and how shaped requests departed."""
    shaped = (_shaping_note(outcome) for outcome in simulation.outcomes if outcome.shaping)
    for note in (_PEAK_NOTE, _ERROR_NOTE, *shaped):
        yield from textwrap.wrap(note, width, subsequent_indent="  ")


def _figures(outcome: RuleOutcome, simulation: Simulation) -> tuple[str, ...]:
    offered = len(simulation.traffic.at_us)
    deviation = outcome.deviation
    return (
        outcome.name,
        f"{offered}",
        f"{outcome.admitted}",
        f"{offered - outcome.admitted}",
        f"{outcome.peak.units} of {outcome.rule.limit}",
        f"+{deviation.over} -{deviation.under} {deviation.percent:.3g} %",
    )


def _shaping_note(outcome: RuleOutcome) -> str:
    shaping = outcome.shaping
    if shaping is None or shaping.closest_us is None:
        return f"{outcome.name}: fewer than two requests departed."
    return (
        f"{outcome.name}: shown as they depart, at least {seconds_text(shaping.closest_us)} apart; "
        f"the longest delay is {seconds_text(shaping.longest_delay_us)}."
    )


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    name_width, *widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *figures in rows:
        cells = (figure.rjust(width) for figure, width in zip(figures, widths, strict=True))
        lines.append(" ".join((name.ljust(name_width), *cells)))
    return lines
