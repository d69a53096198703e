"""How each command of the command line adds its parser."""

from __future__ import annotations

import argparse
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
