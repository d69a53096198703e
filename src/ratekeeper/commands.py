"""`ratekeeper hit`, `peek` and `reset`: one operation on any store, with an exit status that scripts can use."""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from ratekeeper.decision import Decision
from ratekeeper.errors import InvalidRule, StoreUnavailable
from ratekeeper.limiter import Limiter
from ratekeeper.subcommands import add_command

if TYPE_CHECKING:
    from ratekeeper.subcommands import Subcommands

ALLOWED, DENIED, FAILED = 0, 1, 2
_STORE = "redis://localhost:6379/0"
_SUMMARIES = {
    "hit": "consume from a key if the rules allow it",
    "peek": "show whether a hit would be allowed, without changing anything",
    "reset": "delete the usage stored for a key",
}
_EPILOG = """\
exit status:
  0 allowed; 1 denied; 2 invalid input, or the store is unavailable (these commands have no fallback)

example:
  ratekeeper {command} '100/minute' user:42 --store redis://localhost:6379/0{example}
"""
_EXAMPLES = {"hit": " --cost 3 && ./send-the-mail", "peek": " --json", "reset": ""}


def add(commands: Subcommands) -> None:
    """Add the commands to the command line."""
    for command, summary in _SUMMARIES.items():
        epilog = _EPILOG.format(command=command, example=_EXAMPLES[command])
        parser = add_command(commands, command, summary, description=f"{summary.capitalize()}.", epilog=epilog)
        parser.add_argument("rule", help="one or more rules, such as '100/minute' or '10/s burst 20; 1000/hour'")
        parser.add_argument("key", help="the key to limit, as text; it matches the application's str keys")
        if command != "reset":
            parser.add_argument("--cost", type=int, default=1, help="units to consume (default: 1)")
        parser.add_argument(
            "--store",
            default=_STORE,
            metavar="URL",
            help="URL of the store (default: %(default)s); memory:// is empty and lasts for this command only",
        )
        parser.add_argument("--name", help="name of the rule, if the application names it")
        parser.add_argument("--prefix", default="ratekeeper", help="prefix of the stored keys (default: %(default)s)")
        parser.add_argument(
            "--deadline", type=float, default=1.0, metavar="SECONDS", help="seconds to wait for an answer (default: 1)"
        )
        parser.add_argument("--json", action="store_true", help="print the decision as JSON")
        parser.set_defaults(run=partial(run, command))


def run(command: str, options: argparse.Namespace) -> int:
    """Run one operation and return the exit status."""
    logging.getLogger("ratekeeper").addHandler(logging.NullHandler())  # the error says the same
    try:
        rules = options.rule if options.name is None else {options.name: options.rule}
        with Limiter(
            rules, options.store, prefix=options.prefix, on_error="raise", deadline=options.deadline
        ) as limiter:
            if command == "reset":
                limiter.reset(options.key)
                _say(json.dumps({"ok": True}) if options.json else f"{options.key}: reset")
                return ALLOWED
            decision = getattr(limiter, command)(options.key, options.cost)
    except (InvalidRule, TypeError, StoreUnavailable) as error:
        hint = ""
        if isinstance(error, StoreUnavailable) and options.store == _STORE:
            hint = f" (the default store is {_STORE}; choose another with --store)"
        print(f"ratekeeper {command}: {' '.join(str(error).split())}{hint}", file=sys.stderr)
        return FAILED
    _say(json.dumps(as_json(decision)) if options.json else _in_words(decision))
    return ALLOWED if decision.allowed else DENIED


def as_json(decision: Decision) -> dict[str, Any]:
    """Return a decision as plain data for JSON; an infinite time becomes null."""
    fields = decision._asdict()
    fields["retry_after"] = None if decision.retry_after == math.inf else decision.retry_after
    fields["layers"] = {name: as_json(layer) for name, layer in decision.layers.items()}
    return fields


def _say(text: str) -> None:
    """Print one line; characters that are unprintable, or that the output cannot encode, are escaped."""
    encoding = sys.stdout.encoding or "utf-8"
    printable = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
    print(printable.encode(encoding, "backslashreplace").decode(encoding))


def _in_words(decision: Decision) -> str:
    standing = f"{decision.remaining} of {decision.limit} remaining under {decision.rule!r}"
    return f"{'allowed' if decision.allowed else 'denied'}: {decision.advice}; {standing}"
