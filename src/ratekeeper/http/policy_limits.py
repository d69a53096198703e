"""A policy as the limit of a route: what a request says of itself, and what the policy makes of it."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal

from ratekeeper import arguments
from ratekeeper.flows import Flow
from ratekeeper.http.header_writers import HeaderWriters
from ratekeeper.http.headers import Headers
from ratekeeper.http.http_limiter import DecidingLimiter
from ratekeeper.http.request import Request
from ratekeeper.http.request_attributes import RequestAttributes
from ratekeeper.notices import Notices
from ratekeeper.rates import show

if TYPE_CHECKING:
    from ratekeeper.policies import Policies

Unidentified = Literal["shared", "deny", "skip"]
_MAX_LOGGED = 100
_log = logging.getLogger("ratekeeper")


def loaded(policies: Any) -> Policies:
    """Return policies that are given, or read them from a file or a text."""
    if isinstance(policies, str | os.PathLike):
        from ratekeeper.policies import Policies  # which not every application needs

        return Policies.load(policies)
    if not hasattr(policies, "async_limiter"):
        raise TypeError(f"policies must be Policies.load(...), a path or a text, not {show(policies)}")
    return policies  # type: ignore[no-any-return]


class RoutePolicy:
    """A policy as a route applies it."""

    def __init__(
        self,
        limiter: Any,
        headers: Headers,
        attributes: RequestAttributes,
        unidentified: Unidentified,
        notices: Notices,
    ) -> None:
        self.limiter = limiter
        """The limiter by the policy, sync or async."""
        self._writers = HeaderWriters(headers)
        self._attributes = attributes
        self._unidentified = unidentified
        self._notices = notices
        self._logged: set[str] = set()

    @property
    def _title(self) -> str:
        return f"policy {self.limiter.policy!r}"

    def prepared(self, request: Request, cost: Any) -> Flow[Any]:
        """Return the request as the version that is in force takes it."""
        version = self.limiter.version
        values = yield from self._attributes.of(request, version.attributes)
        if isinstance(cost, Mapping):
            cost = self._of_known_rules(cost, version.names)
        missing = "shared" if self._unidentified == "shared" else "skipped"
        return version.prepare(values, cost, missing)

    def deciding(self, prepared: Any) -> DecidingLimiter:
        """Return the limiter, and what reports its decision on a request."""
        return DecidingLimiter(self.limiter, self._writers.of(prepared.applied))

    def lacks(self, prepared: Any) -> str | None:
        """Count what a request lacks, and log it once; return the rule that denies the request for it, if one does."""
        denies = None
        for rule, attribute, of_cost, binds in prepared.applied.lacking:
            what = "is missing or no cost" if of_cost else "is missing; its key needs it or a default"
            lack = f"{self._title}, rule {rule!r}: the attribute {attribute!r} {what}"
            if self._unidentified == "deny" and binds:
                self._log_once(f"{lack}: such requests are denied")
                denies = denies or rule
            elif self._unidentified == "deny":
                self._notices.shadow_denied(rule)
            elif of_cost:
                self._notices.note("degraded", f"{lack}: such requests cost 1")
            elif self._unidentified == "skip":
                self._notices.note("skipped", f"{lack}: the rule does not limit such requests")
            else:
                self._notices.note("shared", f"{lack}: all such requests share one key")
        return denies

    def note_unlimited(self) -> None:
        """Count a request that no rule limits, and log the first one."""
        self._notices.no_rule_applies(self.limiter.policy)

    def checked_cost(self, cost: Any) -> Any:
        """Return what a cost function returned, if it is a valid cost; 0 means free."""
        if isinstance(cost, Mapping):
            return {name: arguments.check_cost(each) for name, each in cost.items()}
        return arguments.check_cost(cost)

    def _of_known_rules(self, costs: Mapping[str, Any], names: Collection[str]) -> Mapping[str, Any]:
        """Return the costs of the rules that the policy has now; those of others are logged once."""
        unknown = [name for name in costs if name not in names]
        for name in unknown:
            self._log_once(f"{self._title}: the cost names {name!r}, which is none of its rules")
        return {name: cost for name, cost in costs.items() if name not in unknown} if unknown else costs

    def _log_once(self, what: str) -> None:
        if what not in self._logged and len(self._logged) < _MAX_LOGGED:
            self._logged.add(what)
            _log.warning("%s; this is logged once", what)
