"""Inspections of keys as plain data for JSON."""

from __future__ import annotations

import base64
from typing import Any

from ratekeeper.stores.protocol import Inspection

MAX_ENTRIES = 1_000  # the newest ones of a log


def inspection_fields(seen: Inspection) -> dict[str, Any]:
    """Return an inspection as plain data for JSON; `encoding` names the encoding of `raw`."""
    raw, encoding = _readable(seen.raw)
    return {
        "rule": seen.rule,
        "state": newest_entries(seen.state),
        "raw": raw,
        "encoding": encoding,
        "ttl": seen.ttl,
        "bytes": seen.bytes,
        "name": seen.name,
    }


def newest_entries(state: dict[str, Any]) -> dict[str, Any]:
    """Cut a log to its newest entries; its count still covers all."""
    return state | {"entries": state["entries"][-MAX_ENTRIES:]} if "entries" in state else state


def _readable(raw: Any) -> tuple[Any, str]:
    if isinstance(raw, int):
        return f"{raw:#x}", "text"  # many JSON readers have no integers this large
    if isinstance(raw, list | tuple):
        raw = raw[-MAX_ENTRIES:]
    values = raw if isinstance(raw, list) else [raw]
    if not all(isinstance(value, bytes) for value in values):
        return raw, "json"
    if all(value.isascii() and value.decode().isprintable() for value in values):
        texts, encoding = [value.decode() for value in values], "text"
    else:
        texts, encoding = [base64.b64encode(value).decode() for value in values], "base64"
    return (texts if isinstance(raw, list) else texts[0]), encoding
