"""Conditions on attributes: what `when` says, compiled so that a request is compared in linear time.

>>> when = When({"method": ("POST", "PUT"), "path": ("/v1/*",)})
>>> when.matches({"method": "POST", "path": "/v1/items"}), when.matches({"method": "POST"})
(True, False)
"""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ratekeeper.http.address import IpNetwork, parse_address
from ratekeeper.http.url_paths import folded, is_usual, normalized
from ratekeeper.policies.attributes import ReadPath, Texts, known_name

Size = tuple[int, int]
"""The size of a network: the version of its addresses, and how many of their last bits may differ."""

_MAX_ADDRESS = 64  # characters


class When:
    """All conditions that a request must meet. `given` has the patterns of each attribute, as they were written."""

    __slots__ = ("_patterns", "given")

    def __init__(self, given: Mapping[str, Sequence[str]]) -> None:
        self.given = dict(given)
        self._patterns = tuple((known_name(name), Patterns(known_name(name), texts)) for name, texts in given.items())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, When) and self.given == other.given

    def __hash__(self) -> int:
        return hash(tuple(self.given.items()))

    def __repr__(self) -> str:
        return f"When({self.given})"

    def __str__(self) -> str:
        return ", ".join(f"{name}={' or '.join(map(str, texts))}" for name, texts in self.given.items()) or "always"

    @property
    def attributes(self) -> Iterator[str]:
        """The names of the attributes that it compares."""
        return (name for name, _ in self._patterns)

    @property
    def has_usual_paths(self) -> bool:
        """Whether it compares a usual path in the same way as it is read and as it is written."""
        patterns = [each for name, given in self.given.items() if known_name(name) == "path" for each in given]
        return all(is_usual(f"/{each}" if each.startswith("*") else each) for each in patterns)

    def matches(self, attributes: Texts, *, as_written: bool = False) -> bool:
        """Tell whether each named attribute is there and matches one of its patterns.

        A path is compared as applications may read it, or exactly as it is written.
        """
        for name, patterns in self._patterns:
            text = attributes.get(name)
            if text is None or not patterns.match(text, as_written=as_written):
                return False
        return True

    @property
    def indexable(self) -> Iterator[tuple[str, Patterns]]:
        """The attributes, each with its patterns, that can be looked up: those without wildcards."""
        return ((name, patterns) for name, patterns in self._patterns if not patterns.wildcards)


class Patterns:
    """The patterns of one attribute, one of which must match."""

    __slots__ = ("networks", "texts", "wildcards", "written_paths")

    def __init__(self, name: str, patterns: Sequence[str]) -> None:
        self.written_paths = _written_paths(patterns) if name == "path" else None
        self.texts: set[str] = set()
        self.wildcards: list[list[str]] = []
        self.networks: dict[Size, set[int]] = {}
        for pattern in (each for given in patterns for each in _as_compared(name, given)):
            network = as_network(pattern)
            if network is not None:
                shift = network.max_prefixlen - network.prefixlen
                self.networks.setdefault((network.version, shift), set()).add(int(network.network_address) >> shift)
            elif "*" in pattern:
                self.wildcards.append(pattern.split("*"))
            else:
                self.texts.add(pattern)

    def match(self, text: str, *, as_written: bool = False) -> bool:
        """Tell whether one of the patterns matches."""
        if self.written_paths is not None:
            if as_written:
                written = text.written if text.__class__ is ReadPath else text
                return any(_fits(pieces, written) for pieces in self.written_paths)
            text = folded(text)
        return (
            text in self.texts
            or (bool(self.wildcards) and any(_fits(pieces, text) for pieces in self.wildcards))
            or (
                bool(self.networks)
                and any(number in self.networks[size] for size, number in networks_around(text, self.networks))
            )
        )


def networks_around(text: str, sizes: Iterable[Size]) -> Iterator[tuple[Size, int]]:
    """Return the networks of these sizes that an address, or a network, is within."""
    network = as_network(text)
    if network is not None:
        first, last = int(network.network_address), int(network.broadcast_address)
        for size in sizes:
            version, shift = size
            if version == network.version and first >> shift == last >> shift:
                yield size, first >> shift


@functools.lru_cache(maxsize=4096)
def as_network(text: str) -> IpNetwork | None:
    """Read an address or a network; None if it is neither. An IPv4-mapped IPv6 address is read as IPv4."""
    if len(text) > _MAX_ADDRESS or not text or not (text[0].isalnum() or text[0] in ":["):
        return None
    try:
        if "/" in text:
            return ipaddress.ip_network(text)
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    known = parse_address(str(address))  # without a zone or a mapping
    return None if known is None else ipaddress.ip_network(known)


def _as_compared(name: str, pattern: str) -> list[str]:
    """Return what a pattern is compared as: a method in upper case, a path as routes read it."""
    if name == "method":
        return [pattern.upper()]
    if name != "path":
        return [pattern]
    path = folded(normalized(pattern))
    return [path, path[:-2]] if path.endswith("/*") and path != "/*" else [path]


def _written_paths(patterns: Sequence[str]) -> list[list[str]]:
    """Return the patterns of paths as they are written, in pieces; `/v1/*` includes `/v1`."""
    parents = [pattern[:-2] for pattern in patterns if pattern.endswith("/*") and pattern != "/*"]
    return [pattern.split("*") for pattern in (*patterns, *parents)]


def _fits(pieces: Sequence[str], text: str) -> bool:
    """Tell whether the pieces between the wildcards are found in the text, in order."""
    first, last = pieces[0], pieces[-1]
    if len(pieces) == 1:
        return text == first
    if len(text) < len(first) + len(last) or not (text.startswith(first) and text.endswith(last)):
        return False
    at, end = len(first), len(text) - len(last)
    for piece in pieces[1:-1]:
        at = text.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True
