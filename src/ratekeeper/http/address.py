"""The client's address: the peer of the socket, or the address that trusted proxies report."""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from ratekeeper.errors import InvalidRule
from ratekeeper.http import claims
from ratekeeper.http.request import Request
from ratekeeper.rates import show

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

_MAX_ADDRESS = 64  # characters; nothing longer is an address
_MAX_LENGTH = 4096  # characters of a header that are read, from its end
_IPV4 = re.compile(r"([0-9.]+)(?::[0-9]{1,5})?")
_BRACKETED = re.compile(r"\[([^\[\]]+)\](?::[0-9]{1,5})?")
_PAIR = re.compile(r"""\s*([!#$%&'*+.^_`|~0-9A-Za-z-]+)=(?:"((?:[^"\\]|\\.)*)"|([^";,\s]+))\s*""")
_MAX_COMMAS = 4  # inside the quotes of one element


class ClientAddress:
    """Finds the address of a client. IPv6 clients are counted by prefix: one client usually has a network."""

    def __init__(
        self,
        trusted_proxies: Iterable[str] = (),
        *,
        trusted_hops: int = 0,
        header: Literal["x-forwarded-for", "forwarded"] = "x-forwarded-for",
        join_lines: bool = False,
        ipv6_prefix: int = 64,
    ) -> None:
        if isinstance(trusted_hops, bool) or not isinstance(trusted_hops, int):
            raise TypeError(f"trusted_hops must be an int, not {show(trusted_hops)}")
        if trusted_hops < 0:
            raise InvalidRule(f"trusted_hops must be at least 0, not {trusted_hops}")
        if header not in ("x-forwarded-for", "forwarded"):
            raise InvalidRule(f"header must be 'x-forwarded-for' or 'forwarded', not {show(header)}")
        if isinstance(ipv6_prefix, bool) or not isinstance(ipv6_prefix, int):
            raise TypeError(f"ipv6_prefix must be an int, not {show(ipv6_prefix)}")
        if not 1 <= ipv6_prefix <= 128:
            raise InvalidRule(f"ipv6_prefix must be from 1 to 128, not {ipv6_prefix}")
        self._networks, self._trusts_unix = _networks(trusted_proxies)
        if trusted_hops and (self._networks or self._trusts_unix):
            raise InvalidRule("trusted_proxies and trusted_hops cannot be combined")
        self._hops = trusted_hops
        self._header = header
        self._join_lines = join_lines
        self._prefix = ipv6_prefix
        self._is_direct = not (trusted_hops or self._networks or self._trusts_unix)
        self._named = functools.lru_cache(maxsize=4096)(self._name)
        self._claimed = functools.lru_cache(maxsize=4096)(self._claim)

    def __call__(self, request: Request) -> str | None:
        """Return the client's address as a key, IPv6 as a network; None if there is none."""
        peer = request.peer
        if not self._is_direct:
            client = self._behind_proxies(request, peer)
            if client is not None:
                return self._named(str(client))
        if peer is None:
            return None
        return self._named(peer) if len(peer) <= _MAX_ADDRESS else claims.named("address", peer)

    def attribute(self, request: Request) -> str | None:
        """Return the client's address as an attribute: compared as it is, and IPv6 counted as a network."""
        found = self.forwarded(request) or request.peer
        return None if found is None else self._claimed(found) if len(found) <= _MAX_ADDRESS else found

    def forwarded(self, request: Request) -> str | None:
        """Return the address that the proxies report; None if there are none, or they report nothing usable."""
        client = None if self._is_direct else self._behind_proxies(request, request.peer)
        return None if client is None else str(client)

    def _behind_proxies(self, request: Request, peer: str | None) -> IpAddress | None:
        """Return the address that the proxies report; None if they are not trusted or report nothing usable."""
        if not self._hops and not self.trusts(peer):
            return None
        lines = request.header(self._header)
        if not lines or (len(lines) > 1 and not self._join_lines):
            return None
        stated = stated_addresses(self._header, lines)
        if self._hops:
            return next((address for hop, address in enumerate(stated, 1) if hop == self._hops), None)
        client = None
        for address in stated:
            if address is None:
                return None
            client = address
            if not self._is_proxy(address):
                break
        return client  # the most distant one, if all are proxies

    def trusts(self, peer: str | None) -> bool:
        """Tell whether a peer is one of the trusted proxies; None is one that connects through a Unix socket."""
        if peer is None:
            return self._trusts_unix
        address = parse_address(peer)
        return address is not None and self._is_proxy(address)

    def _is_proxy(self, address: IpAddress) -> bool:
        return any(address in network for network in self._networks)

    def _name(self, text: str) -> str:
        address = parse_address(text)
        if address is None:
            # The name that a server or a test client gives its peer; no network may be meant by it.
            return claims.named("address", text.replace("/", "//"))
        return f"address:{self._counted_as(address)}"

    def _claim(self, text: str) -> str:
        address = parse_address(text)
        return text.replace("/", "//") if address is None else claims.Claim(str(address), self._counted_as(address))

    def _counted_as(self, address: IpAddress) -> str:
        if address.version == 4 or self._prefix == 128:
            return str(address)
        return str(ipaddress.IPv6Network((int(address), self._prefix), strict=False))


