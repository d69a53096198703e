"""The part of the OpenAPI document about policies, overrides and the audit trail."""

from __future__ import annotations

from ratekeeper.policies.build import NAME
from ratekeeper.policies.runtime_overrides import LONGEST
from ratekeeper.service.openapi_operations import (
    HEADERS,
    RETRY_AFTER,
    Schema,
    all_of,
    call,
    call_with_body,
    named,
    problem,
    shape,
)

POLICY: Schema = {"type": "string", "pattern": f"^{NAME.pattern}$", "description": "The name of a policy in force."}
ATTRIBUTES: Schema = {
    "type": ["object", "null"],
    "description": "What the request says of itself, by name; 42 and '42' are the same.",
    "additionalProperties": {"type": ["string", "integer"]},
}
_MOMENT: Schema = {"type": "string", "format": "date-time"}
_VERSION: Schema = {"type": "integer", "minimum": 0}
_TEXT: Schema = {"type": "string"}
_EDITION: Schema = {
    "version": _VERSION,
    "digest": {"type": "string", "description": "The same for the same text."},
    "at": _MOMENT,
    "by": {"type": "string", "description": "Where it came from: a client's address, or a file."},
    "format": {"enum": ["toml", "yaml", "json"]},
    "bytes": {"type": "integer"},
}
REASONS: Schema = {
    "type": "array",
    "description": "All mistakes.",
    "items": all_of(
        {
            "line": {"type": ["integer", "null"]},
            "place": _TEXT,
            "reason": _TEXT,
            "suggestion": {"type": ["string", "null"], "description": "The nearest valid word."},
        }
    ),
}
_REFUSED: Schema = all_of({"version": {"type": ["integer", "null"]}, "at": _MOMENT, "by": _TEXT, "reasons": REASONS})
_IN_FORCE: Schema = {
    "type": "object",
    "properties": {
        **_EDITION,
        "source": {
            "type": "object",
            "properties": {"kind": {"enum": ["none", "file", "store", "program"]}, "path": _TEXT},
            "required": ["kind"],
        },
        "policies": {"type": "object"},
        "text": {"type": "string", "description": "The policies as they were written."},
        "refused": {
            "description": "The latest change, if it was refused because of mistakes.",
            "anyOf": [_REFUSED, {"type": "null"}],
        },
    },
    "required": ["version", "source", "policies", "text", "refused"],
}
_WHEN: Schema = {
    "type": "object",
    "maxProperties": 16,
    "additionalProperties": {"anyOf": [{"type": ["string", "integer"]}, {"type": "array"}]},
    "description": "The requests that it is for, as in a policy file; {} is for every request.",
}
_SECONDS: Schema = {"type": "number", "exclusiveMinimum": 0, "maximum": LONGEST, "description": "Seconds."}
_OVERRIDE: Schema = shape(
    {
        "policy": POLICY,
        "when": _WHEN,
        "limits": {
            "description": "'unlimited', 'blocked', or a limit by rule.",
            "anyOf": [{"enum": ["unlimited", "blocked"]}, {"type": "object", "minProperties": 1}],
        },
        "expires_in": _SECONDS,
    }
)
_STORED_OVERRIDE: Schema = all_of(
    {
        "id": _TEXT,
        "policy": _TEXT,
        "when": {"type": "object", "additionalProperties": {"type": "array", "items": _TEXT}},
        "limits": {"type": ["string", "object"]},
        "expires_in": {"type": "number", "minimum": 0},
        "expires_at": _MOMENT,
        "set_at": _MOMENT,
        "by": _TEXT,
    }
)
_EXPLAINED: Schema = all_of(
    {
        "rule": _TEXT,
        "applies": {"type": "boolean"},
        "limit": {"type": "string", "description": "The limit that counts for this request."},
        "reason": {"type": "string", "description": "Why the rule does not apply."},
        "key": {"type": ["string", "null"]},
        "cost": {"type": ["integer", "null"]},
        "shadow": {"type": "boolean", "description": "Whether the rule is only tried out."},
        "standing": {
            "description": "How the key stands: what this rule alone would decide on a hit.",
            "anyOf": [named("Decision"), {"type": "null"}],
        },
    }
)
_ENTRY: Schema = all_of({"at": _MOMENT, "what": _TEXT, "from": _TEXT, "process": _TEXT})
_POLICY_FILE: Schema = {
    "type": "object",
    "required": ["policies"],
    "properties": {"policies": {"type": "object", "minProperties": 1}},
    "description": "A policy file. `ratekeeper schema` prints its schema.",
}
_OK: Schema = all_of({"ok": {"const": True}})
_ID: Schema = {
    "name": "id",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": f"^{NAME.pattern}$"},
}
_FORMER: Schema = {
    "name": "version",
    "in": "path",
    "required": True,
    "schema": {"type": "integer", "minimum": 1, "maximum": 10**15},
}
_IF_MATCH: Schema = {
    "name": "If-Match",
    "in": "header",
    "required": True,
    "description": "The version that is replaced; 0 if there is none yet.",
    "schema": {"type": "string", "pattern": "^[0-9]{1,15}$"},
}
_NO_POLICIES = {"409": "No policies are served."}
_AWAY = {"503": "The store is unavailable."}


