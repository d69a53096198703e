"""`ratekeeper top`: the keys that a service admits or denies the most, live in a terminal or once."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
import unicodedata
from typing import TYPE_CHECKING, Any

from ratekeeper.subcommands import add_command, add_service, printable, read_token, reader, say, whole_number

if TYPE_CHECKING:
    from ratekeeper.service_client import ServiceClient
    from ratekeeper.subcommands import Subcommands

SHOWN, FAILED = 0, 2
_MOST = 1_000
_REFUSALS, _UNAUTHORIZED = 400, 401  # the lowest status of a refusal; that of a missing token
_PAUSE = 1.0  # seconds from one look to the next
_KINDS = ("denied", "admitted")
_EPILOG = """\
In a terminal, the table is live until Ctrl-C. Otherwise it is printed once. Keys are shown as hashes unless the
service was started with --show-keys. It needs the token of the service, if that has one.

exit status:
  0 shown; 2 the service cannot be asked

examples:
  ratekeeper top
  ratekeeper top --by admitted -n 50 --url https://limits.internal:8080 --token-file /run/secrets/token
  ratekeeper top --url http+unix:/run/ratekeeper.sock > talkers.txt
"""


def add(commands: Subcommands) -> None:
    """Add the command to the command line."""
    summary = "show the keys that a service denies or admits the most"
    parser = add_command(
        commands, "top", summary, description=f"{summary.capitalize()}.", epilog=_EPILOG, settings=["url", "token_file"]
    )
    add_service(parser)
    parser.add_argument(
        "--by", choices=_KINDS, default=_KINDS[0], help="what the keys are ordered by (default: %(default)s)"
    )
    parser.add_argument(
        "-n", type=reader(whole_number(1, _MOST)), default=20, metavar="N", help="keys to show (default: %(default)s)"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Show the table, and return the exit status."""
    from ratekeeper.service_client import NoAnswer, ServiceClient  # here, so that other commands start without it

    try:
        client = ServiceClient(options.url, read_token(options.token_file))
        status, top = _ask(client, options)
    except (NoAnswer, ValueError) as error:
        return _fail(str(error))
    if status >= _REFUSALS:
        return _fail(f"{top.get('detail')}{'; see --token-file' if status == _UNAUTHORIZED else ''}")
    if not sys.stdout.isatty():
        for line in table(top):
            say(line)
        return SHOWN
    screen = Screen()
    try:
        while True:
            screen.draw(table(top) if status < _REFUSALS else [f"{top.get('detail')}; trying again"])
            time.sleep(_PAUSE)
            try:
                status, top = _ask(client, options)
            except NoAnswer as error:
                status, top = _REFUSALS, {"detail": error}
    except KeyboardInterrupt:
        print()  # what the terminal shows for the key is alone on its line
    return SHOWN


def _ask(client: ServiceClient, options: argparse.Namespace) -> tuple[int, Any]:
    return client.ask("GET", "/v1/top", {"by": options.by, "n": options.n})


def _fail(message: object) -> int:
    print(f"ratekeeper top: {printable(str(message))}", file=sys.stderr)
    return FAILED


def table(top: dict[str, Any]) -> list[str]:
    """Return the lines of the table."""
    seconds, cost, keys = top["seconds"], top["cost"], top["keys"]
    if not keys:
        return [f"nothing was {top['by']} in the last {seconds:.0f} s"]
    missed = f"; each may be up to {top['missed']:,} more" if top["missed"] else ""
    hashed = "; keys are hashes, unless the service is started with --show-keys" if top["hashed"] else ""
    rows = [["COST", "SHARE", "POLICY", "RULE", "KEY"]]
    for each in keys:
        numbers = [f"{each['cost']:,}", f"{each['cost'] / cost:.1%}"]
        rows.append([*numbers, *map(printable, (each["policy"] or "-", each["rule"], _key_text(each["key"])))])
    widths = [max(map(width_of, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(_padded(cell, widths[number], is_right=number < 2) for number, cell in enumerate(row)).rstrip()
        for row in rows
    ]
    return [f"{top['by']} in the last {seconds:.0f} s: {cost:,} in all{missed}{hashed}", *lines]


class Screen:
    """The end of what a terminal shows, which is drawn again and again."""

    def __init__(self) -> None:
        self._drawn = 0  # lines

    def draw(self, lines: list[str]) -> None:
        """Draw lines in place of those before, as far as there is room."""
        columns, rows = shutil.get_terminal_size()
        shown = [cut(printable(line), columns - 1) for line in lines[: max(1, rows - 1)]]
        back = f"\x1b[{self._drawn}F" if self._drawn else ""
        encoding = sys.stdout.encoding or "utf-8"
        text = "".join(f"{line}\n" for line in shown).encode(encoding, "backslashreplace").decode(encoding)
        sys.stdout.write(f"{back}\x1b[J{text}")
        sys.stdout.flush()
        self._drawn = len(shown)


def width_of(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    wide = sum(unicodedata.east_asian_width(each) in "WF" for each in text)
    return len(text) + wide - sum(unicodedata.combining(each) > 0 for each in text)


def cut(text: str, width: int) -> str:
    """Return as much of a text as fits."""
    while width_of(text) > width:
        text = text[:-1]
    return text


def _padded(text: str, width: int, *, is_right: bool) -> str:
    blanks = " " * (width - width_of(text))
    return blanks + text if is_right else text + blanks


def _key_text(key: Any) -> str:
    return key if isinstance(key, str) else json.dumps(key, ensure_ascii=False)