def stated_addresses(header: str, lines: Sequence[str]) -> Iterable[IpAddress | None]:
    """Return the addresses in a header, the nearest first; None stands for an entry that is not an address."""
    text = ",".join(lines)
    text = text[-_MAX_LENGTH:]
    if header == "x-forwarded-for":
        return map(parse_address, reversed(text.split(",")))
    return _forwarded(text.split(","))


def parse_address(text: str) -> IpAddress | None:
    """Read an address, with or without a port; an IPv4-mapped IPv6 address becomes an IPv4 address."""
    text = text.strip()
    match = _BRACKETED.fullmatch(text) or _IPV4.fullmatch(text)
    bare = text if match is None else match[1]
    try:
        address = ipaddress.ip_address(bare.partition("%")[0] if ":" in bare else bare)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _forwarded(pieces: list[str]) -> Iterator[IpAddress | None]:
    """Read `Forwarded` from its end, so that a malformed start cannot hide the entries after it."""
    while pieces:
        for commas in range(min(_MAX_COMMAS, len(pieces) - 1) + 1):
            pairs = _pairs(",".join(pieces[-1 - commas :]))
            if pairs is not None:
                del pieces[-1 - commas :]
                break
        else:
            pairs = []
            pieces.clear()
        stated = [value for name, value in pairs if name == "for"]
        yield parse_address(stated[0]) if len(stated) == 1 else None


def _pairs(element: str) -> list[tuple[str, str]] | None:
    """Return the pairs of an element, None if it is malformed."""
    pairs = []
    at = 0
    while True:
        match = _PAIR.match(element, at)
        if match is None:
            return None
        pairs.append((match[1].lower(), match[3] or re.sub(r"\\(.)", r"\1", match[2] or "")))
        at = match.end()
        if at == len(element):
            return pairs
        if element[at] != ";":
            return None
        at += 1


def _networks(given: Iterable[str]) -> tuple[tuple[IpNetwork, ...], bool]:
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise TypeError(f"trusted_proxies must be a list of addresses or networks, not {show(given)}")
    networks: list[IpNetwork] = []
    trusts_unix = False
    for index, text in enumerate(given):
        if text == "unix":
            trusts_unix = True
            continue
        try:
            network = ipaddress.ip_network(text)
        except (ValueError, TypeError) as error:
            raise InvalidRule(
                f"trusted_proxies[{index}]: {error}; use an address, a network such as '10.0.0.0/8', or 'unix'"
            ) from None
        networks.append(network)
    return tuple(networks), trusts_unix
