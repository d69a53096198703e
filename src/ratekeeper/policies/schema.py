"""The JSON Schema of a policy file, for editors that complete and check it."""

from __future__ import annotations

from typing import Any, get_args

from ratekeeper.algorithms import ALGORITHMS, BY_NAME
from ratekeeper.arguments import LONGEST_LEASE
from ratekeeper.fallback import OnError
from ratekeeper.policies.build import (
    MAX_ATTRIBUTES,
    MAX_CALLERS,
    MAX_CHARACTERS,
    MAX_OVERRIDES,
    MAX_PATTERNS,
    MAX_POLICIES,
    MAX_RULES,
    NAME,
    WORDS,
)
from ratekeeper.policies.caller_hashes import PATTERN

Schema = dict[str, Any]

_NAME: Schema = {"type": "string", "pattern": f"^{NAME.pattern}$"}
_ATTRIBUTE = r"\{[^{}|]+(\|[^{}|]*)?\}"
_COUNT: Schema = {"type": "integer", "minimum": 1}
_KINDS: dict[str, Schema] = {
    "count": _COUNT,
    "window": {"type": ["number", "string"], "description": 'Seconds, or a text such as "5m".'},
    "rate": {"type": ["number", "string"], "description": 'Units per second, or a text such as "10/minute".'},
    "mode": {"enum": list(dict.fromkeys(each.mode for kind in ALGORITHMS for each in kind.variants if each.mode))},
}


def schema() -> Schema:
    """Return the schema."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "ratekeeper policies",
        "type": "object",
        "required": ["policies"],
        "additionalProperties": False,
        "properties": {
            "$schema": {"type": "string"},
            "policies": {
                "description": "The policies, by name.",
                "type": "object",
                "minProperties": 1,
                "maxProperties": MAX_POLICIES,
                "propertyNames": _NAME,
                "additionalProperties": {"$ref": "#/$defs/policy"},
            },
        },
        "$defs": {
            "policy": _policy(),
            "rule": _rule(),
            "override": _override(),
            "limit": _limit(),
            "when": _when(),
            "pattern": {"type": ["string", "integer"], "maxLength": MAX_CHARACTERS},
        },
    }


def _policy() -> Schema:
    return _table(
        "A named set of rules that are decided together, all or nothing.",
        ["rules"],
        on_error={"enum": list(get_args(OnError)), "description": "What decisions are while the store is away."},
        local_share={
            "description": "The part of the limits that each process enforces while the store is away.",
            "type": "number",
            "minimum": 1e-6,
            "maximum": 1,
        },
        lease={
            "description": "Seconds for which a process may take usage of hot keys ahead; for one rule only.",
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": LONGEST_LEASE,
        },
        callers={
            "description": "Hashes of the tokens that callers of the service send, as ratekeeper token prints them.",
            "type": "array",
            "minItems": 1,
            "maxItems": MAX_CALLERS,
            "items": {"type": "string", "pattern": PATTERN},
        },
        shadow={"type": "boolean", "description": "Whether the policy is only tried out: it denies nothing."},
        rules={"type": "array", "minItems": 1, "maxItems": MAX_RULES, "items": {"$ref": "#/$defs/rule"}},
        overrides={
            "description": "Other limits for some requests: the first that matches counts.",
            "type": "array",
            "maxItems": MAX_OVERRIDES,
            "items": {"$ref": "#/$defs/override"},
        },
    )


def _rule() -> Schema:
    return _table(
        "One rule of a policy.",
        ["name", "limit", "key"],
        name={**_NAME, "description": "The name in decisions, headers and metrics."},
        limit={"$ref": "#/$defs/limit"},
        key={
            "description": 'What is counted: "{user}" for each user, "{user|anonymous}" with a default, "all".',
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_CHARACTERS,
            "pattern": rf"^([^{{}}]|{_ATTRIBUTE})+$",
        },
        when={"$ref": "#/$defs/when"},
        cost={
            "description": 'What a request costs: a number, or an attribute such as "{tokens}".',
            "anyOf": [
                {"type": "integer", "minimum": 0},
                {"type": "string", "pattern": r"^\{[^{}|]+(\|[0-9]{1,18})?\}$"},
            ],
        },
        shadow={"type": "boolean", "description": "Whether the rule is only tried out: it denies nothing."},
    )


def _override() -> Schema:
    return _table(
        "Other limits for the requests that meet its conditions.",
        ["when", "limits"],
        when={"$ref": "#/$defs/when"},
        limits={
            "description": "The limits by rule, or one word for all rules.",
            "anyOf": [
                {"enum": list(WORDS)},
                {"type": "object", "minProperties": 1, "additionalProperties": {"$ref": "#/$defs/limit"}},
            ],
        },
    )


def _limit() -> Schema:
    fields = {field.name: _KINDS[field.kind] for kind in ALGORITHMS for field in kind.fields}
    names = [spelling for name in BY_NAME for spelling in dict.fromkeys((name, name.replace("-", "_")))]
    return {
        "description": 'A limit such as "100/minute", "10/s burst 20" or "fixed-window 5/15minutes", or its fields.',
        "anyOf": [
            {"type": "string", "minLength": 1, "examples": ["100/minute", "10/s burst 20", *WORDS]},
            _table(
                "The fields of a limit.", ["algorithm"], **{"algorithm": {"enum": names}, "limit": _COUNT, **fields}
            ),
        ],
    }


def _when() -> Schema:
    return {
        "description": "Conditions on attributes, all of which must be met; `*` matches any run of characters.",
        "type": "object",
        "maxProperties": MAX_ATTRIBUTES,
        "propertyNames": {"minLength": 1, "maxLength": MAX_CHARACTERS},
        "additionalProperties": {
            "anyOf": [
                {"$ref": "#/$defs/pattern"},
                {"type": "array", "minItems": 1, "maxItems": MAX_PATTERNS, "items": {"$ref": "#/$defs/pattern"}},
            ]
        },
    }


def _table(description: str, required: list[str], **properties: Schema) -> Schema:
    return {
        "description": description,
        "type": "object",
        "required": required,
        "additionalProperties": False,
        "properties": properties,
    }
