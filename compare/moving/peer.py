"""A peer: what is needed to try its patterns out."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from compare.moving.page import Pattern

MODULES = {
    "slowapi": "slowapi",
    "Flask-Limiter": "flask_limiter",
    "django-ratelimit": "django_ratelimit",
    "limits": "limits",
    "throttled-py": "throttled_py",
}

_KINDS = (  # what fits none of these is a program
    ("view", re.compile(r"(@.*\n?)+\Z")),
    ("option", re.compile(r"\w+=.*\Z")),
    ("setting", re.compile(r"[A-Z_0-9]+ = (?!.*^(?:def|class) )", re.MULTILINE | re.DOTALL)),
    ("call", re.compile(r"(?!\w+ = ).*\Z")),
)


class Peer(NamedTuple):
    """The packages of a peer, and the programs that its lines stand in."""

    packages: Sequence[str]
    """What its users install; the peer itself comes first."""
    extras: str
    """The extras of ratekeeper that our lines need."""
    client: str
    """The function of `traffic` that sends the steps."""
    frames: Mapping[tuple[str, str], str]
    """The programs for each side and kind of lines; `{lines}` stands for them."""

    def program(self, pattern: Pattern, side: str) -> str:
        """Return the whole program of one side of a pattern."""
        lines = pattern.lines(side)
        kind = next((kind for kind, form in _KINDS if form.match(lines)), "program")
        return self.frames[side, kind].replace("{lines}", lines)


def peer(name: str) -> Peer:
    """Return the peer with this name."""
    found: Peer = importlib.import_module(f"compare.moving.{MODULES[name]}").PEER
    return found
