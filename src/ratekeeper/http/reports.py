"""What a response reports: of all decisions on its request, the tightest.

A request may pass several limits, each with a gate of its own. They find the report of the request in its `context`:
the ASGI scope, the WSGI environ, or whatever else all limits of one request have in common.
Whoever comes last to the response finds the headers of the tightest decision set already, and leaves them.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from ratekeeper.decision import Decision
from ratekeeper.http.admission import Admission
from ratekeeper.http.headers import EncodedFields, Fields

_IN_CONTEXT = "ratekeeper.report"
_CONTEXTS = ("context", "scope", "environ", "META")  # where requests of the frameworks have their context


class Report:
    """The tightest decision on one request so far, and the headers that report it."""

    __slots__ = ("_admission", "_now")

    def __init__(self, admission: Admission, now: float) -> None:
        self._admission = admission
        self._now = now

    def include(self, admission: Admission, now: float) -> None:
        """Report this decision if it is tighter; of two that are alike, the first."""
        if _room(admission.decision) < _room(self._admission.decision):
            self._admission, self._now = admission, now

    @property
    def decision(self) -> Decision:
        """The tightest decision."""
        return self._admission.decision

    def fields(self) -> Fields:
        """Return the headers, as names and values."""
        told = self._admission
        return told.http_limiter.writer.fields(told.decision, told.key, self._now, told.after)

    def encoded_fields(self) -> EncodedFields:
        """Return the same headers in bytes, with the names in lower case."""
        told = self._admission
        return told.http_limiter.writer.encoded(told.decision, told.key, self._now, told.after)


def report(context: MutableMapping[str, Any], admission: Admission, now: float) -> Report:
    """Return the report of a request, which includes this decision from now on; `now` is in seconds."""
    known: Report | None = context.get(_IN_CONTEXT)
    if known is None:
        known = context[_IN_CONTEXT] = Report(admission, now)
    else:
        known.include(admission, now)
    return known


def reported(context: MutableMapping[str, Any]) -> Report | None:
    """Return the report of a request that has come to a limit."""
    return context.get(_IN_CONTEXT)


def current_decision(request: Any) -> Decision | None:
    """Return the tightest decision on a request so far; None if it has come to no limit.

    `request` is a request of any framework, an ASGI scope or a WSGI environ.
    """
    found = (getattr(request, name, None) for name in _CONTEXTS)
    context = next((each for each in found if isinstance(each, MutableMapping)), request)
    report = reported(context) if isinstance(context, MutableMapping) else None
    return None if report is None else report.decision


def _room(decision: Decision) -> tuple[bool, float]:
    """Return what orders decisions, the tightest first: denials, by the longest wait, then by what remains."""
    return decision.allowed, decision.room if decision.allowed else -decision.retry_after
