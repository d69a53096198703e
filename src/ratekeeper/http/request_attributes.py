"""The attributes of a request that policies ask for. Each is found only if a policy needs it.

They are `method`, `path`, `ip`, `user`, `header:NAME`, and what the application gives itself.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any

from ratekeeper.errors import InvalidRule
from ratekeeper.flows import Flow
from ratekeeper.http.address import ClientAddress
from ratekeeper.http.claims import Claim, hashed
from ratekeeper.http.client_keys import method_of, of_request
from ratekeeper.http.request import Request
from ratekeeper.rates import show

AttributeFunction = Callable[[Any], "str | int | Awaitable[str | int | None] | None"]
"""Returns the value of an attribute of a request, or None if the request has none."""

_HEADER = "header:"
_SECRETS = frozenset({"authorization", "cookie", "proxy-authorization", "x-api-key", "x-auth-token"})
_MAX_BITS = 2048  # of an int
_MAX_LOGGED = 100
_log = logging.getLogger("ratekeeper")


class RequestAttributes:
    """Finds the attributes of requests. What cannot be found is missing."""

    def __init__(
        self, given: Mapping[str, AttributeFunction], address: ClientAddress, title: str, *, for_asyncio: bool
    ) -> None:
        """`given` are the functions of the application; they replace what is found here. `title` is for logs."""
        if not isinstance(given, Mapping):
            raise TypeError(f"attributes must be a mapping of names to functions of the request, not {show(given)}")
        self._functions: dict[str, Callable[[Any], Any]] = {
            "method": _method,
            "path": lambda request: request.path,
            "ip": address.attribute,
            "user": lambda request: request.user_id,
        }
        for name, function in given.items():
            if not isinstance(name, str) or not name or name.lower().startswith(_HEADER):
                raise InvalidRule(
                    f"attributes cannot have {show(name)}: a name is a text that does not begin with '{_HEADER}'"
                )
            checked = of_request(f"attributes[{name!r}]", function, for_asyncio=for_asyncio)
            self._functions[name] = checked.attribute if isinstance(checked, ClientAddress) else checked
        self._title = title
        self._logged: set[str] = set()

    def of(self, request: Request, names: Collection[str]) -> Flow[dict[str, str]]:
        """Return the attributes with these names that a request has."""
        values = {}
        for name in names:
            function = self._functions.get(name)
            if function is None and name.startswith(_HEADER):
                function = partial(header, name=name[len(_HEADER) :])
            if function is None:
                self._log_once(f"no function provides the attribute {name!r}: pass one in attributes={{{name!r}: ...}}")
                continue
            value = yield from self._found(name, function, request)
            if value is not None and value != "":
                values[name] = value
        return values

    def _found(self, name: str, function: Callable[[Any], Any], request: Request) -> Flow[str | None]:
        try:
            value = function(request)
            if hasattr(value, "__await__"):
                value = yield value
            return _checked(value)
        except Exception as error:  # noqa: BLE001 - an error in the application's function must not fail the request
            self._log_once(f"the function for the attribute {name!r} failed: it counts as missing", error)
            return None

    def _log_once(self, what: str, error: Exception | None = None) -> None:
        if what not in self._logged and len(self._logged) < _MAX_LOGGED:
            self._logged.add(what)
            _log.warning("%s: %s; this is logged once", self._title, what, exc_info=error)


def header(request: Request, name: str) -> str | None:
    """Return the value of a header; None if it has none or several, which would give a client several identities.

    In a key, a secret is hashed before it is stored.
    """
    values = request.header(name)
    if len(values) != 1:
        return None
    value = values[0].strip(" \t")
    return Claim(value, f"sha256:{hashed(value)}") if value and name in _SECRETS else value


def _method(request: Request) -> str:
    """Return the method. A HEAD is a GET; methods that clients make up are counted as one."""
    method = request.method.upper()
    return Claim("GET" if method == "HEAD" else method, method_of(request))


def _checked(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int) or value.bit_length() > _MAX_BITS:
        raise TypeError(f"must be a text, an integer of at most {_MAX_BITS} bits or None, not {show(value)}")
    return str(int(value))
