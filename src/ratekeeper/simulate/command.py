"""`ratekeeper simulate`: read the options, simulate, and print or draw the result."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from ratekeeper import rates
from ratekeeper.algorithms import Rule, all_of
from ratekeeper.errors import InvalidRule
from ratekeeper.rules import parse
from ratekeeper.simulate import plot
from ratekeeper.simulate.chart import NARROWEST, Chart, glyphs_for
from ratekeeper.simulate.options import DEFAULT_TRAFFIC, DESCRIPTION, EXAMPLES, WIDEST, add_arguments
from ratekeeper.simulate.progress import Progress
from ratekeeper.simulate.run import Simulation, simulate
from ratekeeper.simulate.traffic import InvalidTraffic, Traffic, generate, read
from ratekeeper.subcommands import add_command

if TYPE_CHECKING:
    from ratekeeper.subcommands import Subcommands

_LOOK_AT = (
    "Compare both sides of a boundary: the fixed window admits both bursts, twice its limit within a second, while the "
    "exact log denies the second one. The counter comes close to the log but stores only two counts; the buckets allow "
    "one burst, and the shaping one spreads it out to one request per second."
)
_MADE_UP_ONLY = ("rate", "duration", "seed")


def add(commands: Subcommands) -> None:
    """Add the command to the command line."""
    summary = "show what rules do with traffic, in simulated time"
    parser = add_command(commands, "simulate", summary, description=DESCRIPTION, epilog=EXAMPLES)
    add_arguments(parser)
    parser.set_defaults(run=partial(run, parser))


def run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Simulate as the options say and return the exit status; the parser reports invalid options."""
    if options.plot:
        try:
            plot.require()
        except plot.PlotUnavailable as error:
            parser.error(f"argument --plot: {error}")
    try:
        given = [rule for text in options.rules for rule in parse(text)]
        rules = {rule.text: rule for rule in given or all_of(10, 10 * rates.SECOND_US)}
        traffic = _traffic(parser, options, next(iter(rules.values())))
        with Progress(len(rules) * len(traffic.at_us), sys.stderr) as progress:
            simulation = simulate(traffic, rules, progress)
    except InvalidRule as error:
        parser.error(f"argument RULE: {error}")
    if options.plot:
        _save_plot(parser, simulation, options.plot)
    text = json.dumps(simulation.to_json()) if options.json else _text(simulation, options)
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    return 0


def _traffic(parser: argparse.ArgumentParser, options: argparse.Namespace, target: Rule) -> Traffic:
    try:
        if options.file is None:
            return generate(
                options.traffic or DEFAULT_TRAFFIC,
                target,
                rate=options.rate,
                duration=options.duration,
                seed=options.seed or 0,
                cost=options.cost,
            )
        for name in _MADE_UP_ONLY:
            if getattr(options, name) is not None:
                parser.error(f"argument --{name}: not allowed with argument --file")
        return read(options.file, cost=options.cost)
    except InvalidTraffic as error:
        parser.error(f"argument {'--file' if options.file is not None else '--traffic'}: {error}")


def _save_plot(parser: argparse.ArgumentParser, simulation: Simulation, path: str) -> None:
    try:
        plot.save(simulation, path)
    except OSError as error:
        parser.error(f"argument --plot: cannot write {rates.show(path)}: {error.strerror}")


def _text(simulation: Simulation, options: argparse.Namespace) -> str:
    width = options.width or min(max(NARROWEST, shutil.get_terminal_size().columns), WIDEST)
    color = not options.no_color and sys.stdout.isatty() and wants_color(os.environ)
    traffic = simulation.traffic
    paragraphs = [f"{traffic.title}: {traffic.description}"]
    if traffic.name == DEFAULT_TRAFFIC and not (options.rules or options.rate or options.cost > 1):
        paragraphs.append(_LOOK_AT)
    if options.plot:
        paragraphs.append(f"Plot saved to {rates.show(options.plot)}.")
    chart = Chart(width, glyphs_for(sys.stdout.encoding), color=color)
    return "\n\n".join((*(textwrap.fill(paragraph, width) for paragraph in paragraphs), chart.render(simulation)))


def wants_color(environment: Mapping[str, str]) -> bool:
    """Tell whether the environment allows colors: https://no-color.org."""
    return not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"
