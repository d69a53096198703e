"""The URL of a store: one server, a cluster, or a master that sentinels name."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import parse_qsl

from ratekeeper.errors import InvalidRule
from ratekeeper.rates import show
from ratekeeper.stores.safe_urls import safe

PORT, SENTINEL_PORT = 6379, 26_379
_NAMES = ("redis", "rediss", "valkey", "valkeys")
SCHEMES = (*_NAMES, "unix", *(name + several for several in ("+cluster", "+sentinel") for name in _NAMES))
_FORMS = {
    "": "redis://[user:password@]host[:port][/database]",
    "cluster": "redis+cluster://[user:password@]host[:port],host[:port]",
    "sentinel": "redis+sentinel://[user:password@]sentinel[:port],sentinel[:port]/master[/database]"
    "[?sentinel_password=...]",
}


class NodeAddress(NamedTuple):
    """Where a server is."""

    host: str
    port: int
    is_sentinel: bool = False


def is_sentinel(address: NodeAddress | None) -> bool:
    """Return whether an address is that of a sentinel."""
    return address is not None and address.is_sentinel


class StoreUrl(NamedTuple):
    """The parts of a URL."""

    several: str  # "cluster", "sentinel", or nothing for one server
    plain: str  # a URL of one server that redis-py can read, without the addresses
    addresses: list[NodeAddress]
    name: str  # of the master


def read(url: str) -> StoreUrl:
    """Take a URL apart."""
    scheme, _, rest = url.removeprefix("async+").partition("://")
    scheme, _, several = scheme.replace("valkeys", "rediss").replace("valkey", "redis").partition("+")
    if several not in _FORMS or (scheme == "unix" and several):
        raise InvalidRule(f"store {safe(url)} has an unknown scheme")
    rest, mark, query = rest.partition("?")  # it may contain an @
    secret, at, rest = rest.rpartition("@")
    try:
        url.encode()
    except UnicodeEncodeError as error:  # a lone surrogate, as from an argument that is not UTF-8
        raise unreadable(url, several, type(error).__name__) from None
    for name, _ in parse_qsl(query, keep_blank_values=True):
        if name in _NOT_FOR_A_URL:
            raise InvalidRule(f"store {safe(url)} has {show(name)} in its query, but a URL cannot set that")
    if scheme == "unix":
        return StoreUrl("", f"{scheme}://{secret}{at}{rest}{mark}{query}", [], "")
    hosts, _, path = rest.partition("/")
    name, _, database = path.partition("/") if several == "sentinel" else ("", "", path)
    try:
        port = SENTINEL_PORT if several == "sentinel" else PORT
        addresses = [_address(host, port) for host in (hosts or "localhost").split(",")]
        if not re.fullmatch(r"\d*", database) or (not several and len(addresses) > 1) or "/" in secret:
            raise ValueError(database)
    except ValueError as error:
        raise unreadable(url, several, type(error).__name__) from None
    if several == "cluster" and int(database or 0):
        raise InvalidRule(f"store {safe(url)} names a database, but a cluster has only database 0")
    if several == "sentinel" and not name:
        raise InvalidRule(f"store {safe(url)} does not name the master; write {_FORMS[several]}")
    host = "localhost" if several else hosts
    return StoreUrl(several, f"{scheme}://{secret}{at}{host}/{database}{mark}{query}", addresses, name)


_NOT_FOR_A_URL = ("connection_class", "connection_pool", "parser_class", "credential_provider", "retry", "path", "host")


def unreadable(url: str, several: str, reason: str) -> InvalidRule:
    """Return an error that shows how to write a URL. It does not quote redis-py's, which may show the password."""
    return InvalidRule(
        f"store {safe(url)} cannot be read ({reason}); write {_FORMS[several]}, with redis-py's options "
        "after a ?, and with special characters in a password percent-encoded"
    )


def _address(text: str, port: int) -> NodeAddress:
    host, colon, given = text.rpartition(":")
    if not colon or text.endswith("]"):  # an IPv6 address in brackets contains colons
        host, given = text, str(port)
    host = host.removeprefix("[").removesuffix("]")
    host.encode("idna")  # a UnicodeError is a ValueError
    if not host or not 0 < int(given) < 65_536:
        raise ValueError(text)
    return NodeAddress(host, int(given), port == SENTINEL_PORT)
