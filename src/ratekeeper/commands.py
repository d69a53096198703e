"""`ratekeeper hit`, `peek` and `reset`: one operation on any store, with an exit status that scripts can use."""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ratekeeper.algorithms import ALGORITHMS, Rule
from ratekeeper.decision import Decision
from ratekeeper.errors import InvalidRule, StoreUnavailable
from ratekeeper.limiter import Limiter
from ratekeeper.rates import show
from ratekeeper.rules import MODE, WINDOW, algorithm_called, from_fields
from ratekeeper.subcommands import add_command, quantity, say

if TYPE_CHECKING:
    from ratekeeper.subcommands import Subcommands

ALLOWED, DENIED, FAILED = 0, 1, 2
_STORE = "redis://localhost:6379/0"
_SUMMARIES = {
    "hit": "consume from a key if the rules allow it",
    "peek": "show whether a hit would be allowed, without changing anything",
    "reset": "delete the usage stored for a key",
}
_RULE_HELP = (
    "one or more rules, such as '100/minute' or '10/s burst 20; 1000/hour', or an algorithm's name with its fields, "
    "such as token_bucket --limit 100"
)
_READERS: dict[str, Callable[[str], Any]] = {"count": int, "window": quantity, "rate": quantity, "mode": str}
_MODES = [variant.mode for algorithm in ALGORITHMS for variant in algorithm.variants if variant.mode]
_HELP = {
    "limit": "units per window",
    "count": "units (default: the limit)",
    "window": f"seconds, or a text such as 5m (default: {WINDOW})",
    "rate": "units per second, or a text such as 10/minute (default: the limit per window)",
    "mode": f"{' or '.join(_MODES)} (default: {MODE})",
}
_EPILOG = """\
exit status:
  0 allowed; 1 denied; 2 invalid input, or the store is unavailable (these commands have no fallback)

examples:
  ratekeeper {command} '100/minute' user:42 --store redis://localhost:6379/0{example}
  ratekeeper {command} token_bucket user:42 --limit 100
"""
_EXAMPLES = {"hit": " --cost 3 && ./send-the-mail", "peek": " --json", "reset": ""}


def add(commands: Subcommands) -> None:
    """Add the commands to the command line."""
    for command, summary in _SUMMARIES.items():
        epilog = _EPILOG.format(command=command, example=_EXAMPLES[command])
        parser = add_command(commands, command, summary, description=f"{summary.capitalize()}.", epilog=epilog)
        parser.add_argument("rule", help=_RULE_HELP)
        parser.add_argument("key", help="the key to limit, as text; it matches the application's str keys")
        if command != "reset":
            parser.add_argument("--cost", type=int, default=1, help="units to consume (default: 1)")
        parser.add_argument(
            "--store",
            default=_STORE,
            metavar="URL",
            help="URL of the store (default: %(default)s); memory:// is empty and lasts for this command only",
        )
        _add_fields(parser)
        parser.add_argument("--name", help="name of the rule, if the application names it")
        parser.add_argument("--prefix", default="ratekeeper", help="prefix of the stored keys (default: %(default)s)")
        parser.add_argument(
            "--deadline", type=float, default=1.0, metavar="SECONDS", help="seconds to wait for an answer (default: 1)"
        )
        parser.add_argument("--json", action="store_true", help="print the decision as JSON")
        parser.set_defaults(run=partial(run, command))


def _add_fields(parser: argparse.ArgumentParser) -> None:
    """Add an option for each field that a rule may have."""
    group = parser.add_argument_group("fields of a rule that is given by its algorithm's name")
    fields = {field.name: field.kind for algorithm in ALGORITHMS for field in algorithm.fields}
    for name, kind in fields.items():
        group.add_argument(
            f"--{name.replace('_', '-')}",
            type=_READERS[kind],
            metavar=kind.upper(),
            help=_HELP[name if name in _HELP else kind],
        )
    parser.set_defaults(fields=tuple(fields))


def _rules(options: argparse.Namespace) -> Rule | str:
    """Return the rules that the options give: a text, or one rule by its algorithm's name and its fields."""
    text: str = options.rule
    given = {name: value for name in options.fields if (value := getattr(options, name)) is not None}
    if algorithm_called(text):
        return from_fields(text, given)
    for name in given:
        raise InvalidRule(
            f"--{name.replace('_', '-')} is a field of an algorithm such as token_bucket, but the rule is {show(text)}"
        )
    return text


def run(command: str, options: argparse.Namespace) -> int:
    """Run one operation and return the exit status."""
    logging.getLogger("ratekeeper").addHandler(logging.NullHandler())  # the error says the same
    try:
        given = _rules(options)
        rules = given if options.name is None else {options.name: given}
        with Limiter(
            rules, options.store, prefix=options.prefix, on_error="raise", deadline=options.deadline
        ) as limiter:
            if command == "reset":
                return _reset(limiter, options)
            decision = getattr(limiter, command)(options.key, options.cost)
    except (InvalidRule, TypeError, StoreUnavailable) as error:
        hint = ""
        if isinstance(error, StoreUnavailable) and options.store == _STORE:
            hint = f" (the default store is {_STORE}; choose another with --store)"
        print(f"ratekeeper {command}: {' '.join(str(error).split())}{hint}", file=sys.stderr)
        return FAILED
    say(json.dumps(as_json(decision)) if options.json else _in_words(decision))
    return ALLOWED if decision.allowed else DENIED


def _reset(limiter: Limiter, options: argparse.Namespace) -> int:
    try:
        found = any(seen.raw is not None for seen in limiter.inspect(options.key).values())
    except StoreUnavailable as error:
        if not error.answered:
            raise
        found = True  # what is stored is damaged
    limiter.reset(options.key)
    if options.json:
        say(json.dumps({"ok": True, "found": found}))
    elif found:
        say(f"{options.key}: reset")
    else:
        where = f"rule {' or '.join(map(repr, limiter.rules))} and prefix {options.prefix!r}"
        say(f"{options.key}: nothing to reset; no usage is stored for this key under {where}")
    return ALLOWED


def as_json(decision: Decision) -> dict[str, Any]:
    """Return a decision as plain data for JSON; an infinite time becomes null."""
    fields = decision._asdict()
    fields["retry_after"] = None if decision.retry_after == math.inf else decision.retry_after
    fields["layers"] = {name: as_json(layer) for name, layer in decision.layers.items()}
    return fields


def _in_words(decision: Decision) -> str:
    if decision.limit is None:
        return f"allowed: {decision.advice}; no rule limits the request"
    standing = f"{decision.remaining} of {decision.limit} remaining under {decision.rule!r}"
    return f"{'allowed' if decision.allowed else 'denied'}: {decision.advice}; {standing}"
