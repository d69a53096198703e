"""The command-line options of `ratekeeper simulate`."""

from __future__ import annotations

import argparse
from fractions import Fraction
from pathlib import Path

from ratekeeper import rates
from ratekeeper.simulate.chart import NARROWEST
from ratekeeper.simulate.patterns import PATTERNS
from ratekeeper.simulate.plot import FORMATS
from ratekeeper.subcommands import quantity, reader, whole_number

DEFAULT_TRAFFIC = "boundary"
WIDEST = 1_000
DESCRIPTION = """\
Run traffic through rules in simulated time, and show what each rule admits and denies over time, the
most that passed in any one window, and the difference from an exact sliding log of the same limit."""
EXAMPLES = """\
examples:
  ratekeeper simulate
  ratekeeper simulate --traffic flood --plot flood.svg
  ratekeeper simulate --traffic poisson --rate 3 --duration 2m --seed 7 '100/minute' '10/6s burst 20'
  ratekeeper simulate --file times.txt 'sliding-window-log 100/minute' --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    add = parser.add_argument
    add(
        "rules",
        nargs="*",
        metavar="RULE",
        help="a rule such as '100/minute', '10/s burst 20' or 'fixed-window 10/10s'; the traffic targets the first one "
        "(default: all algorithms with 10 in 10 s)",
    )
    source = parser.add_mutually_exclusive_group()
    kinds = "; ".join(f"{name}: {pattern.description}" for name, pattern in PATTERNS.items())
    source.add_argument("--traffic", choices=PATTERNS, metavar="NAME", help=f"{kinds} (default: {DEFAULT_TRAFFIC})")
    source.add_argument(
        "--file",
        metavar="FILE",
        help="read traffic from a file: on each line a time in seconds and optionally a cost (default: --cost); "
        "blank lines and # comments are skipped",
    )
    add(
        "--rate",
        type=reader(_rate),
        help="request rate, such as '3' (per second) or '200/minute' (default: the rate that the first rule sustains "
        "for boundary, twice that for steady, burst and poisson, ten times that for flood)",
    )
    add("--duration", type=reader(_duration), help="duration, such as '30' (seconds) or '5m' (default: 4 windows)")
    add(
        "--seed",
        type=reader(whole_number(0, 2**64)),
        help="seed of poisson traffic; the same seed gives the same requests (default: 0)",
    )
    add("--cost", type=reader(whole_number(1, rates.MAX_LIMIT)), default=1, help="cost of each request (default: 1)")
    add("--plot", type=reader(_plot_path), metavar="FILE", help="also draw the result to a .svg or .png file")
    add("--json", action="store_true", help="print the result as JSON instead")
    add(
        "--no-color", action="store_true", help="disable colors (also disabled without a terminal or with NO_COLOR set)"
    )
    add(
        "--width",
        type=reader(whole_number(NARROWEST, WIDEST)),
        help=f"width in columns, at least {NARROWEST} (default: that of the terminal)",
    )


def _rate(text: str) -> Fraction:
    try:
        return rates.rate(quantity(text))
    except ValueError:
        raise ValueError(f"must be above 0, such as '3' (per second) or '200/minute', not {rates.show(text)}") from None


def _duration(text: str) -> Fraction:
    try:
        return Fraction(rates.window_us(quantity(text)), rates.SECOND_US)
    except ValueError:
        accepted = "above 0 and at most 407 days, in whole microseconds, such as '30' (seconds) or '5m'"
        raise ValueError(f"must be {accepted}, not {rates.show(text)}") from None


def _plot_path(text: str) -> str:
    if Path(text).suffix not in FORMATS:
        raise ValueError(f"must be a file name that ends in {' or '.join(FORMATS)}, not {rates.show(text)}")
    return text
