"""What the commands share: how each adds its parser, and how numbers and tokens are read."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ratekeeper import rates
from ratekeeper.errors import InvalidRule

_Value = TypeVar("_Value")
if TYPE_CHECKING:
    from ratekeeper.command_parser import CommandParser

    Subcommands = argparse._SubParsersAction[Any]  # noqa: SLF001 - third-party, without a public name


def add_command(
    commands: Subcommands,
    name: str,
    summary: str,
    *,
    description: str,
    epilog: str,
    settings: Collection[str] | None = (),
) -> CommandParser:
    """Add a command with its help texts, which keep their line breaks, and return its parser.

    Options that are `settings` may also be given by the environment; None means all options.
    """
    parser: CommandParser = commands.add_parser(
        name,
        help=summary,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.settings = settings
    return parser


def reader(read: Callable[[str], _Value]) -> Callable[[str], _Value]:
    """Convert ValueError to the error of argparse, which shows the message only of its own kind."""

    def read_argument(text: str) -> _Value:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read_argument


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """Return what reads a whole number in a range."""

    def read(text: str) -> int:
        number = int(text) if re.fullmatch(r"[0-9]{1,20}", text) else -1
        if not least <= number <= most:
            raise ValueError(f"must be a whole number from {least} to {most}, not {rates.show(text)}")
        return number

    return read


def seconds(text: str) -> float:
    """Read a number of seconds."""
    try:
        read = float(text)
    except ValueError:
        read = 0.0
    if not 0 < read < float("inf"):
        raise ValueError(f"must be a number of seconds above 0, not {rates.show(text)}")
    return read


def attributes_of(words: Iterable[str]) -> dict[str, str]:
    """Read attributes that are written as NAME=VALUE."""
    attributes = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise InvalidRule(f"write an attribute as NAME=VALUE, not {rates.show(word)}")
        attributes[name] = value
    return attributes


def quantity(text: str) -> Fraction | str:
    """Read a plain decimal number, exactly; leave other texts, such as '200/minute' or '5m', as they are."""
    return Fraction(text) if re.fullmatch(r"[0-9]{1,15}(\.[0-9]{1,15})?", text) else text


def read_token(path: Path | None, variable: str = "RATEKEEPER_TOKEN") -> str | None:
    """Return a token from a file or the environment, if there is one."""
    try:
        given = os.environ.get(variable) if path is None else path.read_text("utf-8")
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    if given is None:
        return None
    token = given.strip()
    if not token:
        raise ValueError("the token is empty")
    return token


def add_service(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which running service to ask."""
    parser.add_argument(
        "--url",
        default="http://localhost:8080",
        help="URL of the service, or http+unix:FILE for a Unix socket (default: %(default)s)",
    )
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE", help="file that contains the token (default: RATEKEEPER_TOKEN)"
    )


def printable(text: str) -> str:
    """Return a text as one line that does nothing to a terminal: other characters are escaped."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def say(text: str) -> None:
    """Print one line; characters that are unprintable, or that the output cannot encode, are escaped."""
    encoding = sys.stdout.encoding or "utf-8"
    print(printable(text).encode(encoding, "backslashreplace").decode(encoding))