def _forward_auth() -> Schema:
    """Return the call by which proxies ask, whose answer has no body if the request is admitted."""
    text: Schema = {"type": "string"}
    said = {
        "X-Forwarded-For": "The address of the client, read from the right past trusted proxies.",
        "X-Forwarded-Host": "The host that it asks.",
        "X-Forwarded-Method": "Its method.",
        "X-Forwarded-Uri": "Its path, as it is written, with the query.",
    }
    deny: Schema = {"type": "string", "enum": ["403", "429"], "default": "429"}
    parameters: list[Schema] = [
        {"name": "policy", "in": "path", "required": True, "schema": POLICY},
        {"name": "deny", "in": "query", "description": "The status of a denial.", "schema": deny},
        *({"name": name, "in": "header", "description": what, "schema": text} for name, what in said.items()),
    ]
    denied = problem("Denied.") | {"headers": HEADERS | RETRY_AFTER}
    operation = call(
        "Decide on a request for a proxy, such as nginx with auth_request",
        {},
        others={
            "400": "The policy asks for an attribute that the request has not, or a parameter is invalid.",
            "404": "There is no such policy.",
            "429": denied,
            "503": "The store is unavailable.",
        },
        parameters=parameters,
        may_need_token=True,
    )
    del operation["responses"]["200"]
    operation["responses"] |= {
        "204": {"description": "Admitted.", "headers": HEADERS},
        "403": problem("Denied with deny=403, or the caller is no trusted proxy."),
    }
    return operation


def paths() -> Schema:
    """Return the calls, by path."""
    version = all_of(_EDITION)
    return {
        "/v1/forward-auth/{policy}": {"get": _forward_auth()},
        "/v1/policies": {
            "get": call("Show the policies in force", _IN_FORCE, others=_AWAY, needs_token=True),
            "put": call_with_body(
                "Replace the policies that are kept in the store; TOML and YAML are read as well",
                version,
                body=_POLICY_FILE,
                largest="4 MiB",
                parameters=[_IF_MATCH],
                others={
                    "409": "The policies are not kept in the store.",
                    "412": "Others have replaced this version already.",
                    "428": "If-Match is missing.",
                },
                needs_token=True,
            ),
        },
        "/v1/policies/reload": {
            "post": call(
                "Read the policies again",
                {"type": "object", "properties": {"changed": {"type": "boolean"}, **_EDITION}, "required": ["changed"]},
                others={
                    "400": "The policies have mistakes; nothing was changed.",
                    "408": "The body did not arrive within ten seconds.",
                    "409": "There is nothing to read.",
                    "413": "The body is larger than 64 KiB.",
                    "415": "The body is not application/json.",
                    **_AWAY,
                },
                needs_token=True,
            ),
        },
        "/v1/policies/history": {
            "get": call(
                "List the last twenty versions, the newest first",
                all_of({"versions": {"type": "array", "items": version}}),
                others=_NO_POLICIES | _AWAY,
                needs_token=True,
            )
        },
        "/v1/policies/history/{version}": {
            "get": call(
                "Show one of the last twenty versions",
                all_of({**_EDITION, "text": _TEXT}),
                parameters=[_FORMER],
                others={"404": "It is not one of the last twenty.", **_NO_POLICIES, **_AWAY},
                needs_token=True,
            )
        },
        "/v1/overrides": {
            "get": call(
                "List the overrides at run time, the newest first",
                all_of({"overrides": {"type": "array", "items": _STORED_OVERRIDE}}),
                others=_NO_POLICIES | _AWAY,
                needs_token=True,
            )
        },
        "/v1/overrides/{id}": {
            "put": call_with_body(
                "Put other limits in force for some requests and some time",
                _STORED_OVERRIDE,
                body=_OVERRIDE,
                parameters=[_ID],
                others=_NO_POLICIES,
                needs_token=True,
            ),
            "delete": call(
                "End an override",
                _OK,
                parameters=[_ID],
                others={"404": "It is not in force.", **_NO_POLICIES, **_AWAY},
                needs_token=True,
            ),
        },
        "/v1/explain": {
            "post": call_with_body(
                "Show the rules, keys and limits that a request would meet, and how each stands",
                all_of(
                    {
                        "policy": _TEXT,
                        "override": {"type": ["string", "null"], "description": "The override that counts."},
                        "rules": {"type": "array", "items": _EXPLAINED},
                        "decision": named("Decision"),
                    }
                ),
                body=shape({"policy": POLICY}, {"attributes": ATTRIBUTES, "cost": {"type": "integer", "minimum": 1}}),
                needs_token=True,
            )
        },
        "/v1/audit": {
            "get": call(
                "List the latest changes of policies and overrides, the newest first",
                all_of({"entries": {"type": "array", "items": _ENTRY}}),
                others=_NO_POLICIES | _AWAY,
                needs_token=True,
            )
        },
    }
