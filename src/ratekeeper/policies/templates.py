"""Keys and costs that are made of attributes.

>>> KeyTemplate.read("{tenant}/{user|anonymous}").key({"tenant": "acme", "user": "42"})
('acme', '42')

Two identities never share a key. The parts stay apart. A default is marked by a number behind the parts, which says
which parts are defaults: a given value has no such number.

>>> KeyTemplate.read("{user|anonymous}").key({}), KeyTemplate.read("{user|anonymous}").key({"user": "anonymous"})
(('anonymous', 1), 'anonymous')
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field

from ratekeeper.errors import InvalidRule
from ratekeeper.http.claims import Claim
from ratekeeper.keys import MAX_BYTES, MAX_PARTS, SURELY_SHORT, Number
from ratekeeper.policies.attributes import InvalidAttribute, Texts, known_name
from ratekeeper.rates import show
from ratekeeper.stores.protocol import Key

_PART = re.compile(r"\{([^{}|]*)(?:\|([^{}|]*))?\}")
_ONLY_SEPARATES = re.compile(r"[\s/:;,.|_~+-]*")
_MAX_CHARACTERS = 1024  # of a template
_DIGITS = re.compile(r"[0-9]{1,18}")
_MAX_BITS = 59  # of a cost: as many as that many digits have


@dataclass(frozen=True)
class Part:
    """A part of a key: an attribute, with or without a default, or a literal text."""

    attribute: str | None
    text: str | None = None
    """The default; of a literal, the text itself."""


@dataclass(frozen=True)
class KeyTemplate:
    """What a rule counts by."""

    text: str
    parts: tuple[Part, ...]
    only: Part | None = field(init=False, compare=False, repr=False)
    """The part, if there is one."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "only", self.parts[0] if len(self.parts) == 1 else None)

    @classmethod
    def read(cls, text: str) -> KeyTemplate:
        """Read a text such as `{tenant}/{user}`; raise InvalidRule if it cannot be read."""
        if not text:
            raise InvalidRule("must not be empty; write 'all' for one key for all requests")
        if len(text) > _MAX_CHARACTERS:
            raise InvalidRule(f"has {len(text)} characters; at most {_MAX_CHARACTERS} are allowed")
        parts: list[Part] = []
        at = 0
        for found in _PART.finditer(text):
            _add_literal(parts, text[at : found.start()])
            parts.append(Part(_attribute(found[1]), found[2]))
            at = found.end()
        _add_literal(parts, text[at:])
        if any(part.attribute is not None for part in parts):  # otherwise the separators are all there is
            parts = [part for part in parts if part.attribute or not _ONLY_SEPARATES.fullmatch(part.text or "")]
        if len(parts) > MAX_PARTS - 1:
            raise InvalidRule(f"has {len(parts)} parts; at most {MAX_PARTS - 1} are allowed")
        return cls(text, tuple(parts))

    @property
    def attributes(self) -> set[str]:
        """The names of the attributes in it."""
        return {part.attribute for part in self.parts if part.attribute is not None}

    def key(self, attributes: Texts, *, shares: bool = False) -> Key:
        """Return the key of a request; raise InvalidAttribute if an attribute is missing that has no default.

        With `shares`, all requests without it share one key instead.
        """
        if self.only is not None:  # nearly always
            text = self.only.text if self.only.attribute is None else attributes.get(self.only.attribute)
            if text.__class__ is str and 0 < len(text) <= SURELY_SHORT:
                return text
        parts: list[str] = []
        defaults = 0
        for at, part in enumerate(self.parts):
            name = part.attribute
            text = part.text if name is None else attributes.get(name)
            if text is None:
                if part.text is None and not shares:
                    raise InvalidAttribute(str(name), f"is missing; the key {show(self.text)} needs it")
                text = part.text or ""
                defaults |= 1 << at
            elif text.__class__ is Claim:
                text = text.counted_as
            parts.append(text)
        return _joined(parts, defaults)


@dataclass(frozen=True)
class CostTemplate:
    """What a rule charges: a number, or the value of an attribute."""

    number: int | None
    attribute: str | None = None

    @classmethod
    def read(cls, given: int | str) -> CostTemplate:
        """Read a number, or a text such as `{tokens}` or `{tokens|1}`; raise InvalidRule if it cannot be read."""
        if isinstance(given, int):
            if given < 0:
                raise InvalidRule(f"must be at least 0, not {show(given)}")
            if given.bit_length() > _MAX_BITS:
                raise InvalidRule("has too many digits")
            return cls(given)
        if len(given) > _MAX_CHARACTERS:
            raise InvalidRule(f"has {len(given)} characters; at most {_MAX_CHARACTERS} are allowed")
        found = _PART.fullmatch(given)
        if found is None:
            hint = f"; write {given} without quotes" if _DIGITS.fullmatch(given) else ""
            raise InvalidRule(f"must be a number or one attribute such as '{{tokens}}', not {show(given)}{hint}")
        if found[2] is not None and not _DIGITS.fullmatch(found[2]):
            raise InvalidRule(f"needs a whole number as its default, not {show(found[2])}")
        return cls(None if found[2] is None else int(found[2]), _attribute(found[1]))

    @property
    def text(self) -> str:
        """The template as it is written."""
        if self.attribute is None:
            return str(self.number)
        return f"{{{self.attribute}}}" if self.number is None else f"{{{self.attribute}|{self.number}}}"

    def cost(self, attributes: Texts) -> int:
        """Return the cost of a request; raise InvalidAttribute if its attribute is missing or no cost."""
        if self.attribute is None:
            return self.number or 0
        text = attributes.get(self.attribute)
        if text is None:
            if self.number is None:
                raise InvalidAttribute(self.attribute, f"is missing; the cost {show(self.text)} needs it")
            return self.number
        if not _DIGITS.fullmatch(text):
            raise InvalidAttribute(self.attribute, f"must be a cost, a whole number of at least 0, not {show(text)}")
        return int(text)


def _add_literal(parts: list[Part], text: str) -> None:
    if "{" in text or "}" in text:
        raise InvalidRule("has an unmatched '{' or '}'; write an attribute as '{user}' or '{user|default}'")
    if text:
        parts.append(Part(None, text))


def _attribute(name: str) -> str:
    if not name or name != name.strip():
        raise InvalidRule(f"names no attribute in '{{{name}}}'; write it as '{{user}}'")
    return known_name(name)


def _joined(parts: list[str], defaults: int) -> Key:
    """Join the parts; mark defaults, and what would be an empty key. Hash what is too long."""
    key: tuple[str | int, ...] = tuple(parts)
    if defaults or not any(parts):
        key = (*key, Number(defaults))
    encoded = [part.encode("utf-8", "surrogatepass") for part in parts]
    if sum(map(len, encoded)) + MAX_PARTS <= MAX_BYTES:
        return key[0] if len(key) == 1 else key
    content = b"".join(b"%d:%b" % (len(part), part) for part in encoded)
    return (hashlib.blake2b(b"%d:%b" % (defaults, content), digest_size=32).digest(),)  # bytes, as no other key has
