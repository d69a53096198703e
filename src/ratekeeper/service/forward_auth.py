"""Decisions for proxies that ask before they pass a request on: nginx with `auth_request`, Traefik, Caddy.

The proxy says in headers what its client asks for. Only a trusted one is believed: a client could say anything.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from ratekeeper.decision import Decision
from ratekeeper.errors import InvalidRule
from ratekeeper.flows import run_async
from ratekeeper.http.address import ClientAddress
from ratekeeper.http.admission import hold_or_deny
from ratekeeper.http.headers import EncodedFields
from ratekeeper.http.held_requests import HeldRequests
from ratekeeper.http.problem import body
from ratekeeper.http.request import HeaderMapping
from ratekeeper.http.request_attributes import RequestAttributes
from ratekeeper.notices import Kind
from ratekeeper.policies import UnknownPolicy
from ratekeeper.service import bodies
from ratekeeper.service.guards import FORWARD_AUTH, host_name
from ratekeeper.service.web import PROBLEM, Problem, Response, Router, ServiceRequest

if TYPE_CHECKING:
    from ratekeeper.service.served_policies import ServedPolicy
    from ratekeeper.service.shared import Service

TRUSTED = ("127.0.0.0/8", "::1", "unix")
"""The proxies that are trusted by default: those on this machine."""
_SAYING = (b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-method", b"x-forwarded-uri")
_SAID_IN = {"method": "X-Forwarded-Method", "path": "X-Forwarded-Uri", "host": "X-Forwarded-Host"}
_DENIALS = {"403": 403, "429": 429}
_MAX_HELD, _MAX_HELD_PER_KEY = 1_000, 100
_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")
_log = logging.getLogger("ratekeeper")


def mount(router: Router, service: Service, trusted_proxies: Iterable[str]) -> None:
    """Add the route to the router."""
    router.add("GET", FORWARD_AUTH + "{policy}", ForwardAuth(service, trusted_proxies).answer)


class ForwardAuth:
    """The handler of the route."""

    def __init__(self, service: Service, trusted_proxies: Iterable[str]) -> None:
        self._service = service
        self._address = ClientAddress(trusted_proxies)
        self._attributes = RequestAttributes(
            {"host": _host, "ip": self._ip}, self._address, "forward-auth", for_asyncio=True
        )
        self._held = HeldRequests(_MAX_HELD, _MAX_HELD_PER_KEY)
        self._has_refused = False

    async def answer(self, request: ServiceRequest) -> Response:
        """Admit a request with 204, or deny it with 429 or the status that `deny` asks for."""
        status = _DENIALS.get(request.query.get("deny", "429"))
        if status is None:
            raise Problem(400, "deny must be 403 or 429", field="deny")
        asked = ForwardedRequest(request)
        self._check_proxy(asked)
        policy = request.params["policy"]
        self._service.callers.check(request.headers.get(b"authorization"), policy)
        try:
            decision, headers = await self._decided(self._service.policies.find(policy), asked)
        except UnknownPolicy as error:
            raise Problem(404, str(error), field="policy") from None
        except InvalidRule as error:
            raise bodies.invalid(error) from None
        if decision.allowed:
            return _without_body(headers)
        content_type, content = body(decision, ", ".join(asked.header("accept")))
        kind = PROBLEM if content_type.encode() == PROBLEM else content_type.encode()
        return Response(status, content, headers, kind)

    async def _decided(self, served: ServedPolicy, asked: ForwardedRequest) -> tuple[Decision, EncodedFields]:
        version: Any = served.limiter.version
        attributes = await run_async(self._attributes.of(asked, version.attributes))
        for name, header in _SAID_IN.items():
            if name in version.attributes and name not in attributes:
                self._note(
                    "skipped", f"no {header}: rules of policy {served.policy!r} that compare {name} do not apply"
                )
        prepared = version.prepare(attributes, 1, "error")
        if not prepared.keys_of_shapers:
            taken = await served.limiter.take(prepared)
            return taken.decision, served.headers(prepared.applied, taken.decision)
        held = await run_async(
            hold_or_deny(self._held, (served.policy, prepared.keys_of_shapers), served.limiter, prepared, 1)
        )
        try:
            await asyncio.sleep(held.decision.delay)
        finally:
            if held.held_as is not None:
                self._held.leave(held.held_as)
        return held.decision, served.headers(prepared.applied, held.decision)

    def _check_proxy(self, asked: ForwardedRequest) -> None:
        """Raise a problem unless a trusted proxy asks, and says each thing once."""
        if not self._address.trusts(asked.peer):
            if not self._has_refused:
                self._has_refused = True
                _log.warning(
                    "a request to %s was refused, because it came from no trusted proxy; start the service with "
                    "--trusted-proxy ADDRESS; this is logged once",
                    FORWARD_AUTH,
                )
            raise Problem(403, "this call is for trusted proxies only; name them with --trusted-proxy")
        for name in asked.repeated.intersection(_SAYING):
            raise Problem(400, f"the header {name.decode()} is given more than once", field=name.decode())

    def _ip(self, asked: ForwardedRequest) -> str | None:
        if self._address.forwarded(asked) is None:
            self._note("shared", "no address in X-Forwarded-For: all its clients count as one")
        return self._address.attribute(asked)

    def _note(self, kind: Kind, what: str) -> None:
        """Count what a proxy does not say, and log it once."""
        self._service.notices.note(kind, f"a proxy that asks {FORWARD_AUTH} sends {what}")


class ForwardedRequest:
    """What a proxy says of a request, as a request of `ratekeeper.http`; what it does not say is empty."""

    user_id = None
    root_path = ""

    def __init__(self, request: ServiceRequest) -> None:
        self.raw = request
        self.repeated = frozenset(request.repeated)

    @property
    def method(self) -> str:
        return _text(self.raw.headers.get(b"x-forwarded-method", b""))

    @property
    def path(self) -> str:
        """The path, decoded as applications do: once."""
        target = _ORIGIN.sub("", _text(self.raw.headers.get(b"x-forwarded-uri", b"")), count=1)
        path = re.split("[?#]", target, maxsplit=1)[0]
        return unquote_to_bytes(path).decode("utf-8", "replace")

    @property
    def peer(self) -> str | None:
        return self.raw.client or None

    @property
    def headers(self) -> Mapping[str, str]:
        return HeaderMapping((_text(name), _text(value)) for name, value in self.raw.headers.items())

    def header(self, name: str) -> Sequence[str]:
        known = name.encode()
        if known not in self.raw.headers:
            return ()
        return (_text(self.raw.headers[known]),) * (1 + (known in self.repeated))


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _host(asked: ForwardedRequest) -> str | None:
    """Return the name of the host that the client asks, which it may write in several ways."""
    name = host_name(_text(asked.raw.headers.get(b"x-forwarded-host", b"")).strip())
    return None if name is None or "," in name else name.removesuffix(".")


def _without_body(headers: Collection[tuple[bytes, bytes]]) -> Response:
    response = Response(204)
    response.own = list(headers)
    return response
