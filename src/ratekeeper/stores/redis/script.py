"""The one, constant script: what the algorithms share, their steps in Lua, and the main part that runs them."""

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


TEXT = _assemble()
SHA = hashlib.sha1(TEXT.encode(), usedforsecurity=False).hexdigest()
CALL = (b"EVALSHA", SHA.encode())  # the number of keys, the keys and the argument follow
_IN_FULL = (b"EVAL", TEXT.encode())


def in_full(call: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Return the same call with the script itself, for a server that does not know it yet."""
    return _IN_FULL + call[len(CALL) :]
