"""Guards: requests from pages of other sites are rejected, and some calls require the token or a local caller."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Collection, Iterable

from ratekeeper.service.callers import bearer
from ratekeeper.service.web import JSON, Problem, ServiceRequest

_SAFE = ("GET", "HEAD")
_SENT_BY_NO_FORM = (*_SAFE, "PUT", "DELETE")  # with a body
_FROM_HERE = (b"same-origin", b"none")  # none: a typed address or a bookmark
FORWARD_AUTH = "/v1/forward-auth/"
"""Where proxies ask about the requests of their clients."""
_GIVEN_ONCE = {  # headers that access depends on: of two values, a proxy may have seen the other one
    *(b"host", b"origin", b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest", b"authorization"),
    *(b"content-type", b"content-length", b"transfer-encoding"),
}
_BY_A_PROXY = {  # headers that a proxy adds
    *(b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-real-ip"),
    *(b"cf-connecting-ip", b"true-client-ip"),
}


class Guards:
    """Rejects requests that a browser sends on behalf of another site.

    The Host header reveals a name that an attacker has pointed here (DNS rebinding); an IP address cannot be redirected
    in this way. Origin and Sec-Fetch-Site, which pages cannot set, reveal requests from another site's page. A form
    cannot send JSON.
    """

    def __init__(self, hosts: Collection[str] = (), token: str | None = None) -> None:
        self._hosts = {"localhost", *(host.lower() for host in hosts)}
        self._token = None if token is None else token.encode()
        self._known: set[bytes] = set()  # Host headers that have passed the check

    def check(self, request: ServiceRequest) -> None:
        """Raise a problem if the request must be rejected."""
        headers = request.headers
        if request.repeated:
            _check_repeated(request.repeated)
        host = headers.get(b"host", b"")
        if host not in self._known:
            self._check_host(host)
        origin = headers.get(b"origin")
        if origin is not None and origin.partition(b"://")[2] != host and not _is_of_a_proxy(request):
            raise Problem(403, "cross-origin requests are not allowed")
        site = headers.get(b"sec-fetch-site")
        if site is not None and not (site in _FROM_HERE or _is_navigation(request) or _is_of_a_proxy(request)):
            raise Problem(403, "cross-site requests are not allowed")
        content_type = headers.get(b"content-type")
        if content_type != JSON and request.method not in _SENT_BY_NO_FORM:
            _check_content_type(content_type, headers)

    def check_token(self, request: ServiceRequest) -> None:
        """Raise a problem if the token is missing or wrong or, if there is none, the caller is not on this machine."""
        if self._token is None:
            if not _is_local(request):
                raise Problem(403, "without a token, this call is for callers on this machine only; set a token")
            return
        given = bearer(request.headers.get(b"authorization"))
        if given is None or not hmac.compare_digest(given, self._token):
            raise Problem(
                401,
                "this call requires the header Authorization: Bearer TOKEN",
                headers=[(b"www-authenticate", b"Bearer")],
            )

    def _check_host(self, host: bytes) -> None:
        name = host_name(host.decode("latin-1"))
        if name is None or (name not in self._hosts and not _is_address(name)):
            raise Problem(421, "unknown host in the Host header; allow it with --allow-host", field="host")
        if len(self._known) < 100:
            self._known.add(host)


def _check_repeated(names: Iterable[bytes]) -> None:
    for name in names:
        if name in _GIVEN_ONCE:
            raise Problem(400, f"the header {name.decode()} is given more than once", field=name.decode())


def host_name(host: str) -> str | None:
    """Return the name or address in a Host header, without the port; None if it is malformed."""
    name, colon, port = host.rpartition(":")
    if not colon or host.endswith("]"):
        name, port = host, "0"
    if not name or not (port.isascii() and port.isdigit()):
        return None
    return name.lower()


def _is_address(name: str) -> bool:
    return _address(name) is not None


def _address(name: str | None) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address((name or "").removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _is_local(request: ServiceRequest) -> bool:
    """Tell whether a request comes from this machine.

    The peer of the connection may be a proxy on this machine, whose callers can be anywhere. Its headers, or a Host
    that is not local, show that. If it shows neither, set a token, which is then required of every caller.
    """
    if not _BY_A_PROXY.isdisjoint(request.headers):
        return False
    host = host_name(request.headers.get(b"host", b"").decode("latin-1"))
    peer, named = _address(request.client), _address(host)
    return peer is not None and peer.is_loopback and (host == "localhost" or (named is not None and named.is_loopback))


def _is_of_a_proxy(request: ServiceRequest) -> bool:
    """Tell whether a proxy asks about its client's request, whose headers it may pass on: no page can send this one."""
    return request.path.startswith(FORWARD_AUTH) and b"x-forwarded-uri" in request.headers


def _is_navigation(request: ServiceRequest) -> bool:
    """Tell whether the user followed a link."""
    return (
        request.method in _SAFE
        and request.headers.get(b"sec-fetch-mode") == b"navigate"
        and request.headers.get(b"sec-fetch-dest") == b"document"
    )


def _check_content_type(given: bytes | None, headers: dict[bytes, bytes]) -> None:
    if given is None:
        if headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in headers:
            return  # no body at all
        given = b"none"
    if given.partition(b";")[0].strip().lower() != JSON:
        raise Problem(415, "Content-Type must be application/json", field="content-type")
