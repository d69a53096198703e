"""Decisions as plain data for JSON."""

from __future__ import annotations

from typing import Any

from ratekeeper.decision import Decision


def decision_fields(decision: Decision) -> dict[str, Any]:
    """Return a decision as plain data for JSON."""
    allowed, limit, remaining, retry_after, reset_after, delay, rule, layers, degraded, shadow_denied = decision
    return {
        "allowed": allowed,
        "limit": limit,
        "remaining": remaining,
        "retry_after": retry_after,
        "reset_after": reset_after,
        "delay": delay,
        "rule": rule,
        "layers": {name: decision_fields(layer) for name, layer in layers.items()} if layers else {},
        "degraded": degraded,
        "shadow_denied": shadow_denied,
    }
