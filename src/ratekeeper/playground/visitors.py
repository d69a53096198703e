"""Visitors: a random session for each, in a signed cookie that expires."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections import OrderedDict

from ratekeeper.algorithms import Rule
from ratekeeper.clock import wall_clock
from ratekeeper.service.web import ServiceRequest

COOKIE = "ratekeeper_visitor"
LASTS = 24 * 60 * 60  # seconds
MAX_VISITORS = 10_000
MAX_USED_RULES = 64  # of one visitor
MAX_REMEMBERED = 20_000  # rules of all visitors: less than 10 MiB
_NAME = re.compile(r"([0-9a-f]{32})\.([0-9]{1,12})\.([0-9a-f]{64})")


class Visitors:
    """Creates and verifies sessions, and remembers the rules that each visitor used most recently."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._used: OrderedDict[str, OrderedDict[Rule, None]] = OrderedDict()
        self._remembered = 0

    def recognize(self, request: ServiceRequest) -> tuple[str, list[tuple[bytes, bytes]]]:
        """Return the visitor, and for a new one the header that sets the cookie."""
        given = _cookie(request.headers.get(b"cookie", b"").decode("latin-1"))
        match = _NAME.fullmatch(given)
        if match and self._is_ours(*match.groups()):
            return match[1], []
        visitor = secrets.token_hex(16)
        expires = str(_now() + LASTS)
        value = f"{visitor}.{expires}.{self._sign(visitor, expires)}"
        cookie = f"{COOKIE}={value}; Path=/api; Max-Age={LASTS}; HttpOnly; SameSite=Strict"
        return visitor, [(b"set-cookie", cookie.encode())]

    def remember(self, visitor: str, rule: Rule) -> None:
        """Remember that a visitor uses a rule."""
        used = self._used.setdefault(visitor, OrderedDict())
        self._used.move_to_end(visitor)
        self._remembered += rule not in used
        used[rule] = None
        used.move_to_end(rule)
        if len(used) > MAX_USED_RULES:
            used.popitem(last=False)
            self._remembered -= 1
        while len(self._used) > MAX_VISITORS or self._remembered > MAX_REMEMBERED:
            self._remembered -= len(self._used.popitem(last=False)[1])

    def used(self, visitor: str) -> list[Rule]:
        """Return the rules that a visitor has used."""
        return list(self._used.get(visitor, ()))

    def _is_ours(self, visitor: str, expires: str, signature: str) -> bool:
        return hmac.compare_digest(signature, self._sign(visitor, expires)) and int(expires) > _now()

    def _sign(self, visitor: str, expires: str) -> str:
        return hmac.new(self._secret, f"{visitor}.{expires}".encode(), hashlib.sha256).hexdigest()


def _cookie(header: str) -> str:
    """Return our cookie from a Cookie header, or an empty text."""
    for pair in header.split(";"):
        name, _, value = pair.strip().partition("=")
        if name == COOKIE:
            return value
    return ""


def _now() -> int:
    return wall_clock() // 1_000_000_000
