"""Key functions: they compute the key of a request, and can be combined.

Each key starts with its kind ("user:ada", "address:192.0.2.1"), so that a user name cannot collide with an address.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from ratekeeper import keys
from ratekeeper.errors import InvalidRule
from ratekeeper.http import claims
from ratekeeper.http.address import ClientAddress
from ratekeeper.http.request import Request, root_of
from ratekeeper.http.url_paths import normalized
from ratekeeper.rates import show
from ratekeeper.ruleset import Keys
from ratekeeper.stores.protocol import Key

PartFunction = Callable[[Any], "Key | Awaitable[Key | None] | None"]
"""Returns the key of a request, or None if it has none."""
KeyFunction = Callable[[Any], "Keys | Awaitable[Keys | None] | None"]
"""Returns the key of a request, or a mapping with a key for each rule."""

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")
_NO_USER = (
    "by_user() has found no user (to limit anonymous requests by address, use first_of(by_user(), by_address()); if "
    "users are signed in, docs/http.md says where each framework has them)"
)
_TOGETHER = "together:"  # begins a combination of keys that have parts of their own


def by_address(
    trusted_proxies: Iterable[str] = (),
    *,
    trusted_hops: int = 0,
    header: Literal["x-forwarded-for", "forwarded"] = "x-forwarded-for",
    join_lines: bool = False,
    ipv6_prefix: int = 64,
) -> Callable[[Request], str | None]:
    """Key by the client's address: the peer's or, behind trusted proxies, the one that they report.

    `trusted_proxies` are addresses and networks ("unix" trusts every connection through a Unix socket); alternatively,
    `trusted_hops` is the number of proxies. `header` is read from the right. If it occurs on several lines, the peer's
    address is used, unless `join_lines` says that the proxy adds a line of its own, as HAProxy does.
    """
    return ClientAddress(
        trusted_proxies, trusted_hops=trusted_hops, header=header, join_lines=join_lines, ipv6_prefix=ipv6_prefix
    )


def address_of(key: Any) -> ClientAddress | None:
    """Return the `by_address(...)` that a key function is, or has in it."""
    found: ClientAddress | None = key if isinstance(key, ClientAddress) else getattr(key, "address", None)
    return found


def by_user() -> Callable[[Request], str | Awaitable[str | None] | None]:
    """Key by the signed-in user; anonymous requests have no key.

    In Starlette and FastAPI, that is `request.user` or `request.state.user`, or what the dependency `user=` of a
    `RateLimit` returns.
    """

    def key(request: Request) -> str | Awaitable[str | None] | None:
        user = request.user_id
        return later(user) if isinstance(user, Awaitable) else named(user)

    async def later(user: Awaitable[str | None]) -> str | None:
        return named(await user)

    def named(user: str | None) -> str | None:
        return None if not user else claims.named("user", user)

    key.why_none = _NO_USER  # type: ignore[attr-defined]
    return key


def by_api_key(header: str = "x-api-key", *, scheme: str | None = None) -> Callable[[Request], str | None]:
    """Key by a secret in a header, hashed before it is stored; `scheme` is its prefix, such as "Bearer"."""
    name = _header_name(header)

    def key(request: Request) -> str | None:
        values = request.header(name)
        if len(values) != 1:
            return None  # two values would give one client two identities
        secret = values[0].strip()
        if scheme is not None:
            word, _, secret = secret.partition(" ")
            secret = secret.strip() if word.lower() == scheme.lower() else ""
        return f"api-key:{claims.hashed(secret)}" if secret else None

    return key


def by_header(name: str) -> Callable[[Request], str | None]:
    """Key by the value of a header; without the header, or with several values, there is no key."""
    lower = _header_name(name)

    def key(request: Request) -> str | None:
        values = request.header(lower)
        value = values[0].strip(" \t") if len(values) == 1 else ""
        return claims.named(f"header:{lower}", value) if value else None

    return key


def by_path() -> Callable[[Request], str | None]:
    """Key by the path, however it is written."""
    return lambda request: claims.named("path", normalized(root_of(request) + request.path))


def combine(*functions: PartFunction) -> PartFunction:
    """Key by all of these together; if one of them has no key, there is no key."""
    functions = _checked("combine", functions)

    def key(request: Any) -> Key | Awaitable[Key | None] | None:
        parts: list[Key] = []
        for index, function in enumerate(functions):
            found = function(request)
            if isinstance(found, Awaitable):
                return finish(request, parts, found, functions[index + 1 :])
            if found is None:
                return None
            parts.append(found)
        return together(parts)

    async def finish(
        request: Any, parts: list[Key], awaited: Awaitable[Key | None], rest: Sequence[PartFunction]
    ) -> Key | None:
        found = await awaited
        for function in rest:
            if found is None:
                break
            parts.append(found)
            found = await _awaited(function(request))
        return None if found is None else together([*parts, found])

    key.address = _address_in(functions)  # type: ignore[attr-defined]
    return key


def first_of(*functions: PartFunction) -> PartFunction:
    """Key by the first of these that returns a key: for example the user, or else the address."""
    functions = _checked("first_of", functions)

    def key(request: Any) -> Key | Awaitable[Key | None] | None:
        for index, function in enumerate(functions):
            found = function(request)
            if isinstance(found, Awaitable):
                return finish(request, found, functions[index + 1 :])
            if found is not None:
                return found
        return None

    async def finish(request: Any, awaited: Awaitable[Key | None], rest: Sequence[PartFunction]) -> Key | None:
        found = await awaited
        for function in rest:
            if found is not None:
                break
            found = await _awaited(function(request))
        return found

    key.address = _address_in(functions)  # type: ignore[attr-defined]
    return key


def digest(key: Key) -> bytes:
    """Return 12 bytes that identify a key without revealing it."""
    return hashlib.sha256(repr(key).encode("utf-8", "surrogatepass")).digest()[:12]


def check_function(argument: str, function: Any, also: str = "", *, for_asyncio: bool = True) -> None:
    """Raise unless `function` can be called with the request, and with a second argument if `also` names one."""
    what = f"two arguments, the request and {also}" if also else "one argument, the request"
    if not callable(function):
        raise TypeError(f"{argument} must be a callable that takes the request, not {show(function)}")
    if not for_asyncio:
        _refuse_coroutines(argument, function)
    if not _takes(function, 2 if also else 1):
        raise TypeError(f"{argument} must take {what}, unlike {show(function)}")


def of_request(argument: str, function: Any, *, for_asyncio: bool = True) -> Callable[[Any], Any]:
    """Return a function of the request; `function` may take no argument, as those that use a context variable."""
    if function in _FACTORIES:
        name = function.__name__
        raise TypeError(f"{argument} must be what {name}(...) returns, not {name} itself")
    if callable(function) and _takes(function, 0) and not _takes(function, 1):
        if not for_asyncio:
            _refuse_coroutines(argument, function)
        return lambda _: function()
    check_function(argument, function, for_asyncio=for_asyncio)
    return function  # type: ignore[no-any-return]


def of_key(function: Any, key: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function of the request: if the parameter of `function` is called "key", it gets the request's key."""
    if not _takes_key(function):
        return function  # type: ignore[no-any-return]

    def of_request(request: Any) -> Any:
        found = key(request)
        return later(found) if isinstance(found, Awaitable) else function(found)

    async def later(found: Awaitable[Any]) -> Any:
        chosen = function(await found)
        return await chosen if isinstance(chosen, Awaitable) else chosen

    return of_request


