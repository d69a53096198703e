"""The names under which keys are stored outside this process: readable, and different for any two keys of a rule."""

from __future__ import annotations

import hashlib

from ratekeeper.stores.protocol import Binding, Key

_LONG = 96  # bytes; a longer key is stored as a hash
_SPECIAL = bytes((*b"%{}", *range(0x20), 0x7F))  # characters that would end a hash tag, or are hard to read


def head_of(binding: Binding) -> bytes:
    """Return the beginning of the names of a rule's keys, up to the brace that opens the key.

    The prefix keeps its colons, so that the pattern of an ACL, such as `~ratekeeper:*`, matches every name that begins
    with it. The parts after it have no colons, and only a rule's text follows an empty part. So a name can be taken
    apart from the right, and no two spaces share one.
    """
    prefix, algorithm, name = binding.space
    parts = [binding.rule.short_name, name]
    if name.startswith(f"{algorithm} "):  # a rule named after its text: do not say it twice; no name is empty
        parts[1:] = "", name[len(algorithm) + 1 :]
    escaped = [_escape(part.encode("utf-8", "surrogatepass"), _SPECIAL + b":") for part in parts]
    return b":".join([_escape(prefix.encode("utf-8", "surrogatepass"), _SPECIAL), *escaped]) + b":{"


def name_of(head: bytes, key: Key) -> bytes:
    """Return the full name of a key."""
    return head + encoded(key) + b"}"


def shared_name(name: str) -> bytes:
    """Return the full name of a shared value; that of a key has more parts before its brace."""
    return b"ratekeeper:shared:{%b}" % name.encode()


def head_in(name: bytes) -> bytes:
    """Return the part of a name that identifies the rule."""
    return name[: name.index(b"{") + 1]


def encoded(key: Key) -> bytes:
    """Return a key as it is written in a name."""
    if type(key) is str:
        text = key.encode("utf-8", "surrogatepass")
        if len(text) <= _LONG and len(text.translate(None, _SPECIAL)) == len(text):  # nearly always
            return text
    # Anything but a str begins with a % and a lowercase letter, which an escaped str never does.
    if isinstance(key, tuple):
        parts = [_one(part) for part in key]
        text = b"%t" + b"".join(b"%d:%s" % (len(part), part) for part in parts)
    else:
        text = _one(key)
    return text if len(text) <= _LONG else b"%h" + hashlib.blake2b(text, digest_size=16).hexdigest().encode()


def _one(part: str | bytes | int) -> bytes:
    if isinstance(part, str):
        return _escape(part.encode("utf-8", "surrogatepass"), _SPECIAL)
    if isinstance(part, bytes):
        return b"%b" + _escape(part, _SPECIAL)
    return b"%i" + b"%d" % part


def _escape(text: bytes, special: bytes) -> bytes:
    if len(text.translate(None, special)) == len(text):  # nearly always
        return text
    return b"".join(b"%%%02X" % byte if byte in special else bytes((byte,)) for byte in text)
