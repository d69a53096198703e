"""Forked children: one hook that renews all objects that a child cannot share, such as locks and sockets."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forked(Protocol):
    """An object that a forked child must renew before it uses it."""

    def after_fork(self) -> None:
        """Start afresh: a thread that held a lock does not exist in the child, and open sockets are the parent's."""


_all: weakref.WeakSet[Forked] = weakref.WeakSet()


def renew_in_child(it: Forked) -> None:
    """Call `it.after_fork()` in every forked child, as long as the object exists."""
    _all.add(it)


def _renew_all() -> None:
    for it in list(_all):
        it.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