def within(scope_of: Callable[[Any], str], key: KeyFunction) -> KeyFunction:
    """Begin each key with the scope of its request, so that each scope has its own usage."""

    def scoped(request: Any) -> Any:
        found = key(request)
        return later(request, found) if isinstance(found, Awaitable) else scope(request, found)

    async def later(request: Any, found: Awaitable[Any]) -> Any:
        return scope(request, await found)

    def scope(request: Any, found: Any) -> Any:
        if isinstance(found, Mapping):
            return {rule: together([scope_of(request), own]) for rule, own in found.items()}
        return None if found is None else together([scope_of(request), found])

    scoped.why_none = why_none(key)  # type: ignore[attr-defined]
    scoped.address = address_of(key)  # type: ignore[attr-defined]
    scoped.unscoped = unscoped(key)  # type: ignore[attr-defined]
    return scoped


def unscoped(key: KeyFunction) -> KeyFunction:
    """Return the key function that `within` was given."""
    return getattr(key, "unscoped", key)


def why_none(key: KeyFunction) -> str:
    """Return why a key function returns no key."""
    why: str = getattr(key, "why_none", "a request has no key")
    return why


def method_of(request: Request) -> str:
    """Return the method to count under: a HEAD counts as a GET, and methods that clients make up count as one."""
    method = request.method.upper()
    return "GET" if method == "HEAD" else method if method in _METHODS else "OTHER"


def _refuse_coroutines(argument: str, function: Any) -> None:
    if inspect.iscoroutinefunction(function):
        raise TypeError(f"{argument} is a coroutine function, which cannot be awaited here: {show(function)}")


def _takes(function: Any, arguments: int) -> bool:
    """Tell whether a function can be called with this many arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True  # a built-in without a signature
    try:
        signature.bind(*[None] * arguments)
    except TypeError:
        return False
    return True


def _takes_key(function: Any) -> bool:
    """Tell whether the first parameter of a function is called "key"."""
    try:
        return next(iter(inspect.signature(function).parameters), "") == "key"
    except (TypeError, ValueError):
        return False


def _checked(name: str, functions: Sequence[PartFunction]) -> tuple[PartFunction, ...]:
    if not functions:
        raise InvalidRule(f"{name} needs at least one key function")
    return tuple(of_request(f"{name}[{index}]", function) for index, function in enumerate(functions))


def _address_in(functions: Iterable[Any]) -> ClientAddress | None:
    return next(filter(None, map(address_of, functions)), None)


async def _awaited(found: Key | Awaitable[Key | None] | None) -> Key | None:
    return await found if isinstance(found, Awaitable) else found


def together(found: Sequence[Key]) -> Key:
    """Combine several keys into one, so that different sequences give different keys; hash what is too large."""
    parts = [part for key in found for part in (key if isinstance(key, tuple) else (key,))]
    if any(isinstance(key, tuple) for key in found) or str(parts[0]).startswith(_TOGETHER):
        # Where each key ends: ("a", "b"), "c" and "a", ("b", "c") differ, and "a", ("b",) and ("a",), "b".
        ends = ",".join(str(len(key)) if isinstance(key, tuple) else "" for key in found)
        parts.insert(0, _TOGETHER + ends)
    combined = tuple(parts)
    if len(parts) > keys.MAX_PARTS or sum(map(_most_bytes, parts)) > keys.MAX_BYTES:
        return f"{_TOGETHER} sha256:{claims.hashed(repr(combined))}"
    return combined


def _most_bytes(part: Key) -> int:
    """Return how many bytes of a key a part takes at most."""
    if isinstance(part, str):
        return len(part) * 4
    if isinstance(part, bytes):
        return len(part)
    number: int = keys.check(part)
    return number.bit_length() // 8 + 1


_FACTORIES = (by_address, by_user, by_api_key, by_header, by_path, combine, first_of)
_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "WEBSOCKET"})


def _header_name(name: Any) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name.lower()):
        raise InvalidRule(f"{show(name)} is not a valid header name")
    return name.lower()
