"""What a key is called outside of this process. No two identities share a name, and people can read it."""

from __future__ import annotations

import hashlib

from ratekeeper.stores.protocol import Binding, Key

_LONG = 96  # bytes of an identity beyond which it is stored hashed
_SPECIAL = bytes((*b"%{}", *range(0x20), 0x7F))  # what would end a hash tag, or is hard to read


def head_of(binding: Binding) -> bytes:
    """Return what the names of all keys of a rule begin with, up to the brace that opens the identity."""
    prefix, algorithm, name = binding.space
    parts = [prefix, binding.rule.short_name, name]
    if name.startswith(f"{algorithm} "):  # a rule that is named by its text: once is enough; no name is empty
        parts[2:] = "", name[len(algorithm) + 1 :]
    return b":".join(_escape(part.encode("utf-8", "surrogatepass"), _SPECIAL + b":") for part in parts) + b":{"


def name_of(head: bytes, key: Key) -> bytes:
    """Name a key of a rule."""
    return head + identity_of(key) + b"}"


def head_in(name: bytes) -> bytes:
    """Return the part of a name that says which rule it belongs to."""
    return name[: name.index(b"{") + 1]


def identity_of(key: Key) -> bytes:
    """Return the part of a name that says who is limited."""
    if type(key) is str:
        text = key.encode("utf-8", "surrogatepass")
        if len(text) <= _LONG and len(text.translate(None, _SPECIAL)) == len(text):  # nearly always
            return text
    # What is no str begins with a % and a letter, which an escaped str never does.
    if isinstance(key, tuple):
        parts = [_one(part) for part in key]
        identity = b"%t" + b"".join(b"%d:%s" % (len(part), part) for part in parts)
    else:
        identity = _one(key)
    return (
        identity if len(identity) <= _LONG else b"%h" + hashlib.blake2b(identity, digest_size=16).hexdigest().encode()
    )


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
