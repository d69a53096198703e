"""The routes for operators: policies, overrides at run time, what a request meets, and the audit trail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratekeeper.decision import Decision
from ratekeeper.errors import InvalidRule
from ratekeeper.policies import InvalidPolicies
from ratekeeper.policies.documents import MAX_BYTES, Format
from ratekeeper.policies.explaining import explain_applied
from ratekeeper.policies.versions import Applied
from ratekeeper.service import bodies
from ratekeeper.service.api import decision_fields
from ratekeeper.service.editions import reasons_of
from ratekeeper.service.policy_store import PolicyStore
from ratekeeper.service.served_policies import ServedPolicy
from ratekeeper.service.web import Problem, Response, Router, ServiceRequest, json_response

if TYPE_CHECKING:
    from ratekeeper.service.administration import Administration
    from ratekeeper.service.policy_sources import PolicySource
    from ratekeeper.service.shared import Service

_FORMATS: dict[bytes, Format] = {
    b"application/toml": "toml",
    b"text/x-toml": "toml",
    b"application/json": "json",
    b"application/yaml": "yaml",
    b"application/x-yaml": "yaml",
    b"text/yaml": "yaml",
    b"text/x-yaml": "yaml",
}


def mount(router: Router, service: Service) -> None:
    """Add the routes to the router."""
    api = PolicyApi(service)
    for method, path, handler in (
        ("GET", "/v1/policies", api.show),
        ("PUT", "/v1/policies", api.replace),
        ("POST", "/v1/policies/reload", api.reload),
        ("GET", "/v1/policies/history", api.history),
        ("GET", "/v1/policies/history/{version}", api.former),
        ("GET", "/v1/overrides", api.overrides),
        ("PUT", "/v1/overrides/{id}", api.set_override),
        ("DELETE", "/v1/overrides/{id}", api.remove_override),
        ("POST", "/v1/explain", api.explain),
        ("GET", "/v1/audit", api.audit),
    ):
        router.add(method, path, handler, needs_token=True)


class PolicyApi:
    """The handlers of the routes."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._administration: Administration = service.administration

    async def show(self, _: ServiceRequest) -> Response:
        """Show what is in force."""
        administration = self._administration
        source, served = administration.source, administration.served
        if source is None:
            return json_response(
                {"version": 0, "source": {"kind": "none"}, "policies": {}, "text": "", "refused": None}
            )
        await source.look()
        edition = served.edition
        facts: dict[str, Any] = {"version": 0, "policies": {}, "text": ""}
        if edition is not None and served.policies is not None:
            policies = served.policies.document.data["policies"]
            facts = {**edition.fields(), "policies": policies, "text": edition.text}
        refused = None if served.refused is None else served.refused.fields()
        path = {} if source.path is None else {"path": source.path}
        facts |= {"source": {"kind": source.kind, **path}, "refused": refused}
        return json_response(facts, headers=[_version_header(facts["version"])])

    async def replace(self, request: ServiceRequest) -> Response:
        """Replace the policies in the store."""
        source = self._source()
        if not isinstance(source, PolicyStore):
            raise Problem(409, source.changed_by)
        version = _known_version(request)
        request.max_bytes = MAX_BYTES
        known = _FORMATS.get(request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower())
        content = await request.body()
        try:
            edition = await source.replace(content, known, version, _by(request))
        except InvalidRule as error:
            raise _invalid(error) from None
        facts = {"version": edition.version, "digest": edition.digest}
        await self._administration.audit.note("policies replaced", edition.by, facts)
        return json_response(edition.fields(), headers=[_version_header(edition.version)])

    async def reload(self, request: ServiceRequest) -> Response:
        """Read the policies again."""
        changed = await self._source().reload(_by(request))
        served = self._administration.served
        if served.refused is not None:
            reasons = list(served.refused.reasons)
            raise Problem(400, f"refused, and nothing was changed: {_told(reasons)}", reasons=reasons)
        edition = served.edition
        facts = {"version": 0} if edition is None else edition.fields()
        return json_response({"changed": changed, **facts})

    async def history(self, _: ServiceRequest) -> Response:
        """List the last versions, the newest first."""
        editions = await self._source().history()
        return json_response({"versions": [edition.fields() for edition in editions]})

    async def former(self, request: ServiceRequest) -> Response:
        """Show one of the last versions."""
        for edition in await self._source().history():
            if str(edition.version) == request.params["version"]:
                return json_response({**edition.fields(), "text": edition.text})
        raise Problem(404, "there is no such version, or it is too long ago; see /v1/policies/history")

    async def overrides(self, _: ServiceRequest) -> Response:
        """List the overrides that have not ended, the newest first."""
        self._source()
        return json_response({"overrides": await self._administration.overrides.all()})

    async def set_override(self, request: ServiceRequest) -> Response:
        """Put an override in force."""
        self._source()
        try:
            made = await self._administration.overrides.set(request.params["id"], await request.json(), _by(request))
        except InvalidPolicies as error:
            raise _invalid(error) from None
        facts = {name: made[name] for name in ("id", "policy", "when", "limits", "expires_at")}
        await self._administration.audit.note("override set", _by(request), facts)
        return json_response(made)

    async def remove_override(self, request: ServiceRequest) -> Response:
        """End an override."""
        self._source()
        name = request.params["id"]
        if not await self._administration.overrides.remove(name):
            raise Problem(404, f"no override {name[:100]!r} is in force")
        await self._administration.audit.note("override removed", _by(request), {"id": name})
        return json_response({"ok": True})

    async def explain(self, request: ServiceRequest) -> Response:
        """Show the rules, keys and limits that a request would meet, and how each stands."""
        limiter, attributes, cost = bodies.read(await request.decoded(bodies.DECODER), self._service)
        if not isinstance(limiter, ServedPolicy):
            raise Problem(400, "policy is required", field="policy")
        try:
            applied = limiter.limiter.demands("peek", attributes, cost)
            assert isinstance(applied, Applied)  # noqa: S101 - a policy makes its demands so
            explanation = explain_applied(applied, attributes)
            decision = await limiter.limiter.decide("peek", attributes, applied)
            each = [demand._replace(binds=True) for demand in applied]  # also those that are only tried out
            alone = await limiter.limiter.decide("peek", attributes, each)
        except InvalidRule as error:
            raise bodies.invalid(error) from None
        standing = _standings(alone)
        rules = [{**rule._asdict(), "standing": standing.get(rule.rule)} for rule in explanation.rules]
        return json_response(
            {
                "policy": explanation.policy,
                "override": explanation.override,
                "rules": rules,
                "decision": decision_fields(decision),
            }
        )

    async def audit(self, _: ServiceRequest) -> Response:
        """List the latest changes of policies and overrides, the newest first."""
        self._source()
        return json_response({"entries": await self._administration.audit.entries()})

    def _source(self) -> PolicySource:
        source = self._administration.source
        if source is None:
            raise Problem(409, self._administration.served.none_because)
        return source


