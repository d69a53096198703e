"""The part of Structured Fields (RFC 9651) that the RateLimit fields use: lists of items with parameters."""

from __future__ import annotations

import base64
import binascii
import re
from typing import NamedTuple

BareItem = str | int | float | bytes | bool
MAX_INTEGER = 999_999_999_999_999
MAX_LENGTH = 8192  # characters of a field that are read, so that a response cannot cost much time

_KEY = re.compile(r"[a-z*][a-z0-9_.*-]*")
_NUMBER = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,3})?")
_STRING = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')
_TOKEN = re.compile(r"[A-Za-z*][!#$%&'*+.^_`|~:/0-9A-Za-z-]*")
_BYTES = re.compile(r":([A-Za-z0-9+/=]*):")
_BOOLEAN = re.compile(r"\?[01]")
_COMMA = re.compile(r"[ \t]*,[ \t]*")
_SPACES = re.compile(r" *")


class Malformed(ValueError):
    """A field that does not follow the grammar."""


class Item(NamedTuple):
    """One member of a list, and its parameters."""

    value: BareItem
    parameters: dict[str, BareItem]


def string(text: str) -> str:
    """Write a String; characters other than printable ASCII are escaped."""
    plain = "".join(char if " " <= char <= "~" else char.encode("unicode_escape").decode() for char in text)
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


def byte_sequence(value: bytes) -> str:
    """Write a Byte Sequence."""
    return f":{base64.b64encode(value).decode()}:"


def read_list(text: str) -> list[Item]:
    """Read a List of Items."""
    return [item for _, item in _members(text, named=False)]


def read_dictionary(text: str) -> dict[str, Item]:
    """Read a Dictionary of Items."""
    return dict(_members(text, named=True))


def _members(text: str, *, named: bool) -> list[tuple[str, Item]]:
    if len(text) > MAX_LENGTH:
        raise Malformed("the field is too long")
    text = text.strip(" ")
    members: list[tuple[str, Item]] = []
    at = 0
    while at < len(text):
        name = ""
        value: BareItem = True
        if named:
            name, at = _take(_KEY, text, at)
            if text[at : at + 1] == "=":
                value, at = _bare_item(text, at + 1)
        else:
            value, at = _bare_item(text, at)
        parameters, at = _parameters(text, at)
        members.append((name, Item(value, parameters)))
        if at < len(text):
            _, at = _take(_COMMA, text, at)
            if at == len(text):
                raise Malformed("a trailing comma")
    return members


def _take(pattern: re.Pattern[str], text: str, at: int) -> tuple[str, int]:
    match = pattern.match(text, at)
    if match is None:
        raise Malformed(f"unexpected {text[at : at + 10]!r}")
    return match[0], match.end()


def _parameters(text: str, at: int) -> tuple[dict[str, BareItem], int]:
    parameters: dict[str, BareItem] = {}
    while text[at : at + 1] == ";":
        _, at = _take(_SPACES, text, at + 1)
        key, at = _take(_KEY, text, at)
        parameters[key] = True
        if text[at : at + 1] == "=":
            parameters[key], at = _bare_item(text, at + 1)
    return parameters, at


def _bare_item(text: str, at: int) -> tuple[BareItem, int]:
    first = text[at : at + 1]
    if first == '"':
        quoted, at = _take(_STRING, text, at)
        return re.sub(r"\\(.)", r"\1", quoted[1:-1]), at
    if first == ":":
        encoded, at = _take(_BYTES, text, at)
        try:
            return base64.b64decode(encoded[1:-1]), at
        except binascii.Error as error:
            raise Malformed(str(error)) from None
    if first == "?":
        flag, at = _take(_BOOLEAN, text, at)
        return flag == "?1", at
    if first.isalpha() or first == "*":
        return _take(_TOKEN, text, at)
    number, at = _take(_NUMBER, text, at)
    return (float(number) if "." in number else int(number)), at
