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

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[Any]  # noqa: SLF001 - it has no public name

ALLOWED, DENIED, FAILED = 0, 1, 2
_STORE = "redis://localhost:6379/0"
_WHAT = {
    "hit": "consume from a key if its rules admit it",
    "peek": "say whether a key would be admitted, and change nothing",
    "reset": "forget a key",
}
_EPILOG = """\
exit status:
  0 allowed, 1 denied, 2 bad input or a store that does not answer (there is no fallback here)

example:
  ratekeeper {command} '100/minute' user:42 --store redis://localhost:6379/0{example}
"""
_EXAMPLES = {"hit": " --cost 3 && ./send-the-mail", "peek": " --json", "reset": ""}


def add(commands: Commands) -> None:
    """Add the commands to the command line."""
    for command, what in _WHAT.items():
        parser = commands.add_parser(
            command,
            help=what,
            description=f"{what.capitalize()}, on any store.",
            epilog=_EPILOG.format(command=command, example=_EXAMPLES[command]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        parser.add_argument("rule", help="a rule, or several, such as '100/minute' or '10/s burst 20; 1000/hour'")
        parser.add_argument("key", help="who is limited: a text, as the application's str keys are")
        if command != "reset":
            parser.add_argument("--cost", type=int, default=1, help="how much (default: 1)")
        parser.add_argument(
            "--store",
            default=_STORE,
            metavar="URL",
            help="where (default: %(default)s); memory:// begins empty and ends with the command",
        )
        parser.add_argument("--name", help="the rule's name, if the application gives it one")
        parser.add_argument("--prefix", default="ratekeeper", help="of the stored keys (default: %(default)s)")
        parser.add_argument(
            "--deadline", type=float, default=1.0, metavar="SECONDS", help="for the answer (default: 1)"
        )
        parser.add_argument("--json", action="store_true", help="print the decision as JSON")
        parser.set_defaults(run=partial(run, command))


def run(command: str, options: argparse.Namespace) -> int:
    """Do one operation and give the exit status."""
    logging.getLogger("ratekeeper").addHandler(logging.NullHandler())  # what it would say is in the error
    try:
        rules = options.rule if options.name is None else {options.name: options.rule}
        with Limiter(
            rules, options.store, prefix=options.prefix, on_error="raise", deadline=options.deadline
        ) as limiter:
            if command == "reset":
                limiter.reset(options.key)
                _say(json.dumps({"ok": True}) if options.json else f"{options.key} is forgotten")
                return ALLOWED
            decision = getattr(limiter, command)(options.key, options.cost)
    except (InvalidRule, TypeError, StoreUnavailable) as error:
        hint = ""
        if isinstance(error, StoreUnavailable) and options.store == _STORE:
            hint = f" (asked at {_STORE}; --store names another)"
        print(f"ratekeeper {command}: {' '.join(str(error).split())}{hint}", file=sys.stderr)
        return FAILED
    _say(json.dumps(as_json(decision)) if options.json else _in_words(decision))
    return ALLOWED if decision.allowed else DENIED


def as_json(decision: Decision) -> dict[str, Any]:
    """Return a decision as JSON writes it: an infinite time is null."""
    fields = decision._asdict()
    fields["retry_after"] = None if decision.retry_after == math.inf else decision.retry_after
    fields["layers"] = {name: as_json(layer) for name, layer in decision.layers.items()}
    return fields


def _say(text: str) -> None:
    """Print one line, whatever a key or a name has in it: what the output cannot show, or should not, as codes."""
    encoding = sys.stdout.encoding or "utf-8"
    printable = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
    print(printable.encode(encoding, "backslashreplace").decode(encoding))


def _in_words(decision: Decision) -> str:
    standing = f"{decision.remaining} of {decision.limit} remain by {decision.rule!r}"
    return f"{'allowed' if decision.allowed else 'denied'}: {decision.advice}; {standing}"
