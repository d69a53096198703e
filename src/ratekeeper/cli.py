"""The command line: `ratekeeper COMMAND ...`. Each command adds its own parser, and a function that runs it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from ratekeeper import operate
from ratekeeper.service import serve
from ratekeeper.simulate import command as simulate_command

BAD_INPUT = 2
INTERRUPTED = 130  # as a shell reports a process that SIGINT ended
PIPE_CLOSED = 141  # as a shell reports a process that SIGPIPE ended
UNWRITTEN = 2  # not 1, by which a hit says that it was denied

COMMANDS = (operate.add, serve.add, simulate_command.add)


class Parser(argparse.ArgumentParser):
    """A parser that says in one line what is wrong."""

    def error(self, message: str) -> NoReturn:
        """End with one line on stderr and the status for bad input."""
        self.exit(BAD_INPUT, f"{self.prog}: {' '.join(message.split())}\n")


class ShowVersion(argparse.Action):
    """Looks the version up only when it is asked for: that takes longer than reading all arguments."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        """Print the version and end."""
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"ratekeeper {version('ratekeeper')}")
        except PackageNotFoundError:
            print("ratekeeper, not installed: run from its source")
        parser.exit()


def build_parser() -> Parser:
    """Make the parser of all commands."""
    parser = Parser(
        prog="ratekeeper",
        description="Exact rate limiting, from the command line.",
        epilog="example:\n  ratekeeper simulate --traffic flood '100/minute' '10/s burst 20'",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=ShowVersion, nargs=0, help="show the version and end")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for add in COMMANDS:
        add(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and give its exit status; bad input ends with status 2 and one line on stderr."""
    _open_what_is_closed()
    parser = build_parser()
    try:
        options = parser.parse_args(arguments)
        if not hasattr(options, "run"):
            parser.error("a command is needed; ratekeeper --help lists them")
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
    """Let a program that was started without an output, as by `>&-`, write nowhere."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - for as long as this runs
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123


def _abandon_stdout() -> None:
    """Send what is still buffered nowhere, so that the interpreter does not try again, and fail, when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main())
