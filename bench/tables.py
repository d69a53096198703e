"""Figures as Markdown, in the same form for every suite."""

import math
import statistics
from collections.abc import Iterable, Sequence

from bench.timing import Measurement

NOTHING = "-"


def find(figures: Iterable[Measurement], case: str, algorithm: str, contestant: str) -> Measurement | None:
    """Return the figure with these labels, or None when it was not measured."""
    for figure in figures:
        if (figure.case, figure.algorithm, figure.contestant) == (case, algorithm, contestant):
            return figure
    return None


def ratio(above: Measurement | None, below: Measurement | None) -> float:
    """Return the first figure divided by the second; NaN when one is missing.

    If both were measured in the same rounds, this is the median of the rounds' ratios: a temporary slowdown of the
    machine affects both.
    """
    if not above or not below:
        return math.nan
    if len(above.samples) != len(below.samples):
        return above.median / below.median
    return statistics.median(one / other for one, other in zip(above.samples, below.samples, strict=True))


def number(value: float) -> str:
    """Write a number with three significant digits, without an exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def times(value: float) -> str:
    return NOTHING if math.isnan(value) else f"{number(value)} x"


def spread(figure: Measurement | None) -> str:
    """Write the median, with the minimum and the maximum beside it."""
    if figure is None:
        return NOTHING
    if len(figure.samples) == 1:
        return number(figure.median)
    return f"{number(figure.median)} ({number(min(figure.samples))} to {number(max(figure.samples))})"


def labels(figures: Iterable[Measurement], name: str) -> list[str]:
    """Return the distinct values of one label, in the order in which they were measured."""
    return list(dict.fromkeys(getattr(figure, name) for figure in figures))


def table(header: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Return a Markdown table whose first `left` columns are text and whose other columns are figures."""
    rule = ["---" if column < left else "--:" for column in range(len(header))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rows))


def section(title: str, body: str) -> str:
    """Return a part of a suite's page under its own heading."""
    return f"### {title[0].upper()}{title[1:]}\n\n{body}"


def by_contestant(figures: Sequence[Measurement], case: str) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of one case: a row per contestant, a column per algorithm."""
    chosen = [figure for figure in figures if figure.case == case]
    algorithms = labels(chosen, "algorithm")
    rows = [
        [contestant, *(spread(find(chosen, case, algorithm, contestant)) for algorithm in algorithms)]
        for contestant in labels(figures, "contestant")
        if contestant in labels(chosen, "contestant")
    ]
    return ["", *algorithms], rows
