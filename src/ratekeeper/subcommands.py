"""What the commands share: how each adds its parser, and how numbers are read."""

from __future__ import annotations

import argparse
import re
import sys
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    Subcommands = argparse._SubParsersAction[Any]  # noqa: SLF001 - third-party, without a public name


def add_command(
    commands: Subcommands, name: str, summary: str, *, description: str, epilog: str
) -> argparse.ArgumentParser:
    """Add a command with its help texts, which keep their line breaks, and return its parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    return parser


def quantity(text: str) -> Fraction | str:
    """Read a plain decimal number, exactly; leave other texts, such as '200/minute' or '5m', as they are."""
    return Fraction(text) if re.fullmatch(r"[0-9]{1,15}(\.[0-9]{1,15})?", text) else text


def say(text: str) -> None:
    """Print one line; characters that are unprintable, or that the output cannot encode, are escaped."""
    encoding = sys.stdout.encoding or "utf-8"
    printable = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
    print(printable.encode(encoding, "backslashreplace").decode(encoding))
