"""Attributes of a request, such as `{"user": "42", "method": "POST"}`, as the rules of a policy read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ratekeeper.errors import InvalidRule
from ratekeeper.http.claims import Claim
from ratekeeper.http.url_paths import is_usual, normalized
from ratekeeper.rates import show

Texts = dict[str, str]
_HEADER = "header:"
_MAX_BITS = 2048  # of an int


class ReadPath(str):
    """A path as applications may read it, which was written in another way."""

    __slots__ = ("written",)
    written: str

    def __new__(cls, written: str) -> ReadPath:
        path = super().__new__(cls, normalized(written))
        path.written = written
        return path


class InvalidAttribute(InvalidRule):
    """An attribute of a request is missing or invalid; `attribute` is its name."""

    def __init__(self, attribute: str, reason: str) -> None:
        super().__init__(f"attribute {show(attribute)} {reason}")
        self.attribute = attribute
        self._reason = reason

    def __reduce__(self) -> tuple[type[InvalidAttribute], tuple[str, str]]:
        return type(self), (self.attribute, self._reason)


def as_texts(attributes: Mapping[str, Any]) -> Texts:
    """Check a request's attributes, and return each as a text: 42 and "42" are one identity.

    Names of headers and methods ignore case, and a path is read as routes read it: as a `ReadPath`, unless nobody could
    read it in another way. A `Claim` stays as it is.
    """
    if attributes.__class__ is not dict and not isinstance(attributes, Mapping):
        raise TypeError(f"attributes must be a mapping of names to texts or integers, not {show(attributes)}")
    texts: Texts = {}
    for given, value in attributes.items():
        name = known_name(given) if given.__class__ is str and ":" in given else given
        if name.__class__ is not str:
            raise TypeError(f"the name of an attribute must be a str, not {show(name)}")
        text = value if value.__class__ is str else _as_text(name, value)
        if value.__class__ is Claim:
            text = value
        elif name == "method":
            text = text.upper()
        elif name == "path":
            text = text if is_usual(text) else ReadPath(text)
        if texts.setdefault(name, text) != text:
            raise InvalidAttribute(name, "is given twice, with different values")
    return texts


def known_name(name: str) -> str:
    """Return an attribute's name as it is compared: the names of headers ignore case."""
    return name.lower() if name[:7].lower() == _HEADER else name


def _as_text(name: str, value: Any) -> str:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidAttribute(name, f"must be a text or an integer, not {show(value)}")
    if value.bit_length() > _MAX_BITS:
        raise InvalidAttribute(name, f"must have at most {_MAX_BITS} bits")
    return str(int(value))
