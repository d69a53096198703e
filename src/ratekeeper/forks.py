"""One fork hook for the package: it renews objects that a child cannot share, such as locks and sockets."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forked(Protocol):
    """An object that must be renewed in a forked child. Each method may be called twice."""

    def after_fork(self) -> None:
        """Start afresh: a thread that held a lock does not exist in the child, and open sockets are the parent's."""


class Paused(Forked, Protocol):
    """An object that must be idle at the moment of a fork."""

    def before_fork(self) -> None:
        """Become idle, and release what a child must not share."""

    def after_fork_in_parent(self) -> None:
        """Go on."""


_all: weakref.WeakSet[Forked] = weakref.WeakSet()
_paused: weakref.WeakSet[Paused] = weakref.WeakSet()


def renew_in_child(it: Forked) -> None:
    """Call `it.after_fork()` in every forked child, as long as the object exists."""
    _all.add(it)


def pause_at_fork(it: Paused) -> None:
    """Call `it.before_fork()` before every fork, then `after_fork_in_parent()`, and `after_fork()` in the child."""
    _all.add(it)
    _paused.add(it)


def _pause_all() -> None:
    for it in list(_paused):
        it.before_fork()


def _go_on() -> None:
    for it in list(_paused):
        it.after_fork_in_parent()


def _renew_all() -> None:
    for it in list(_all):
        it.after_fork()


if hasattr(os, "register_at_fork"):
    for _ in range(2):  # a signal handler that raises ends one of them: Python then goes on with the next
        os.register_at_fork(before=_pause_all, after_in_parent=_go_on, after_in_child=_renew_all)
