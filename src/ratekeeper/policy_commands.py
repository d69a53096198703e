"""`ratekeeper check-config` and `ratekeeper schema`: what a policy file says, and what is wrong with it."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from ratekeeper.errors import InvalidRule
from ratekeeper.subcommands import add_command, attributes_of, say

if TYPE_CHECKING:
    from ratekeeper.policies import Policies
    from ratekeeper.subcommands import Subcommands

VALID, INVALID = 0, 1
_CHECK = """\
exit status:
  0 the file is valid; 1 it is invalid, and each mistake is printed with its line; 2 the command is invalid

examples:
  ratekeeper check-config limits.toml
  ratekeeper check-config limits.toml --explain user=42 plan=pro method=POST path=/v1/items
  ratekeeper check-config limits.toml --diff new-limits.toml
"""
_CALLERS = """\
The second line belongs into the policy file, as callers = [...]. The token itself is for the callers, in the header
Authorization: Bearer TOKEN, and is not stored anywhere.

example:
  ratekeeper token
"""
_SCHEMA = """\
example:
  ratekeeper schema > policies.schema.json

An editor finds it by the first line of a TOML file: #:schema ./policies.schema.json
or of a YAML file: # yaml-language-server: $schema=./policies.schema.json
"""


def add(commands: Subcommands) -> None:
    """Add the commands to the command line."""
    parser = add_command(
        commands,
        "check-config",
        "check a policy file",
        description="Check a policy file, in TOML, YAML or JSON, and print every mistake with its line.",
        epilog=_CHECK,
    )
    parser.add_argument("file", metavar="FILE", help="the file")
    parser.add_argument(
        "--explain",
        nargs="+",
        metavar="NAME=VALUE",
        help="print the rules, keys and limits that a request with these attributes would meet",
    )
    parser.add_argument("--policy", metavar="NAME", help="explain this policy only")
    parser.add_argument("--cost", type=int, default=1, help="the cost of the explained request (default: 1)")
    parser.add_argument("--diff", metavar="OTHER", help="print what changes from FILE to OTHER")
    parser.set_defaults(run=check)
    parser = add_command(
        commands,
        "schema",
        "print the JSON Schema of a policy file",
        description="Print the JSON Schema of a policy file, for editors that complete and check it.",
        epilog=_SCHEMA,
    )
    parser.set_defaults(run=print_schema)
    parser = add_command(
        commands,
        "token",
        "make a token for the callers of a policy",
        description="Make a token for the callers of a policy, and print it with its hash.",
        epilog=_CALLERS,
    )
    parser.set_defaults(run=print_token)


def print_token(_: argparse.Namespace) -> int:
    """Print a new token and its hash."""
    import secrets

    from ratekeeper.policies.caller_hashes import caller_hash

    token = secrets.token_urlsafe(32)
    print(f'token:   {token}\ncallers: ["{caller_hash(token.encode())}"]')
    return VALID


def print_schema(_: argparse.Namespace) -> int:
    """Print the schema."""
    from ratekeeper.policies.schema import schema

    print(json.dumps(schema(), indent=2))
    return VALID


def check(options: argparse.Namespace) -> int:
    """Check a file, and return the exit status."""
    loaded = [_load(path) for path in (options.file, options.diff) if path is not None]
    policies = loaded[0]
    if policies is None or None in loaded:
        return INVALID
    if options.explain is not None:
        return _explain(policies, options)
    if options.diff is not None:
        from ratekeeper.policies.differences import differences

        lines = differences(policies, loaded[1] or {})
        say(f"from {options.file} to {options.diff}: {_count(len(lines), 'change')}")
        for line in lines:
            say(line)
        return VALID
    rules = sum(len(policy.rules) for policy in policies.values())
    overrides = sum(len(policy.overrides) for policy in policies.values())
    counts = (_count(len(policies), "policy", "policies"), _count(rules, "rule"), _count(overrides, "override"))
    say(f"{options.file}: valid; {', '.join(counts)}")
    return VALID


def _load(path: str) -> Policies | None:
    """Read a file; print its mistakes if it has any."""
    from ratekeeper.policies import InvalidPolicies, Policies  # here, so that other commands start without them

    try:
        return Policies.load_file(path)
    except InvalidPolicies as error:
        for mistake in error.mistakes:
            say(f"{path}: {mistake}")
        return None


def _explain(policies: Policies, options: argparse.Namespace) -> int:
    try:
        attributes = attributes_of(options.explain)
    except InvalidRule as error:
        return _refuse(str(error))
    names = list(policies) if options.policy is None else [options.policy]
    for name in names:
        try:
            told = str(policies.explain(name, attributes, options.cost))
        except (InvalidRule, TypeError) as error:
            return _refuse(f"{name}: {error}")
        for line in told.splitlines():
            say(line)
    return VALID


def _refuse(reason: str) -> int:
    print(f"ratekeeper check-config: {' '.join(reason.split())}", file=sys.stderr)
    return INVALID


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
