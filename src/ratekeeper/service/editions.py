"""Editions: the text of all policies with its version, when it came into force, and by whom."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any, NamedTuple

import msgspec

from ratekeeper.errors import InvalidRule
from ratekeeper.policies import InvalidPolicies
from ratekeeper.policies.documents import Format

MOST_EDITIONS = 20  # that are remembered


class _Facts(msgspec.Struct):
    """What is stored of an edition, in one line, before its text."""

    format: Format
    at_us: int
    by: str


_facts = msgspec.json.Decoder(_Facts)


class Edition(NamedTuple):
    """The text of all policies, as it was put in force or stored."""

    version: int
    text: str
    format: Format
    at_us: int
    """When that was, in microseconds since the epoch."""
    by: str
    """Where it came from: a client's address, or a file."""

    @property
    def digest(self) -> str:
        """What tells texts apart."""
        return hashlib.blake2b(self.text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    @property
    def content(self) -> bytes:
        """The edition without its version, as it is stored."""
        return msgspec.json.encode(_Facts(self.format, self.at_us, self.by)) + b"\n" + self.text.encode()

    @classmethod
    def read(cls, version: int, content: bytes) -> Edition:
        """Return the edition with this version and content; raise InvalidRule if it is none."""
        facts, _, text = content.partition(b"\n")
        try:
            read = _facts.decode(facts)
        except msgspec.DecodeError as error:
            raise InvalidRule(f"the stored policies are damaged: {error}") from None
        return cls(version, text.decode(), read.format, read.at_us, read.by)

    def fields(self) -> dict[str, Any]:
        """Return what there is to say about it, as plain data."""
        return {
            "version": self.version,
            "digest": self.digest,
            "at": moment(self.at_us),
            "by": self.by,
            "format": self.format,
            "bytes": len(self.text.encode("utf-8", "surrogatepass")),
        }


class Refusal(NamedTuple):
    """An edition that was not put in force."""

    version: int | None
    """Its version, if it has one: in a store."""
    at_us: int
    by: str
    reasons: Sequence[dict[str, Any]]

    def fields(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"version": self.version, "at": moment(self.at_us), "by": self.by, "reasons": list(self.reasons)}


def reasons_of(error: InvalidRule) -> list[dict[str, Any]]:
    """Return what is wrong with policies, as plain data."""
    if isinstance(error, InvalidPolicies):
        return [mistake._asdict() for mistake in error.mistakes]
    return [{"line": None, "place": "", "reason": str(error), "suggestion": None}]


def moment(at_us: int) -> str:
    """Write a time as people and programs read it."""
    return datetime.fromtimestamp(at_us / 1e6, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
