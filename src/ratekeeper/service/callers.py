"""Who may hit and peek: everybody, or those who send a token of the service or of a policy."""

from __future__ import annotations

from collections.abc import Callable

from ratekeeper.policies import Policies
from ratekeeper.policies.caller_hashes import caller_hash
from ratekeeper.service.web import Problem

_UNKNOWN: frozenset[str] = frozenset()


class Callers:
    """Who may call, with which token.

    A policy that names its callers is for those alone. Inline rules, and policies that name none, are for everybody or,
    with `token`, for those who send it. The operators' token opens all.
    """

    def __init__(self, token: str | None, operators_token: str | None, policies: Callable[[], Policies | None]) -> None:
        self._own = _UNKNOWN if token is None else frozenset({caller_hash(token.encode())})
        self._operators = None if operators_token is None else caller_hash(operators_token.encode())
        self._policies = policies
        self.guards_inline_rules = bool(self._own)
        """Whether inline rules are only for callers who send the token."""

    def check(self, authorization: bytes | None, policy: str | None) -> None:
        """Raise a problem unless this header allows to call a policy or, with None, inline rules."""
        wanted = self._own
        if policy is not None:
            policies = self._policies()
            known = None if policies is None else policies.get(policy)
            if known is not None and known.callers:
                wanted = known.callers
        if not wanted:
            return
        given = bearer(authorization)
        hashed = None if given is None else caller_hash(given)
        if hashed is None or (hashed not in wanted and hashed != self._operators):
            what = "inline rules are" if policy is None else f"policy {policy!r} is"
            raise Problem(
                401,
                f"{what} for callers with a token; send the header Authorization: Bearer TOKEN",
                field=None if policy is None else "policy",
                headers=[(b"www-authenticate", b"Bearer")],
            )


def bearer(authorization: bytes | None) -> bytes | None:
    """Return the token in a header."""
    scheme, _, token = (authorization or b"").partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else None
