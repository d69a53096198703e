"""The one script, constant: what the algorithms share, their steps in Lua, and the part that runs them."""

from __future__ import annotations

import hashlib
from importlib.resources import files


def _assemble() -> str:
    algorithms = files("ratekeeper.algorithms")
    here = files("ratekeeper.stores.redis")
    steps = sorted(file.name.removesuffix(".lua") for file in algorithms.iterdir() if file.name.endswith(".lua"))
    return "\n".join(
        [
            here.joinpath("prelude.lua").read_text(),
            "local function step_of(algorithm, alone)",  # which makes only what the rules of a call need
            *(f"if algorithm == '{step}' then\n{algorithms.joinpath(f'{step}.lua').read_text()}end" for step in steps),
            "end",
            here.joinpath("main.lua").read_text(),
        ]
    )


TEXT = _assemble()
SHA = hashlib.sha1(TEXT.encode(), usedforsecurity=False).hexdigest()
