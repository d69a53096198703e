"""`ratekeeper hit` and its like: one operation on a key of any store, with an exit status that scripts can use."""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ratekeeper.command_targets import SETTINGS, STORE, add_target, key_of, open_limiter, shown_key
from ratekeeper.decision import Decision
from ratekeeper.errors import InvalidRule, RateLimited, StoreUnavailable
from ratekeeper.inspections import inspection_fields
from ratekeeper.limiter import Limiter
from ratekeeper.subcommands import add_command, reader, say, seconds

if TYPE_CHECKING:
    from ratekeeper.subcommands import Subcommands

ALLOWED, DENIED, FAILED = DONE, _, _ = 0, 1, 2


class _Command(NamedTuple):
    summary: str
    statuses: str
    example: str
    has_cost: bool = True


_DECIDED = "0 allowed; 1 denied"
_COMMANDS = {
    "hit": _Command("consume from a key if the rules allow it", _DECIDED, " --cost 3 && ./send-the-mail"),
    "peek": _Command("show whether a hit would be allowed, without changing anything", _DECIDED, " --json"),
    "wait": _Command(
        "wait until the rules allow a hit, and consume from the key",
        "0 allowed; 1 not in time, which is known at once",
        " --timeout 30 && ./send-the-mail",
    ),
    "charge": _Command("consume from a key, whether the rules allow it or not", "0 done", " --cost 3"),
    "refund": _Command("give back to a key what was consumed", "0 done", " --cost 3"),
    "inspect": _Command("show how a key is stored", "0 done", " --json", has_cost=False),
    "reset": _Command("delete the usage stored for a key", "0 done, also if there was none", "", has_cost=False),
}
_DONE = {"charge": "charged", "refund": "refunded"}
_EPILOG = """\
exit status:
  {statuses}; 130 interrupted
  2 invalid input, or the store is unavailable (these commands have no fallback)

examples:
  ratekeeper {command} '100/minute' user:42 --store redis://localhost:6379/0{example}
  ratekeeper {command} token_bucket acme user:42 --limit 100
  ratekeeper {command} --policies limits.toml --policy api user=42 method=POST
"""


def add(commands: Subcommands) -> None:
    """Add the commands to the command line."""
    for name, command in _COMMANDS.items():
        epilog = _EPILOG.format(command=name, statuses=command.statuses, example=command.example)
        description = f"{command.summary[0].upper()}{command.summary[1:]}."
        parser = add_command(commands, name, command.summary, description=description, epilog=epilog, settings=SETTINGS)
        add_target(parser)
        if command.has_cost:
            parser.add_argument("--cost", type=int, default=1, help="units to consume (default: 1)")
        if name == "wait":
            parser.add_argument(
                "--timeout",
                type=reader(seconds),
                metavar="SECONDS",
                help="seconds to wait at most (default: as long as it takes)",
            )
        parser.add_argument("--json", action="store_true", help="print the answer as JSON")
        parser.set_defaults(run=partial(run, name))


def run(command: str, options: argparse.Namespace) -> int:
    """Run one operation and return the exit status."""
    logging.getLogger("ratekeeper").addHandler(logging.NullHandler())  # the error says the same
    try:
        with open_limiter(options) as limiter:
            key = key_of(options)
            if command == "reset":
                return _reset(limiter, key, options)
            if command == "inspect":
                return _inspect(limiter, key, options)
            decision = _decide(command, limiter, key, options)
    except (InvalidRule, TypeError, StoreUnavailable) as error:
        hint = ""
        if isinstance(error, StoreUnavailable) and options.store == STORE:
            hint = f" (the default store is {STORE}; choose another with --store)"
        print(f"ratekeeper {command}: {' '.join(str(error).split())}{hint}", file=sys.stderr)
        return FAILED
    done = _DONE.get(command)
    words = _in_words(decision) if done is None else f"{done} {options.cost}; {_standing(decision)}"
    say(json.dumps(as_json(decision)) if options.json else words)
    return ALLOWED if decision.allowed or done is not None else DENIED


def _decide(command: str, limiter: Limiter, key: Any, options: argparse.Namespace) -> Decision:
    if command != "wait":
        decision: Decision = getattr(limiter, command)(key, options.cost)
        return decision
    try:
        return limiter.wait(key, options.cost, timeout=options.timeout)
    except RateLimited as error:
        return error.decision


def _reset(limiter: Limiter, key: Any, options: argparse.Namespace) -> int:
    try:
        found = any(seen.raw is not None for seen in limiter.inspect(key).values())
    except StoreUnavailable as error:
        if not error.answered:
            raise
        found = True  # what is stored is damaged
    limiter.reset(key)
    if options.json:
        say(json.dumps({"ok": True, "found": found}))
    elif found:
        say(f"{shown_key(options)}: reset")
    else:
        where = f"rule {' or '.join(map(repr, limiter.rules))} and prefix {options.prefix!r}"
        say(f"{shown_key(options)}: nothing to reset; no usage is stored for this key under {where}")
    return DONE


def _inspect(limiter: Limiter, key: Any, options: argparse.Namespace) -> int:
    seen = {name: inspection_fields(each) for name, each in limiter.inspect(key).items()}
    if options.json:
        say(json.dumps({"rules": seen}))
        return DONE
    for name, fields in seen.items():
        rule = fields["rule"]
        say(rule if name == rule else f"{name}: {rule}")
        for field in ("state", "name", "raw", "ttl", "bytes"):
            value = fields[field]
            say(f"  {field:<6} {json.dumps(value) if isinstance(value, dict | list) else value}")
    if not seen:
        say("no rule limits the request")
    return DONE


def as_json(decision: Decision) -> dict[str, Any]:
    """Return a decision as plain data for JSON; an infinite time becomes null."""
    fields = decision._asdict()
    fields["retry_after"] = None if decision.retry_after == math.inf else decision.retry_after
    fields["layers"] = {name: as_json(layer) for name, layer in decision.layers.items()}
    return fields


def _in_words(decision: Decision) -> str:
    return f"{'allowed' if decision.allowed else 'denied'}: {decision.advice}; {_standing(decision)}"


def _standing(decision: Decision) -> str:
    if decision.limit is None:
        return "no rule limits the request"
    return f"{decision.remaining} of {decision.limit} remaining under {decision.rule!r}"
