"""The body of a denial: a problem document (RFC 9457), plain text or HTML, as the client accepts."""

from __future__ import annotations

import html
import json
import math
from typing import NamedTuple

from ratekeeper.decision import Decision

PROBLEM_TYPE = "https://iana.org/assignments/http-problem-types#quota-exceeded"
TITLE = "Request cannot be satisfied as assigned quota has been exceeded"
_MEDIA_TYPES = {  # accepted type: type of the body
    "application/problem+json": "application/problem+json",
    "application/json": "application/problem+json",
    "text/plain": "text/plain; charset=utf-8",
    "text/html": "text/html; charset=utf-8",
}
_DEFAULT = "application/problem+json"


class DenialBody(NamedTuple):
    """A body and its content type."""

    content_type: str
    content: bytes


def body(decision: Decision, accept: str = "", detail: str | None = None) -> DenialBody:
    """Return the body of a denial in the format that the `Accept` header asks for; `detail` replaces the usual text."""
    content_type = negotiate(accept)
    detail = _detail(decision) if detail is None else detail
    if content_type.startswith("text/html"):
        text = (
            "<!doctype html><html lang=en><meta charset=utf-8><title>Too many requests</title>"
            f"<h1>Too many requests</h1><p>{html.escape(detail)}</p></html>\n"
        )
    elif content_type.startswith("text/plain"):
        text = f"Too many requests. {detail}\n"
    else:
        text = json.dumps({**problem(decision), "detail": detail})
    return DenialBody(content_type, text.encode())


def problem(decision: Decision) -> dict[str, object]:
    """Return the problem document of a denial."""
    return {
        "type": PROBLEM_TYPE,
        "title": TITLE,
        "status": 429,
        "detail": _detail(decision),
        "violated-policies": violated(decision),
    }


def violated(decision: Decision) -> list[str]:
    """Return the names of the rules that were exceeded."""
    return [name for name, layer in decision.layers.items() if not layer.allowed] or [decision.rule]


def negotiate(accept: str) -> str:
    """Return the content type for an `Accept` header; the default is a problem document."""
    best, best_quality = _DEFAULT, 0.0
    for part in accept[:1000].split(","):
        media_type, *parameters = (piece.strip().lower() for piece in part.split(";"))
        offered = _MEDIA_TYPES.get(media_type) or _any_of(media_type)
        if offered is not None:
            quality = _quality(parameters)
            if quality > best_quality:
                best, best_quality = offered, quality
    return best


def _any_of(media_type: str) -> str | None:
    if media_type in ("*/*", "application/*"):
        return _DEFAULT
    return _MEDIA_TYPES["text/plain"] if media_type == "text/*" else None


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                quality = float(parameter[2:])
            except ValueError:
                return 0.0
            return quality if 0 <= quality <= 1 else 0.0
    return 1.0


def _detail(decision: Decision) -> str:
    if decision.retry_after == math.inf:
        return "This request cannot be admitted."
    seconds = math.ceil(decision.retry_after)
    return f"Try again in {seconds} second{'' if seconds == 1 else 's'}."
