"""`ratekeeper override`: other limits for some requests and some time, in a service that runs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ratekeeper import rates
from ratekeeper.errors import InvalidRule
from ratekeeper.subcommands import add_command, add_service, read_token, reader, say

if TYPE_CHECKING:
    from ratekeeper.command_parser import CommandParser
    from ratekeeper.service_client import ServiceClient
    from ratekeeper.subcommands import Subcommands

DONE, REFUSED, FAILED = 0, 1, 2
_REFUSALS = 400  # the lowest status of a refusal
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
_PATH = "/v1/overrides"


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
    actions: Subcommands, name: str, summary: str, example: str, act: Callable[[ServiceClient, argparse.Namespace], int]
) -> CommandParser:
    parser = add_command(
        actions,
        name,
        summary,
        description=f"{summary.capitalize()}.",
        epilog=f"example:\n  {example}",
        settings=["url"],
    )
    add_service(parser)
    parser.set_defaults(run=partial(_run, act))
    return parser


def _run(act: Callable[[ServiceClient, argparse.Namespace], int], options: argparse.Namespace) -> int:
    from ratekeeper.service_client import NoAnswer, ServiceClient  # here, so that other commands start without it

    try:
        return act(ServiceClient(options.url, read_token(options.token_file)), options)
    except (NoAnswer, ValueError) as error:
        return _fail(str(error), FAILED)


def set_one(client: ServiceClient, options: argparse.Namespace) -> int:
    """Set an override."""
    when: dict[str, list[str]] = {}
    for name, value in _pairs("--when", options.when):
        when.setdefault(name, []).append(value)
    word = options.limits[0]
    is_word = len(options.limits) == 1 and "=" not in word
    limits = word if is_word else dict(_pairs("--limits", options.limits))
    body = {"policy": options.policy, "when": when, "limits": limits, "expires_in": options.expires_in}
    status, answer = client.ask("PUT", _path(options.id), body=body)
    if status >= _REFUSALS:
        return _refused(answer)
    say(f"{answer['id']}: in force until {answer['expires_at']}")
    return DONE


def list_all(client: ServiceClient, options: argparse.Namespace) -> int:
    """List the overrides."""
    status, answer = client.ask("GET", _PATH)
    if status >= _REFUSALS:
        return _refused(answer)
    if options.json:
        say(json.dumps(answer["overrides"]))
        return DONE
    for each in answer["overrides"]:
        say(_in_words(each))
    if not answer["overrides"]:
        say("no overrides are in force")
    return DONE


def remove(client: ServiceClient, options: argparse.Namespace) -> int:
    """Remove an override."""
    status, answer = client.ask("DELETE", _path(options.id))
    if status >= _REFUSALS:
        return _refused(answer)
    say(f"{options.id}: removed")
    return DONE


def _path(override: str) -> str:
    return f"{_PATH}/{quote(override, safe='')}"


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
