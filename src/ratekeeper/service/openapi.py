"""The OpenAPI document of the service; tests check the responses against it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ratekeeper.algorithms import ALGORITHMS, Rule
from ratekeeper.keys import MAX_PARTS
from ratekeeper.rules import MODE, WINDOW
from ratekeeper.service import openapi_policies, operating_paths
from ratekeeper.service.batches import MAX_HITS
from ratekeeper.service.bodies import MAX_RULES_IN_BODY, RULE_FIELDS
from ratekeeper.service.openapi_operations import Schema, call, call_with_body, named, response, shape
from ratekeeper.service.openapi_policies import ATTRIBUTES, POLICY, REASONS

_QUANTITY: Schema = {
    "anyOf": [
        {"type": "number", "exclusiveMinimum": 0},
        {"type": "string", "minLength": 1, "maxLength": 200},
        {"type": "null"},
    ]
}
_COUNT: Schema = {"type": ["integer", "null"], "minimum": 1, "maximum": 10**12}
_KEY: Schema = {
    "description": "The key to limit, at most 1 KiB. An array is a key with several parts.",
    "anyOf": [
        {"type": "string", "minLength": 1, "maxLength": 1024},
        {"type": "integer"},
        {"type": "array", "minItems": 1, "maxItems": MAX_PARTS, "items": {"type": ["string", "integer"]}},
    ],
}
_LIMIT: Schema = {
    **_COUNT,
    "description": "Units per window. In a bucket, it stands for the capacity, and limit per window for the rate.",
}
_WINDOW: Schema = {**_QUANTITY, "default": WINDOW, "description": "Seconds, or a text such as '1m' or '250ms'."}
_RATE: Schema = {**_QUANTITY, "description": "Units per second, or a text such as '10/minute'."}
_KINDS = {"count": _COUNT, "window": _WINDOW, "rate": _RATE}
_TEXT: Schema = {
    "type": "string",
    "description": "A rule as a text, such as '100/minute' or 'leaky-bucket 5/s burst 20 shaping'.",
    "examples": ["100/minute", "10/s burst 20"],
}


def _rule_shapes(more_required: Schema, more: Schema) -> list[Schema]:
    """Return the schemas of a rule as fields: one for each set of algorithms with the same fields."""
    alike: dict[Any, list[type[Rule]]] = {}
    for algorithm in ALGORITHMS:
        modes = tuple(variant.mode for variant in algorithm.variants)
        alike.setdefault((algorithm.fields, modes), []).append(algorithm)
    return [_rule_shape(algorithms, more_required, more) for algorithms in alike.values()]


def _rule_shape(algorithms: list[type[Rule]], more_required: Schema, more: Schema) -> Schema:
    """Return the schema of algorithms that have the same fields; null is as if a field was not given."""
    names = [name for algorithm in algorithms for name in (algorithm.algorithm, *algorithm.aliases)]
    spellings = dict.fromkeys((*names, *(name.replace("-", "_") for name in names)))
    fields: Schema = {name: {"type": "null"} for name in RULE_FIELDS[1:]}
    fields |= {"limit": _LIMIT, "window": _WINDOW, "mode": {"enum": [MODE, None]}}
    for field in algorithms[0].fields:
        if field.kind == "mode":
            modes = [variant.mode for variant in algorithms[0].variants]
            fields[field.name] = {"enum": [*modes, None], "default": modes[0]}
        elif field.name not in ("limit", "window"):
            fields[field.name] = _KINDS[field.kind]
    enough = [field.name for field in algorithms[0].fields if field.kind in ("count", "rate")]
    given = shape({"algorithm": {"enum": list(spellings)}, **more_required}, fields | more)
    return given | {"anyOf": [{"required": ["limit"]}, {"required": enough}]}


def _by_name(schema: Schema, description: str, least: int = 0) -> Schema:
    return {
        "type": "object",
        "description": description,
        "propertyNames": {"minLength": 1, "maxLength": 100},
        "additionalProperties": schema,
        "minProperties": least,
        "maxProperties": MAX_RULES_IN_BODY,
    }


_COST: Schema = {"type": "integer", "minimum": 1, "default": 1}
_COSTS: Schema = {
    "anyOf": [
        _COST,
        _by_name({"type": "integer", "minimum": 0}, "A cost for each rule in `rules`; 0 excludes that rule."),
    ]
}
_RULES = _by_name({"anyOf": [_TEXT, *_rule_shapes({}, {})]}, "Rules by name, decided together: all or nothing.", 1)
_KEYS = _by_name(_KEY, "A key for each rule in `rules`.", 1)
_ASK: Schema = {
    "description": (
        "One rule, as fields or as text, with a key; or several rules, with one key for all or for each; "
        "or a policy, with the attributes of a request."
    ),
    "anyOf": [
        *_rule_shapes({"key": _KEY}, {"cost": _COST}),
        shape({"key": _KEY, "rule": _TEXT}, {"cost": _COST}),
        shape({"key": _KEY, "rules": _RULES}, {"cost": _COSTS}),
        shape({"keys": _KEYS, "rules": _RULES}, {"cost": _COSTS}),
        shape({"policy": POLICY}, {"attributes": ATTRIBUTES, "cost": _COSTS}),
    ],
    "examples": [
        {"key": "ada", "rule": "100/minute"},
        {"key": "ada", "algorithm": "sliding_window_log", "limit": 100},
        {"key": "ada", "algorithm": "token-bucket", "capacity": 20, "refill_rate": 10, "cost": 3},
        {"rules": {"user": "10/s burst 20", "all": "1000/minute"}, "keys": {"user": "ada", "all": "all"}},
        {"policy": "api", "attributes": {"user": "ada", "method": "POST", "path": "/v1/items"}},
    ],
}
_SECONDS: Schema = {"type": "number", "minimum": 0}
_DECISION: Schema = {
    "type": "object",
    "properties": {
        "allowed": {"type": "boolean"},
        "limit": {
            "type": ["integer", "null"],
            "description": "The limit or capacity of the deciding rule; null if no rule of the policy applies.",
        },
        "remaining": {
            "type": ["integer", "null"],
            "minimum": 0,
            "description": "How many more hits of cost 1 would be admitted now; null if no rule applies.",
        },
        "retry_after": {
            "type": ["number", "null"],
            "minimum": 0,
            "description": "Seconds until the same hit would be admitted; 0 when allowed, null for never.",
        },
        "reset_after": {**_SECONDS, "description": "Seconds until the key is back to full capacity."},
        "delay": {**_SECONDS, "description": "Seconds to delay an admitted request (shaping leaky bucket)."},
        "rule": {"type": "string", "description": "The name of the deciding rule: the tightest one."},
        "layers": {
            "type": "object",
            "additionalProperties": {"$ref": "#/components/schemas/Decision"},
            "description": "The decision of each rule, by name, when there are several.",
        },
        "degraded": {
            "type": "boolean",
            "description": "Whether the store was unavailable and this process decided instead.",
        },
        "shadow_denied": {
            "type": "array",
            "items": {"type": "string"},
            "description": "The rules that would have denied the request, but are only tried out.",
        },
    },
}
_DECISION["required"] = list(_DECISION["properties"])
_PROBLEM: Schema = {
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "field": {"type": "string", "description": "The field of the request that is invalid."},
        "reasons": REASONS,
    },
    "required": ["type", "title", "status", "detail"],
}
_BATCH: Schema = shape(
    {
        "requests": {
            "type": "array",
            "maxItems": MAX_HITS,
            "items": {
                "anyOf": [{"$ref": "#/components/schemas/Ask"}, {}],
                "description": "A body of /v1/hit; anything else is answered by an error in its place.",
            },
        }
    },
    {},
)
_FAULT: Schema = {
    "type": "object",
    "properties": {
        "error": {"type": "string", "description": "What is wrong with this request; it consumed nothing."},
        "field": {"type": ["string", "null"], "description": "The field of the request that is invalid."},
    },
    "required": ["error", "field"],
}
_DECISIONS: Schema = {
    "type": "object",
    "properties": {
        "decisions": {
            "type": "array",
            "description": "One for each request, in order.",
            "items": {"anyOf": [{"$ref": "#/components/schemas/Decision"}, _FAULT]},
        }
    },
    "required": ["decisions"],
}
_INSPECTION: Schema = {
    "type": "object",
    "properties": {
        "rule": {"type": "string"},
        "state": {
            "type": "object",
            "description": "Count, tokens, level and so on; times in seconds; of a log, the newest 1,000 entries.",
        },
        "raw": {"description": "The value as stored, cut to its end if it is long; null for an unused key."},
        "encoding": {"enum": ["json", "text", "base64"], "description": "The encoding of `raw`."},
        "ttl": {"type": ["number", "null"], "description": "Seconds until the store expires the key."},
        "bytes": {"type": "integer"},
        "name": {"type": ["string", "null"], "description": "The name of the key in Redis or in the file."},
    },
}
_INSPECTION["required"] = list(_INSPECTION["properties"])
_COUNTS: Schema = {
    "type": "object",
    "properties": {name: {"type": "integer", "minimum": 0} for name in ("admitted", "denied", "degraded")},
    "required": ["admitted", "denied", "degraded"],
}
_STORE: Schema = {"type": "string", "enum": ["healthy", "degraded"]}
_LIVE: Schema = {
    "type": "object",
    "properties": {
        **_COUNTS["properties"],
        "seconds": {"type": "array", "items": _COUNTS, "description": "One entry per second, the newest last."},
        "store": _STORE,
    },
    "required": [*_COUNTS["required"], "seconds", "store"],
}


def _get(summary: str, answer: Schema, others: Mapping[str, Schema] | None = None) -> Schema:
    return {"get": call(summary, answer, others=others)}


def _post(summary: str, answer: Schema, **more: Any) -> Schema:
    return {"post": call_with_body(summary, answer, **more)}


def document() -> Schema:
    """Return the document."""
    ok: Schema = {"type": "object", "properties": {"ok": {"const": True}}, "required": ["ok"]}
    health: Schema = {"type": "object", "properties": {"status": {"const": "ok"}}, "required": ["status"]}
    ready: Schema = {"type": "object", "properties": {"status": _STORE}, "required": ["status"]}
    stopping: Schema = {"type": "object", "properties": {"status": {"const": "stopping"}}, "required": ["status"]}
    seen: Schema = {
        "type": "object",
        "properties": {"rules": {"type": "object", "additionalProperties": _INSPECTION}},
        "required": ["rules"],
    }
    decision = named("Decision")
    return {
        "openapi": "3.1.0",
        "info": {"title": "ratekeeper", "version": "1", "description": "Exact rate limiting over HTTP."},
        "paths": {
            "/v1/hit": _post(
                "Consume the cost if the rules allow it, all or nothing",
                decision,
                decides=True,
                may_deny=True,
                may_need_token=True,
            ),
            "/v1/hit/batch": _post(
                "Make many hits, each decided by itself", _DECISIONS, body=_BATCH, largest="512 KiB"
            ),
            "/v1/peek": _post(
                "Show whether a hit would be admitted, without changing anything",
                decision,
                decides=True,
                may_deny=True,
                may_need_token=True,
            ),
            "/v1/charge": _post("Consume the cost unconditionally", decision, decides=True, needs_token=True),
            "/v1/refund": _post("Give back, at most what is in use", decision, decides=True, needs_token=True),
            "/v1/reset": _post("Delete the usage of the key", ok, needs_token=True),
            "/v1/inspect": _post("Show how the key is stored", seen, needs_token=True),
            **openapi_policies.paths(),
            **operating_paths.PATHS,
            "/v1/live": _get("Return decision counts, in total and per second", _LIVE),
            "/healthz": _get("Check that the process is running", health),
            "/readyz": _get(
                "Check the store; the service keeps deciding while it is unavailable",
                ready,
                {"503": response("The service is told to stop.", stopping)},
            ),
            "/openapi.json": _get("Return this document", {"type": "object"}),
        },
        "components": {
            "schemas": {"Ask": _ASK, "Decision": _DECISION, "Problem": _PROBLEM},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
