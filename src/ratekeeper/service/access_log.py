"""A line in the log for each request over HTTP: what was asked and answered, and nothing of what it was about."""

from __future__ import annotations

import logging

from ratekeeper.clock import stopwatch
from ratekeeper.service.web import Response, ServiceRequest

_MAX_PATH = 200
_log = logging.getLogger("ratekeeper.access")


def log_access(request: ServiceRequest, response: Response, began_ns: int) -> None:
    """Log a request that has been answered. Its query, its body and its headers are not for the log."""
    took_ms = round((stopwatch() - began_ns) / 1e6, 3)
    path = request.path[:_MAX_PATH]
    size = len(response.body)
    fields = {
        "client": request.client,
        "method": request.method,
        "path": path,
        "status": response.status,
        "bytes": size,
        "ms": took_ms,
    }
    _log.info(
        "%s %s %s %d %d bytes %.3f ms",
        *(request.client or "-", request.method, path, response.status, size, took_ms),
        extra={"fields": fields},
    )