def _by(request: ServiceRequest) -> str:
    return request.client or "this machine"


def _version_header(version: int) -> tuple[bytes, bytes]:
    return b"etag", b'"%d"' % version


def _known_version(request: ServiceRequest) -> int:
    """Return the version that a request says it replaces."""
    given = request.headers.get(b"if-match")
    if given is None:
        raise Problem(428, "If-Match is required: the version that this replaces, as in If-Match: 7", field="if-match")
    text = given.strip().removeprefix(b'"').removesuffix(b'"')
    if not text.isdigit() or len(text) > 18:
        raise Problem(400, "If-Match must be a version, as in If-Match: 7", field="if-match")
    return int(text)


def _invalid(error: InvalidRule) -> Problem:
    reasons = reasons_of(error)
    field = reasons[0]["place"] if reasons else None
    return Problem(400, _told(reasons), field=field or None, reasons=reasons)


def _told(reasons: list[dict[str, Any]]) -> str:
    """Say what is wrong in one line; the whole list is in `reasons`."""
    first = reasons[0]
    line = "" if first["line"] is None else f"line {first['line']}: "
    place = f"{first['place']}: " if first["place"] else ""
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return f"{line}{place}{first['reason']}{more}"


def _standings(decision: Decision) -> dict[str, dict[str, Any]]:
    """Return how each rule stands, by name."""
    layers = decision.layers or {decision.rule: decision}
    return {name: decision_fields(layer) for name, layer in layers.items() if name}
