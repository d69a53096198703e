"""A simulation as a picture: the lanes of the rules, and what each let through per second. Drawn with matplotlib."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratekeeper import rates
from ratekeeper.errors import RatekeeperError
from ratekeeper.simulate.grid import Grid, fit, round_numbers, seconds_text
from ratekeeper.simulate.run import RuleOutcome, Simulation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".svg", ".png")
_LANE_COLUMNS = 200
_MAX_BINS = 60
# The palette of Okabe and Ito, which color-blind people can tell apart; and nothing is shown by color alone.
_BLUE, _ORANGE = "#0072b2", "#e69f00"
_ADMITTED: dict[str, Any] = {"facecolor": _BLUE, "edgecolor": "white", "linewidth": 0.5}
_DENIED: dict[str, Any] = {"facecolor": "white", "edgecolor": _ORANGE, "linewidth": 0.5, "hatch": "//////"}
_COLORS = ("#d55e00", "#000000", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_MARKERS = ("s", "o", "^", "D", "v", "X", "P", "*")
_DASHES = ("-", "--", "-.", ":")


class PlotUnavailable(RatekeeperError):
    """Matplotlib is not installed."""


def require() -> None:
    """Raise PlotUnavailable unless matplotlib is installed."""
    try:
        import matplotlib.figure  # noqa: F401 - only whether it is there
    except ImportError:
        raise PlotUnavailable("drawing needs matplotlib: pip install 'ratekeeper[plot]'") from None


def save(simulation: Simulation, path: str) -> None:
    """Write the picture to a file, whose ending says whether it is SVG or PNG."""
    import matplotlib as mpl

    # The same simulation gives the same bytes: no date, and no random names inside an SVG. A $ is a $, not mathematics.
    with mpl.rc_context({"svg.hashsalt": "ratekeeper", "text.parse_math": False}):
        metadata = {"Date": None} if Path(path).suffix == ".svg" else None
        figure(simulation).savefig(path, dpi=150, metadata=metadata)


def figure(simulation: Simulation) -> Figure:
    """Draw the lanes of the rules and what each let through per second, in one figure."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    traffic = simulation.traffic
    outcomes = simulation.outcomes
    grid = _grid(simulation)
    heights = [0.8] * len(outcomes) + [2.8]
    picture = Figure(figsize=(11, 1.3 + sum(heights)), layout="constrained")
    *lanes, rate_axes = picture.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    picture.suptitle(traffic.title.capitalize(), x=0.01, ha="left", fontweight="bold")
    keys = [Patch(label="admitted", **_ADMITTED), Patch(label="denied", **_DENIED)]
    picture.legend(handles=keys, loc="outside upper right", ncols=2, frameon=False)
    lanes[0].set_title(traffic.description, loc="left", fontsize="medium")
    highest = max(_draw_lane(axes, outcome, simulation, grid) for outcome, axes in zip(outcomes, lanes, strict=True))
    for axes in lanes:
        axes.set_ylim(-1.1 * highest, 1.1 * highest)
    _draw_rates(rate_axes, simulation, grid)
    rate_axes.set_xlim(_seconds(grid.start_us, grid), _seconds(grid.end_us, grid))
    return picture


def _grid(simulation: Simulation) -> Grid:
    """Divide the time into bars, a round number of them to a window: 20 in 10 s, not 23."""
    window_us = simulation.outcomes[0].window_us
    grid = fit(simulation.traffic.start_us, simulation.end_us, window_us, _LANE_COLUMNS)
    *_, cells = takewhile(lambda number: number <= grid.cells, round_numbers())
    return replace(grid, cells=cells)


def _draw_lane(axes: Axes, outcome: RuleOutcome, simulation: Simulation, grid: Grid) -> int:
    """Draw what was admitted upwards and what was denied downwards, and return the height of the highest bar."""
    traffic = simulation.traffic
    admitted: Counter[int] = Counter()
    denied: Counter[int] = Counter()
    for at_us, cost, departure_us in zip(traffic.at_us, traffic.costs, outcome.departures_us, strict=True):
        if departure_us is None:
            denied[grid.cell(at_us)] -= cost
        else:
            admitted[grid.cell(departure_us)] += cost
    for units, style in ((admitted, _ADMITTED), (denied, _DENIED)):
        left = [_seconds(cell * grid.section_us / grid.cells, grid) for cell in units]
        width = grid.section_us / grid.cells / rates.SECOND_US
        axes.bar(left, list(units.values()), width, align="edge", **style)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.spines[:].set_visible(False)
    axes.tick_params(bottom=False)
    axes.set_yticks([])
    axes.set_ylabel(outcome.name.replace(" ", "\n", 1), rotation=0, ha="right", va="center")
    axes.text(1.01, 0.5, _figures(outcome), transform=axes.transAxes, va="center")
    _draw_boundaries(axes, grid)
    return max(map(abs, (*admitted.values(), *denied.values())), default=1)


def _draw_rates(axes: Axes, simulation: Simulation, grid: Grid) -> None:
    """Draw a line for each rule: the units that passed per second."""
    length_us = grid.end_us - grid.start_us
    bin_us = next(size for size in round_numbers() if length_us <= size * _MAX_BINS)
    bins = range(grid.start_us // bin_us, (grid.end_us - 1) // bin_us + 1)
    middles = [_seconds((number + 0.5) * bin_us, grid) for number in bins]
    for index, outcome in enumerate(simulation.outcomes):
        units: Counter[int] = Counter()
        for departure_us, cost in zip(outcome.departures_us, simulation.traffic.costs, strict=True):
            if departure_us is not None:
                units[departure_us // bin_us] += cost
        color = _COLORS[index % len(_COLORS)]
        axes.plot(
            middles,
            [units[number] * rates.SECOND_US / bin_us for number in bins],
            label=outcome.name,
            color=color,
            linestyle=_DASHES[index % len(_DASHES)],
            drawstyle="steps-mid",
            marker=_MARKERS[index % len(_MARKERS)],
            # Open markers, smaller for each further rule, so that all of them are visible on the same spot.
            markersize=max(3.0, 11 - 1.5 * index),
            markerfacecolor="none",
            markevery=[index for index, number in enumerate(bins) if units[number]],
        )
    axes.set_ylim(bottom=0)
    axes.set_ylabel(f"units passed per second\n(in steps of {seconds_text(bin_us)})")
    axes.set_xlabel(_time_label(grid))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize="small")
    _draw_boundaries(axes, grid)


def _draw_boundaries(axes: Axes, grid: Grid) -> None:
    for at_us in grid.boundaries_us():
        axes.axvline(_seconds(at_us, grid), color="grey", linestyle=":", linewidth=1, zorder=0)


def _seconds(at_us: float, grid: Grid) -> float:
    return (at_us - grid.origin_us) / rates.SECOND_US


def _figures(outcome: RuleOutcome) -> str:
    deviation = outcome.deviation
    lines = [
        f"admitted {outcome.admitted} of {len(outcome.departures_us)}",
        f"peak {outcome.peak.units} in {seconds_text(outcome.window_us)}, limit {outcome.rule.limit}",
        f"error +{deviation.over} -{deviation.under} ({deviation.percent:.3g} %)",
    ]
    if outcome.shaping:
        lines.append(f"longest delay {seconds_text(outcome.shaping.longest_delay_us)}")
    return "\n".join(lines)


def _time_label(grid: Grid) -> str:
    since = f" since {seconds_text(grid.origin_us)} after the epoch" if grid.origin_us else ""
    return f"time in seconds{since}; the dotted lines are window boundaries, every {seconds_text(grid.section_us)}"
