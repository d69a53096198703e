"""A worker: one of the processes that serve together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Worker:
    """The place of a process among those that serve together; by default it is the only one."""

    index: int = 0
    """Its number, from 0; a worker that replaces another one takes over its number."""

    count: int = 1
    """How many workers there are."""

    directory: Path | None = None
    """A private directory for what the workers share, which is removed after them; None if there is one worker."""


ALONE = Worker()
