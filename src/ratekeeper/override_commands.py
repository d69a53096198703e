"""`ratekeeper override`: other limits for some requests and some time, in a service that runs."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratekeeper import rates
from ratekeeper.errors import InvalidRule
from ratekeeper.subcommands import add_command, reader, say

if TYPE_CHECKING:
    from ratekeeper.command_parser import CommandParser
    from ratekeeper.subcommands import Subcommands

DONE, REFUSED, FAILED = 0, 1, 2
_URL = "http://localhost:8080"
_TIMEOUT = 10.0  # seconds
_SUMMARY = "change limits of a running service for some requests and some time"
_EPILOG = """\
Overrides are kept in the service's store, reach all of its processes within a second, and end by themselves.

exit status:
  0 done; 1 the service refused it, and says why; 2 invalid input, or the service cannot be reached

examples:
  ratekeeper override set launch --policy api --when plan=pro --limits user=5000/minute --expires-in 2h
  ratekeeper override set abuse --policy api --when ip=203.0.113.0/24 --limits blocked --expires-in 1d
  ratekeeper override list
  ratekeeper override remove launch --url https://limits.example --token-file token
"""
_Call = Callable[..., tuple[int, Any]]


class Unreachable(Exception):
    """The service gave no answer."""


def add(commands: Subcommands) -> None:
    """Add the command to the command line."""
    description = f"{_SUMMARY.capitalize()}, over HTTP."
    parser = add_command(commands, "override", _SUMMARY, description=description, epilog=_EPILOG)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    _add_set(actions)
    summary = "list the overrides that have not ended, the newest first"
    listing = _add_action(actions, "list", summary, "ratekeeper override list --json", list_all)
    listing.add_argument("--json", action="store_true", help="print them as JSON")
    removing = _add_action(actions, "remove", "end an override", "ratekeeper override remove launch", remove)
    removing.add_argument("id", metavar="ID", help="the name of the override")


def _add_set(actions: Subcommands) -> None:
    example = "ratekeeper override set launch --policy api --when plan=pro --limits user=5000/minute --expires-in 2h"
    summary = "put other limits in force, before all others"
    parser = _add_action(actions, "set", summary, example, set_one)
    parser.add_argument("id", metavar="ID", help="a name for the override; one with the same name is replaced")
    parser.add_argument("--policy", required=True, metavar="NAME", help="the policy")
    parser.add_argument(
        "--when",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="the requests that it is for, by attributes; a name may be repeated, and one of its values must match "
        "(default: every request)",
    )
    parser.add_argument(
        "--limits",
        nargs="+",
        required=True,
        metavar="RULE=LIMIT",
        help="the limits by rule, as in user=1000/minute; or the one word unlimited or blocked",
    )
    parser.add_argument(
        "--expires-in", type=reader(_duration), required=True, metavar="TIME", help="when it ends: seconds, or 90m, 2h"
    )


def _add_action(
    actions: Subcommands, name: str, summary: str, example: str, act: Callable[[_Call, argparse.Namespace], int]
) -> CommandParser:
    parser = add_command(
        actions,
        name,
        summary,
        description=f"{summary.capitalize()}.",
        epilog=f"example:\n  {example}",
        settings=["url"],
    )
    parser.add_argument("--url", default=_URL, help="URL of the service (default: %(default)s)")
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE", help="file that contains the token (default: RATEKEEPER_TOKEN)"
    )
    parser.set_defaults(run=partial(_run, act))
    return parser


def _run(act: Callable[[_Call, argparse.Namespace], int], options: argparse.Namespace) -> int:
    try:
        given = options.token_file
        token = os.environ.get("RATEKEEPER_TOKEN") if given is None else given.read_text("utf-8")
        return act(partial(_call, options.url, token and token.strip()), options)
    except (Unreachable, ValueError) as error:
        return _fail(str(error), FAILED)
    except OSError as error:
        return _fail(f"cannot read {options.token_file}: {error.strerror}", FAILED)


def set_one(call: _Call, options: argparse.Namespace) -> int:
    """Set an override."""
    when: dict[str, list[str]] = {}
    for name, value in _pairs("--when", options.when):
        when.setdefault(name, []).append(value)
    word = options.limits[0]
    is_word = len(options.limits) == 1 and "=" not in word
    limits = word if is_word else dict(_pairs("--limits", options.limits))
    body = {"policy": options.policy, "when": when, "limits": limits, "expires_in": options.expires_in}
    status, answer = call("PUT", options.id, body)
    if status != DONE:
        return _refused(answer)
    say(f"{answer['id']}: in force until {answer['expires_at']}")
    return DONE


def list_all(call: _Call, options: argparse.Namespace) -> int:
    """List the overrides."""
    status, answer = call("GET")
    if status != DONE:
        return _refused(answer)
    if options.json:
        say(json.dumps(answer["overrides"]))
        return DONE
    for each in answer["overrides"]:
        say(_in_words(each))
    if not answer["overrides"]:
        say("no overrides are in force")
    return DONE


def remove(call: _Call, options: argparse.Namespace) -> int:
    """Remove an override."""
    status, answer = call("DELETE", options.id)
    if status != DONE:
        return _refused(answer)
    say(f"{options.id}: removed")
    return DONE


def _call(url: str, token: str | None, method: str, name: str = "", body: Any = None) -> tuple[int, Any]:
    """Call the service; return whether it did what it was asked, as an exit status, and its answer."""
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError
    from urllib.parse import quote, urlsplit
    from urllib.request import Request, urlopen

    if urlsplit(url).scheme not in ("http", "https"):
        raise InvalidRule(f"--url must begin with http:// or https://, not {rates.show(url)}")
    path = f"/v1/overrides/{quote(name, safe='')}" if name else "/v1/overrides"
    headers = {"Content-Type": "application/json"} if body is not None else {}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    content = None if body is None else json.dumps(body).encode()
    request = Request(url.rstrip("/") + path, content, headers, method=method)  # noqa: S310 - checked above
    try:
        with urlopen(request, timeout=_TIMEOUT) as response:  # noqa: S310 - as above
            return DONE, json.load(response)
    except HTTPError as error:
        try:
            return REFUSED, json.load(error)
        except ValueError:
            raise Unreachable(f"{url} answered {error.code}, and not as ratekeeper does") from None
    except (URLError, OSError, HTTPException, ValueError) as error:
        raise Unreachable(f"cannot reach {url}: {getattr(error, 'reason', error)}") from None


def _refused(answer: Mapping[str, Any]) -> int:
    reasons = answer.get("reasons") or [{"place": "", "reason": answer.get("detail")}]
    for each in reasons:
        place = f"{each['place']}: " if each["place"] else ""
        hint = f"; did you mean {each['suggestion']!r}?" if each.get("suggestion") else ""
        _fail(f"{place}{each['reason']}{hint}", REFUSED)
    return REFUSED


def _in_words(override: Mapping[str, Any]) -> str:
    when = ", ".join(f"{name}={' or '.join(each)}" for name, each in override["when"].items()) or "every request"
    limits = override["limits"]
    if not isinstance(limits, str):
        limits = ", ".join(f"{rule} {limit}" for rule, limit in limits.items())
    return f"{override['id']}: {override['policy']}, {when}: {limits}, until {override['expires_at']}"


def _pairs(option: str, given: Sequence[str]) -> list[tuple[str, str]]:
    pairs = [tuple(each.split("=", 1)) for each in given]
    for pair, each in zip(pairs, given, strict=True):
        if len(pair) < 2 or not pair[0]:
            raise InvalidRule(f"{option} takes NAME=VALUE, not {rates.show(each)}")
    return [(name, value) for name, value in pairs]


def _duration(text: str) -> float:
    """Read a time: seconds, or a text such as 2h."""
    number = text if not text.replace(".", "", 1).isdigit() else float(text)
    return rates.window_us(number, "the time") / rates.SECOND_US


def _fail(message: str, status: int) -> int:
    print(f"ratekeeper override: {' '.join(message.split())}", file=sys.stderr)
    return status
