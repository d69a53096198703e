"""The one, constant script of decisions: what the algorithms share, their steps in Lua, and its main part.

A second script, of three lines, replaces a value that processes share.
"""

from __future__ import annotations

import hashlib
import pkgutil

from ratekeeper.algorithms import ALGORITHMS


def _assemble() -> str:
    steps = {algorithm.script: algorithm.lua() for algorithm in ALGORITHMS}
    return "\n".join(
        [
            _part("prelude"),
            "local function step_of(algorithm, alone)",  # defines only the steps that a call's rules need
            *(f"if algorithm == '{name}' then\n{step}end" for name, step in sorted(steps.items())),
            "end",
            _part("main"),
        ]
    )


def _part(name: str) -> str:
    content = pkgutil.get_data(__name__, f"{name}.lua")
    assert content is not None  # noqa: S101 - the module's loader can load the files beside it
    return content.decode()


def _sha(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


TEXT = _assemble()
SHA = _sha(TEXT)
CALL = (b"EVALSHA", SHA.encode())  # the number of keys, the keys and the argument follow

_REPLACE = """\
local before, content = ARGV[1], ARGV[2]
if redis.call('GETRANGE', KEYS[1], 0, math.max(#before, 1) - 1) ~= before then
  return 0
end
redis.call('SET', KEYS[1], content)
return 1
"""
REPLACE = (b"EVALSHA", _sha(_REPLACE).encode())
"""Replaces a value that begins with the first argument by the second one; if that is empty, there must be no value."""

_TEXTS = {call[1]: text.encode() for call, text in ((CALL, TEXT), (REPLACE, _REPLACE))}


def in_full(call: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Return the same call with the script itself, for a server that does not know it; it may have it already."""
    return b"EVAL", _TEXTS.get(call[1], call[1]), *call[2:]
