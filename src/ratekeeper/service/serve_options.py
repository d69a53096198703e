"""The options of `ratekeeper serve`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import get_args

from ratekeeper import arguments
from ratekeeper.fallback import OnError
from ratekeeper.rates import show
from ratekeeper.service import DEADLINE
from ratekeeper.service.log_lines import LOG_FORMATS
from ratekeeper.subcommands import reader, seconds, whole_number

MAX_WORKERS = 256
SUMMARY = "run the HTTP service, with a page that shows the algorithms at work"
EPILOG = """\
The operators' token is read from --token-file or from the environment variable RATEKEEPER_TOKEN. It is required unless
--host is a loopback address. Clients that do not send it can hit and peek, but not change or see anything else. With a
token for callers, from --caller-token-file or RATEKEEPER_CALLER_TOKEN, they need that one for hits and peeks.

examples:
  ratekeeper serve --store redis://localhost:6379/0
  curl http://localhost:8080/v1/hit --json '{"key": "ada", "rule": "10/minute"}'
  RATEKEEPER_STORE=redis://:secret@cache:6379 ratekeeper serve --workers 2
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    _add_place(parser.add_argument_group("where it listens").add_argument)
    _add_store(parser.add_argument_group("how it decides").add_argument)
    _add_access(parser.add_argument_group("who may call it").add_argument)


def _add_place(add: Callable[..., object]) -> None:
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--port", type=reader(whole_number(1, 65_535)), default=8080, help="port to listen on (default: %(default)s)")
    add("--unix-socket", type=Path, metavar="FILE", help="Unix socket to listen on instead of a port")
    add(
        "--unix-socket-mode",
        type=reader(_permissions),
        default=0o600,
        metavar="MODE",
        help="permissions of the Unix socket, as for chmod (default: 600)",
    )
    add(
        "--tls-cert",
        type=Path,
        metavar="FILE",
        help="certificate with its chain, in PEM format; the service then answers with TLS only",
    )
    add("--tls-key", type=Path, metavar="FILE", help="key of the certificate, in PEM format, not encrypted")
    add(
        "--workers",
        type=reader(whole_number(1, MAX_WORKERS)),
        default=1,
        metavar="N",
        help="processes that serve together (default: %(default)s)",
    )


def _add_store(add: Callable[..., object]) -> None:
    add(
        "--policies",
        type=_policies,
        metavar="FILE",
        help="policy file, in TOML, YAML or JSON, whose changes are followed; or the word store, for policies that are "
        "kept in the store and replaced over HTTP",
    )
    add(
        "--store",
        metavar="URL",
        help="URL of the store, such as redis://localhost:6379/0 or sqlite:///path/to/limits.db "
        "(default: in memory; with several workers, in a temporary file)",
    )
    add(
        "--deadline",
        type=reader(seconds),
        default=DEADLINE,
        metavar="SECONDS",
        help="seconds to wait for the store before this process decides on its own (default: %(default)s)",
    )
    add(
        "--on-error",
        choices=get_args(OnError),
        default="local",
        help="what becomes of requests while the store is away: decided by the same rules in this process, allowed "
        "(open), denied (closed) or answered with 503 (raise); a policy may have its own (default: %(default)s)",
    )
    add(
        "--local-share",
        type=reader(_share),
        metavar="SHARE",
        help="part of the limits that each process enforces while the store is away, such as 0.5; a policy may have "
        "its own (default: 1 divided by the workers)",
    )
    add(
        "--lease",
        type=reader(seconds),
        metavar="SECONDS",
        help="seconds for which each process may take usage of hot keys ahead, by policies of one rule; "
        "a policy may have its own",
    )


def _add_access(add: Callable[..., object]) -> None:
    add("--token-file", type=Path, metavar="FILE", help="file that contains the operators' token")
    add(
        "--caller-token-file",
        type=Path,
        metavar="FILE",
        help="file that contains the callers' token, which hits and peeks need then; a policy may have its own callers",
    )
    add(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="host name by which clients reach the service, besides localhost and IP addresses; may be repeated",
    )
    add(
        "--trusted-proxy",
        action="append",
        default=[],
        metavar="ADDRESS",
        help="address or network of a proxy that may ask with forward-auth, and is believed what it says of its "
        "clients; may be repeated (default: proxies on this machine)",
    )
    add(
        "--log-format",
        choices=LOG_FORMATS,
        default="text",
        help="format of the log on standard error; in JSON, it also has what is going on, and a sample of the denials "
        "(default: %(default)s)",
    )
    add("--access-log", action="store_true", help="log every request over HTTP, without its query and its body")
    add("--show-keys", action="store_true", help="show top talkers by their keys, not by hashes of them")
    add("--no-metrics", action="store_true", help="count nothing for /metrics and for top talkers")


def _policies(text: str) -> str | Path:
    """Return the word store, or a file, whatever its name looks like."""
    return text if text == "store" else Path(text)


def _share(text: str) -> Fraction:
    try:
        return arguments.check_share(Fraction(text))
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"must be a number above 0 and at most 1, not {show(text)}") from None


def _permissions(text: str) -> int:
    """Read permissions as for chmod, in octal digits."""
    if not re.fullmatch(r"0?[0-7]{3}", text):
        raise ValueError(f"must be three octal digits such as 660, not {show(text)}")
    return int(text, 8)
