"""What becomes of locks, sockets and slices in a forked child: one hook for all that has to begin again there."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forked(Protocol):
    """Something that a forked child cannot go on with as it is."""

    def after_fork(self) -> None:
        """Begin again: whoever held a lock does not exist in the child, and open sockets are the parent's."""


_all: weakref.WeakSet[Forked] = weakref.WeakSet()


def renew_in_child(it: Forked) -> None:
    """Call `it.after_fork()` in every forked child, for as long as it exists."""
    _all.add(it)


def _renew_all() -> None:
    for it in list(_all):
        it.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
