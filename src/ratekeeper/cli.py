"""The command line: `ratekeeper COMMAND ...`. Each command adds its own parser and the function that runs it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from ratekeeper import commands, completion_command, override_commands, policy_commands, top_command
from ratekeeper.command_parser import CommandParser
from ratekeeper.service import serve
from ratekeeper.simulate import command as simulate_command

INTERRUPTED = 130  # as a shell reports a process that SIGINT ended
PIPE_CLOSED = 141  # as a shell reports a process that SIGPIPE ended
UNWRITTEN = 2  # not 1, which means that a hit was denied

COMMANDS = (
    *(commands.add, serve.add, simulate_command.add, policy_commands.add, override_commands.add),
    top_command.add,
)


class ShowVersion(argparse.Action):
    """Looks the version up only when asked, because that takes longer than parsing the arguments."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        """Print the version and exit."""
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"ratekeeper {version('ratekeeper')}")
        except PackageNotFoundError:
            print("ratekeeper (not installed; running from source)")
        parser.exit()


def build_parser() -> CommandParser:
    """Make the parser for all commands."""
    parser = CommandParser(
        prog="ratekeeper",
        description="Exact rate limiting, from the command line.",
        epilog="example:\n  ratekeeper simulate --traffic flood '100/minute' '10/s burst 20'",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=ShowVersion, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for add in COMMANDS:
        add(commands)
    completion_command.add(commands, parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; invalid input gives status 2 and one line on standard error."""
    _open_what_is_closed()
    parser = build_parser()
    try:
        options = parser.parse_args(arguments)
        if not hasattr(options, "run"):
            parser.error("a command is required; run ratekeeper --help for a list")
        status: int = options.run(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _abandon_stdout()
        return PIPE_CLOSED
    except OSError as error:
        _abandon_stdout()
        print(f"ratekeeper: cannot write the output: {error.strerror}", file=sys.stderr)
        return UNWRITTEN
    return status


def _open_what_is_closed() -> None:
    """Replace an output that was closed at the start, as by `>&-`, with the null device."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - for as long as this runs
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123


def _abandon_stdout() -> None:
    """Discard buffered output, so that the interpreter does not try to write it again at exit and fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main())
