"""Operations of the OpenAPI document: what each call takes, and how it is answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Schema = dict[str, Any]

_ALWAYS_200: Schema = {
    "name": "always_200",
    "in": "query",
    "description": "1: answer denials with status 200, for callers that read only the body.",
    "schema": {"type": "string", "enum": ["0", "1"]},
}
HEADERS: Schema = {
    name: {"schema": {"type": kind}}
    for name, kind in (
        ("X-RateLimit-Limit", "integer"),
        ("X-RateLimit-Remaining", "integer"),
        ("X-RateLimit-Reset", "integer"),
        ("RateLimit-Policy", "string"),
        ("RateLimit", "string"),
    )
}
RETRY_AFTER: Schema = {
    "Retry-After": {"description": "Absent when the request can never be admitted.", "schema": {"type": "integer"}}
}


def named(name: str) -> Schema:
    """Return a reference to a schema of the document."""
    return {"$ref": f"#/components/schemas/{name}"}


def shape(required: Schema, optional: Schema | None = None) -> Schema:
    """Return the schema of an object with these fields and no others."""
    return {
        "type": "object",
        "properties": required | (optional or {}),
        "required": list(required),
        "additionalProperties": False,
    }


def all_of(properties: Schema) -> Schema:
    """Return the schema of an object in which all of these are present."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def response(
    description: str, schema: Schema, content_type: str = "application/json", headers: Schema | None = None
) -> Schema:
    """Return a response."""
    return {"description": description, "headers": headers or {}, "content": {content_type: {"schema": schema}}}


def problem(description: str) -> Schema:
    """Return the response that is a problem."""
    return response(description, named("Problem"), "application/problem+json")


_TURNED_AWAY: Schema = {
    "403": problem("The request came from another site's page."),
    "421": problem("Unknown host in the Host header."),
}
_NO_TOKEN: Schema = {
    "401": problem("The token is missing or wrong."),
    "403": problem("From another site's page or, if there is no token, from another machine."),
}


def call(
    summary: str,
    answer: Schema,
    *,
    others: Mapping[str, str | Schema] | None = None,
    parameters: Sequence[Schema] = (),
    needs_token: bool = False,
    may_need_token: bool = False,
) -> Schema:
    """Return an operation without a body; `others` are responses, or what their problems are about, by status."""
    told = {status: problem(each) if isinstance(each, str) else each for status, each in (others or {}).items()}
    operation: Schema = {"summary": summary, "responses": {"200": response("OK.", answer), **told, **_TURNED_AWAY}}
    if parameters:
        operation["parameters"] = list(parameters)
    if may_need_token:
        operation["responses"] = {**operation["responses"], "401": _NO_TOKEN["401"]}
    if needs_token:
        operation["responses"] |= _NO_TOKEN
    if needs_token or may_need_token:
        operation["security"] = [{"token": []}, {}]
    return operation


def call_with_body(
    summary: str,
    answer: Schema,
    *,
    body: Schema | None = None,
    largest: str = "64 KiB",
    decides: bool = False,
    may_deny: bool = False,
    others: Mapping[str, str | Schema] | None = None,
    parameters: Sequence[Schema] = (),
    needs_token: bool = False,
    may_need_token: bool = False,
) -> Schema:
    """Return an operation with a body in JSON; by default, one of a decision."""
    statuses: dict[str, str | Schema] = {
        "400": "Invalid body or parameter; nothing was changed.",
        "408": "The body did not arrive within ten seconds.",
        "413": f"The body is larger than {largest}.",
        "415": "The body is not application/json.",
        "503": "The store is unavailable.",
        **(others or {}),
    }
    if decides:
        statuses["200"] = response("Done.", answer, headers=HEADERS)
    if may_deny:
        statuses["429"] = response("Denied; nothing was consumed.", answer, headers=HEADERS | RETRY_AFTER)
        parameters = (*parameters, _ALWAYS_200)
    operation = call(
        summary,
        answer,
        others=statuses,
        parameters=parameters,
        needs_token=needs_token,
        may_need_token=may_need_token,
    )
    return operation | {
        "requestBody": {"required": True, "content": {"application/json": {"schema": body or named("Ask")}}}
    }
