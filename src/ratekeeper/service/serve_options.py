"""The options of `ratekeeper serve`."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from ratekeeper.rates import show
from ratekeeper.service import DEADLINE
from ratekeeper.subcommands import reader, seconds, whole_number

MAX_WORKERS = 256
SUMMARY = "run the HTTP service, with a page that shows the algorithms at work"
EPILOG = """\
The token is read from --token-file or from the environment variable RATEKEEPER_TOKEN. It is required unless --host
is a loopback address. Clients that do not send it can hit and peek, but not change or see anything else.

examples:
  ratekeeper serve --store redis://localhost:6379/0
  curl http://localhost:8080/v1/hit --json '{"key": "ada", "rule": "10/minute"}'
  RATEKEEPER_STORE=redis://:secret@cache:6379 ratekeeper serve --workers 2
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--port", type=reader(whole_number(1, 65_535)), default=8080, help="port to listen on (default: %(default)s)")
    add(
        "--store",
        metavar="URL",
        help="URL of the store, such as redis://localhost:6379/0 or sqlite:///path/to/limits.db "
        "(default: in memory; with several workers, in a temporary file)",
    )
    add(
        "--unix-socket",
        type=Path,
        metavar="FILE",
        help="Unix socket to listen on instead of a port; it is made, and removed at the end",
    )
    add(
        "--unix-socket-mode",
        type=reader(permissions),
        default=0o600,
        metavar="MODE",
        help="permissions of the Unix socket, as for chmod (default: 600)",
    )
    add(
        "--tls-cert",
        type=Path,
        metavar="FILE",
        help="certificate with its chain, in the format PEM; the service then answers with TLS only",
    )
    add("--tls-key", type=Path, metavar="FILE", help="key of the certificate, in the format PEM, not encrypted")
    add(
        "--workers",
        type=reader(whole_number(1, MAX_WORKERS)),
        default=1,
        metavar="N",
        help="processes that serve together (default: %(default)s)",
    )
    add(
        "--deadline",
        type=reader(seconds),
        default=DEADLINE,
        metavar="SECONDS",
        help="seconds to wait for the store before this process decides on its own (default: %(default)s)",
    )
    add("--policies", type=Path, metavar="FILE", help="policy file, in TOML, YAML or JSON")
    add("--token-file", type=Path, metavar="FILE", help="file that contains the token")
    add(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="host name by which clients reach the service, besides localhost and IP addresses; may be repeated",
    )


def permissions(text: str) -> int:
    """Read permissions as for chmod, in octal digits."""
    if not re.fullmatch(r"0?[0-7]{3}", text):
        raise ValueError(f"must be three octal digits such as 660, not {show(text)}")
    return int(text, 8)
