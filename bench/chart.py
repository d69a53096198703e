"""A bar chart in SVG for light and dark pages: a group per algorithm, a panel per case."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.contestants import OURS
from bench.peers import GCRA
from bench.tables import find, labels, number
from bench.timing import Measurement

INK = "#57606a"
COLOURS = {
    OURS: "#1a7f64",
    "limits": "#6f8fb8",
    "throttled-py": "#c28a4a",
    GCRA: "#d8b483",
    "pyrate-limiter": "#a383b8",
}
# The text must be readable on a dark page too; the bars keep their colors on both.
DARK = "<style>@media (prefers-color-scheme: dark) { text { fill: #c9d1d9 !important } }</style>"
STYLE = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "ratekeeper",  # the same figures give the same file
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
GAP = 0.8  # between two groups, in bars


def draw(
    figures: Sequence[Measurement], cases: Sequence[str], algorithms: Sequence[str], title: str, path: Path
) -> None:
    """Draw the medians of these cases side by side, in microseconds."""
    with rc_context(STYLE):
        drawing = Figure(figsize=(5.2 * len(cases), 7.2))
        panels = drawing.subplots(1, len(cases), sharey=True, squeeze=False)[0]
        for panel, what in zip(panels, cases, strict=True):
            _bars(panel, figures, what, algorithms)
        drawing.suptitle(title, x=0.01, y=0.985, ha="left", fontsize=12, fontweight="bold")
        _legend(drawing, panels[0])
        drawing.tight_layout(rect=(0, 0, 1, 0.96))
        path.parent.mkdir(parents=True, exist_ok=True)
        drawing.savefig(path, transparent=True, metadata={"Date": None, "Title": title})
    path.write_text(path.read_text().replace("<defs>", f"{DARK}\n <defs>", 1))


def _bars(panel: Axes, figures: Sequence[Measurement], what: str, algorithms: Sequence[str]) -> None:
    position = 0.0
    centres = []
    for algorithm in algorithms:
        top = position
        for contestant in labels(figures, "contestant"):
            figure = find(figures, what, algorithm, contestant)
            if figure and contestant in COLOURS:
                _bar(panel, position, contestant, figure.median)
                position += 1
        centres.append((top + position - 1) / 2)
        position += GAP
    panel.set_yticks(centres, algorithms)
    panel.set_ylim(position - GAP, -1)
    panel.set_title(what, loc="left", fontsize=10)
    panel.set_xlabel("microseconds for one decision (less is better)")
    panel.margins(x=0.12)
    panel.tick_params(left=False)
    for side in ("top", "right", "left"):
        panel.spines[side].set_visible(False)
    panel.spines["bottom"].set_color(INK)


def _bar(panel: Axes, position: float, contestant: str, value: float) -> None:
    _, named = panel.get_legend_handles_labels()
    panel.barh(position, value, color=COLOURS[contestant], label=None if contestant in named else contestant)
    weight = "bold" if contestant == OURS else "normal"
    beside = {"xytext": (3, 0), "textcoords": "offset points", "va": "center"}
    panel.annotate(number(value), (value, position), weight=weight, **beside)


def _legend(drawing: Figure, panel: Axes) -> None:
    handles, names = panel.get_legend_handles_labels()
    bars = dict(zip(names, handles, strict=True))
    shown = [name for name in COLOURS if name in bars]
    place = {"loc": "upper left", "bbox_to_anchor": (0, 0.965), "ncols": len(shown)}
    drawing.legend([bars[name] for name in shown], shown, frameon=False, **place)
