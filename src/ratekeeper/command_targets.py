"""What a command works on: a rule and a key, or a policy and the attributes of a request, on a store."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ratekeeper.algorithms import ALGORITHMS, Rule
from ratekeeper.errors import InvalidRule
from ratekeeper.limiter import Limiter
from ratekeeper.rates import show
from ratekeeper.rules import MODE, WINDOW, algorithm_called, from_fields
from ratekeeper.subcommands import attributes_of, quantity

STORE = "redis://localhost:6379/0"
SETTINGS = ("store", "prefix", "deadline", "policies")
_WORDS_HELP = (
    "a rule, or several, such as '100/minute' or '10/s burst 20; 1000/hour', or an algorithm's name with its fields, "
    "such as token_bucket --limit 100; then the key: a text, or several that form a tuple. With --policy: the "
    "attributes of the request, such as user=42 method=POST"
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


def add_target(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what the command works on."""
    parser.add_argument("words", nargs="*", metavar="RULE KEY", help=_WORDS_HELP)
    parser.add_argument(
        "--store",
        default=STORE,
        metavar="URL",
        help="URL of the store (default: %(default)s); memory:// is empty and lasts for this command only",
    )
    parser.add_argument("--policies", type=Path, metavar="FILE", help="policy file")
    parser.add_argument("--policy", metavar="NAME", help="the policy that decides, instead of a rule")
    parser.add_argument("--json-key", metavar="JSON", help="the key as JSON, for integers: '[\"acme\", 42]'")
    parser.add_argument("--name", help="name of the rule, if the application names it")
    parser.add_argument("--prefix", default="ratekeeper", help="prefix of the stored keys (default: %(default)s)")
    parser.add_argument(
        "--deadline", type=float, default=1.0, metavar="SECONDS", help="seconds to wait for the store (default: 1)"
    )
    _add_fields(parser)


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


def open_limiter(options: argparse.Namespace) -> Limiter:
    """Return a limiter by the rule or the policy; it raises StoreUnavailable while the store is away."""
    how: dict[str, Any] = {"prefix": options.prefix, "on_error": "raise", "deadline": options.deadline}
    if options.policy is not None:
        return _by_policy(options, how)
    if not options.words:
        raise InvalidRule("a rule and a key are needed, or --policy and attributes such as user=42")
    given = _rules(options, options.words[0])
    return Limiter(given if options.name is None else {options.name: given}, options.store, **how)


def key_of(options: argparse.Namespace) -> Any:
    """Return the key, or the attributes."""
    if options.policy is not None:
        return attributes_of(options.words)
    given = options.words[1:]
    if options.json_key is not None:
        if given:
            raise InvalidRule(f"--json-key is the key; leave out {show(given[0])}")
        return _json_key(options.json_key)
    if not given:
        raise InvalidRule(f"a key is needed after the rule {show(options.words[0])}")
    return given[0] if len(given) == 1 else tuple(given)


def shown_key(options: argparse.Namespace) -> str:
    """Return the key, or the attributes, as they were written."""
    if options.json_key is not None:
        return str(options.json_key)
    return " ".join(options.words if options.policy is not None else options.words[1:])


def _by_policy(options: argparse.Namespace, how: dict[str, Any]) -> Limiter:
    from ratekeeper.policies import InvalidPolicies, Policies  # here, so that other commands start without them

    if options.policies is None:
        raise InvalidRule("--policy needs --policies FILE")
    for name in ("name", "json_key", *options.fields):
        if getattr(options, name) is not None:
            raise InvalidRule(f"--{name.replace('_', '-')} is for a rule; with --policy, the policy says it")
    try:
        policies = Policies.load_file(options.policies)
    except InvalidPolicies as error:
        raise InvalidRule(
            f"{options.policies}: {error.mistakes[0]}; run ratekeeper check-config {options.policies} for all mistakes"
        ) from None
    return policies.limiter(options.policy, options.store, **how)


def _rules(options: argparse.Namespace, text: str) -> Rule | str:
    """Return the rules that the options give: a text, or one rule by its algorithm's name and its fields."""
    given = {name: value for name in options.fields if (value := getattr(options, name)) is not None}
    if algorithm_called(text):
        return from_fields(text, given)
    for name in given:
        raise InvalidRule(
            f"--{name.replace('_', '-')} is a field of an algorithm such as token_bucket, but the rule is {show(text)}"
        )
    return text


def _json_key(text: str) -> Any:
    try:
        key = json.loads(text)
    except ValueError:
        raise InvalidRule(f"--json-key must be JSON, such as 42 or '[\"acme\", 42]', not {show(text)}") from None
    return tuple(key) if isinstance(key, list) else key
