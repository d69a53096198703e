"""`ratekeeper completion`: what a shell needs to complete commands, options and their values."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from ratekeeper.subcommands import add_command

if TYPE_CHECKING:
    from ratekeeper.subcommands import Subcommands

PRINTED, FAILED = 0, 2
SHELLS = ("bash", "zsh", "fish")
_FILES = ("FILE", "OTHER")
_EPILOG = """\
exit status:
  0 printed; 2 what writes it is not installed

examples:
  ratekeeper completion bash > ~/.local/share/bash-completion/completions/ratekeeper
  ratekeeper completion zsh > ~/.zsh/completions/_ratekeeper      # a directory in $fpath
  ratekeeper completion fish > ~/.config/fish/completions/ratekeeper.fish
"""


def add(commands: Subcommands, parser: argparse.ArgumentParser) -> None:
    """Add the command to the command line of this parser."""
    completion = add_command(
        commands,
        "completion",
        "print what a shell needs to complete commands and options",
        description="Print what a shell needs to complete commands, options and their values.",
        epilog=_EPILOG,
    )
    completion.add_argument("shell", choices=SHELLS, help=", ".join(SHELLS[:-1]) + f" or {SHELLS[-1]}")
    completion.set_defaults(run=partial(run, parser))


def run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Print the completion for a shell."""
    try:
        import shtab
    except ImportError:
        print("ratekeeper completion: shtab is missing: pip install 'ratekeeper[completion]'", file=sys.stderr)
        return FAILED
    for action in _all_of(parser):
        if action.metavar in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]  # where shtab looks for it
    print(shtab.complete(parser, shell=options.shell))
    return PRINTED


def _all_of(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Return the options and arguments of all commands."""
    for action in parser._actions:  # noqa: SLF001 - third-party, without a public name
        yield action
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - third-party, without a public name
            for command in action.choices.values():
                yield from _all_of(command)
