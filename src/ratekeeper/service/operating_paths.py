"""What the OpenAPI document says of the routes for operators."""

from __future__ import annotations

from typing import Any

from ratekeeper.service.operating import DEFAULT_TOP, MAX_TOP
from ratekeeper.service.talkers import KINDS

_COUNT = {"type": "integer", "minimum": 0}
_KEY = {"description": "A hash; with --show-keys, the key itself: a text, a number, or an array of these."}
_TALKER = {
    "type": "object",
    "properties": {
        "policy": {"type": "string", "description": "Empty for a rule that clients send."},
        "rule": {"type": "string", "description": "Its name; of a rule that clients send, its text."},
        "key": _KEY,
        "cost": {**_COUNT, "description": "What was admitted, or denied, at least."},
    },
    "required": ["policy", "rule", "key", "cost"],
}
_TOP = {
    "type": "object",
    "properties": {
        "by": {"type": "string", "enum": [*KINDS]},
        "seconds": {"type": "number", "description": "The time that it covers, from one to two minutes."},
        "cost": {**_COUNT, "description": "The cost of all keys."},
        "missed": {**_COUNT, "description": "What the cost of a key may be too low by; a thousandth of all at most."},
        "hashed": {"type": "boolean", "description": "Whether keys are shown as hashes."},
        "keys": {"type": "array", "items": _TALKER, "description": "The heaviest ones, the first the heaviest."},
    },
    "required": ["by", "seconds", "cost", "missed", "hashed", "keys"],
}


def _problem(description: str) -> dict[str, Any]:
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {"description": description, "content": content}


_OFF = _problem("Metrics are switched off.")
_HOST = _problem("Unknown host in the Host header.")
PATHS: dict[str, Any] = {
    "/metrics": {
        "get": {
            "summary": "Return the figures of all workers for Prometheus",
            "responses": {
                "200": {
                    "description": "In the text format of Prometheus, or in OpenMetrics if that is accepted.",
                    "content": {
                        "text/plain": {"schema": {"type": "string"}},
                        "application/openmetrics-text": {"schema": {"type": "string"}},
                    },
                },
                "403": _problem("The request came from another site's page."),
                "404": _OFF,
                "421": _HOST,
            },
        }
    },
    "/v1/top": {
        "get": {
            "summary": "Return the keys that were admitted or denied the most",
            "parameters": [
                {
                    "name": "by",
                    "in": "query",
                    "schema": {"type": "string", "enum": [*KINDS], "default": KINDS[0]},
                },
                {
                    "name": "n",
                    "in": "query",
                    "schema": {"type": "integer", "minimum": 1, "maximum": MAX_TOP, "default": DEFAULT_TOP},
                },
            ],
            "responses": {
                "200": {"description": "OK.", "content": {"application/json": {"schema": _TOP}}},
                "400": _problem("Invalid parameter."),
                "401": _problem("The token is missing or wrong."),
                "403": _problem("From another site's page or, if there is no token, from another machine."),
                "404": _OFF,
                "421": _HOST,
            },
            "security": [{"token": []}, {}],
        }
    },
}
