"""Rate limits for the Django REST framework, as a throttle class.

    class Burst(RateLimitThrottle):
        limit = "60/minute"

Without `limit`, the rate is that of the throttle's `scope` in `REST_FRAMEWORK["DEFAULT_THROTTLE_RATES"]`. The store
and the options come from the setting `RATEKEEPER`.
"""

from __future__ import annotations

import functools
import math
from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.settings import api_settings
from rest_framework.throttling import BaseThrottle

from ratekeeper.errors import InvalidRule
from ratekeeper.http import Gate, Route, by_address, by_user, first_of
from ratekeeper.http.client_keys import KeyFunction
from ratekeeper.http.routes import CostFunction, Limit
from ratekeeper.integrations.django import DjangoRequest, Spec, gate_for
from ratekeeper.ruleset import Costs, Shadow

__all__ = ["RateLimitThrottle"]


class RateLimitThrottle(BaseThrottle):
    """Throttles by user, or by address for anonymous requests; all views with the same `scope` share their usage.

    With a `policy`, its rules say who is throttled.
    """

    limit: ClassVar[Limit] = None
    policy: ClassVar[str | None] = None
    """The name of a policy, in place of `limit`: one of the setting's `policies`, whose own keys count."""
    key: ClassVar[KeyFunction] = first_of(by_user(), by_address())
    cost: ClassVar[Costs | CostFunction] = 1
    shadow: ClassVar[Shadow | None] = None
    """Whether the rules, or which of them, are only tried out; None: what the setting says."""
    scope: ClassVar[str] = ""
    """The name of the shared usage; by default the name of the class."""

    _retry_after: float | None = None

    def __init_subclass__(cls) -> None:
        """Raise configuration errors where the class is defined."""
        super().__init_subclass__()
        if cls.policy is not None:
            own: Any = cls
            gate_for(Gate, _spec(own))  # raises if the policy is unknown, or the settings are invalid
        elif cls.limit is not None or cls.scope:
            Gate(routes=[_route(cls)])
            gate_for(Gate)

    def allow_request(self, request: Request, view: Any) -> bool:
        """Tell whether a request is admitted, and set the headers of its response."""
        cls: Any = type(self)
        spec = _spec(cls)
        gate: Gate = gate_for(Gate, spec, "" if spec.is_by_policy else cls.scope or cls.__qualname__)
        own = DjangoRequest(request)
        admission = gate.admit(own, correctable=False)
        if admission is None:
            return True
        decision = admission.decision
        # The framework sets Retry-After, from the longest wait of all throttles.
        view.headers.update(
            field for field in gate.report(own.context, admission).fields() if field[0] != "Retry-After"
        )
        if decision.allowed and decision.delay:
            gate.hold(admission)
        self._retry_after = None if decision.allowed or decision.retry_after == math.inf else decision.retry_after
        return decision.allowed

    def wait(self) -> float | None:
        """Return the seconds until a retry; None if a retry cannot succeed."""
        return self._retry_after


def _route(cls: type[RateLimitThrottle]) -> Route:
    if cls.policy is not None:
        key = None if cls.key is RateLimitThrottle.key else cls.key
        return Route("*", cls.limit, key=key, cost=cls.cost, name="", shadow=cls.shadow, policy=cls.policy)
    return Route("*", cls.limit or _configured(cls.scope), key=cls.key, cost=cls.cost, name="", shadow=cls.shadow)


@functools.cache
def _spec(cls: Any) -> Spec:
    return Spec(_route(cls))


def _configured(scope: str) -> str:
    rate = api_settings.DEFAULT_THROTTLE_RATES.get(scope)
    if rate is None:
        raise InvalidRule(f"the throttle has no limit, and DEFAULT_THROTTLE_RATES has no rate for its scope {scope!r}")
    return str(rate)
