"""What limits do with a request of Flask: admit it, or raise; and what its response reports of them."""

from __future__ import annotations

import functools
from typing import NamedTuple

from flask import Request, Response, current_app, request
from werkzeug.exceptions import TooManyRequests

from ratekeeper.decision import Decision
from ratekeeper.errors import RateLimited
from ratekeeper.http import Admission, Answer, Gate, Reply
from ratekeeper.http.reports import Report
from ratekeeper.integrations.wsgi import Counted, EnvironRequest

_PASSED = "ratekeeper.passed"  # the key in the environ for the limits that a request has passed


class RateLimitExceeded(RateLimited, TooManyRequests):
    """A denied request: an HTTP error of status 429 that carries its `decision`."""

    def __init__(self, decision: Decision, reply: Reply) -> None:
        RateLimited.__init__(self, decision)
        response = current_app.response_class(reply.body, reply.status, reply.headers)
        TooManyRequests.__init__(self, reply.detail or f"Rate limit exceeded; {decision.advice}", response)


class _Passed(NamedTuple):
    """A limit that a request has passed, and its decision."""

    gate: Gate
    request: EnvironRequest
    admission: Admission
    report: Report


def current() -> Request:
    """Return the request itself, because each access through Flask's proxy costs as much as a decision."""
    return request._get_current_object()  # type: ignore[attr-defined, no-any-return]  # noqa: SLF001 - third-party, documented


def answers_preflight(own: Request) -> bool:
    """Tell whether a request is a CORS preflight that Flask answers by itself, so that no view runs."""
    is_preflight = "Origin" in own.headers and "Access-Control-Request-Method" in own.headers
    return is_preflight and bool(getattr(own.url_rule, "provide_automatic_options", False))


def is_static(endpoint: str) -> bool:
    """Tell whether an endpoint serves the static files of the application or a blueprint, and is no view named so."""
    owner, _, name = endpoint.rpartition(".")
    return name == "static" and (current_app.blueprints[owner] if owner else current_app).has_static_folder


def admit(own: Request, gate: Gate) -> Decision | None:
    """Admit a request, after its delay if any, or raise RateLimitExceeded; None means that it is not limited."""
    asked = EnvironRequest(own.environ, own)
    admission = gate.admit(asked, correctable=False)
    if admission is None:
        return None
    own.environ.setdefault(_PASSED, []).append(_Passed(gate, asked, admission, gate.report(own.environ, admission)))
    if not admission.decision.allowed:
        raise RateLimitExceeded(admission.decision, gate.denial(asked, admission))
    if admission.decision.delay:
        gate.hold(admission)
    return admission.decision


def tell(response: Response) -> Response:
    """Add the headers of the tightest limit, and schedule the settlement of all limits."""
    passed: list[_Passed] | None = current().environ.pop(_PASSED, None)
    if passed is None:
        return response
    names = {name.lower() for name, _ in response.headers}
    for name, value in passed[-1].report.fields():
        if name.lower() not in names:  # headers that are set already are kept
            response.headers.add(name, value)
    for each in passed:
        if each.admission.settles:
            _settle_at_end(each, response)
    return response


def _settle_at_end(passed: _Passed, response: Response) -> None:
    def settle(size: int) -> None:
        passed.gate.settle(passed.request, passed.admission, Answer(response.status_code, size))

    if response.is_streamed:
        response.response = Counted(response.iter_encoded(), settle)
    else:
        response.call_on_close(functools.partial(settle, response.calculate_content_length() or 0))
