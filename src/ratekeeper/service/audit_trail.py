"""The audit trail: who changed policies and overrides, kept in the store, the newest entries last."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from typing import Any

import msgspec

from ratekeeper.errors import StoreUnavailable
from ratekeeper.service.editions import moment
from ratekeeper.service.store_time import StoreTime
from ratekeeper.service.versioned_values import VersionedValue

MOST_ENTRIES = 1_000
MOST_BYTES = 256 * 1024
_TRIES = 20  # to write, while others do
_LATEST = 8  # entries among which one that another process has made is looked for
_log = logging.getLogger("ratekeeper")


class AuditTrail:
    """The latest changes that were made on a store, by any of its processes."""

    def __init__(self, value: VersionedValue, time: StoreTime) -> None:
        self._value = value
        self._time = time

    async def note(self, what: str, by: str, details: Mapping[str, Any], *, of_each_process: bool = False) -> None:
        """Add an entry: what was changed, from where, and what there is to say about it.

        What each process changes for itself is noted once. The change stands if the store does not answer; the entry
        is then in the log alone.
        """
        process = f"{socket.gethostname()}:{os.getpid()}"
        entry = {"at": moment(self._time() // 1_000), "what": what, "from": by, "process": process, **details}
        _log.info("%s, from %s: %s", what, by, {name: details[name] for name in ("id", "version") if name in details})
        try:
            for _ in range(_TRIES):
                await self._value.look()
                content = self._value.known.content
                if of_each_process and any(_alike(entry, other) for other in _entries(content)[-_LATEST:]):
                    return
                if await self._value.replace(_cut(content + msgspec.json.encode(entry) + b"\n")):
                    return
        except StoreUnavailable as error:
            _log.warning("the audit trail lacks this change: %s", error)

    async def entries(self) -> list[Any]:
        """Return the entries, the newest first."""
        await self._value.look()
        return _entries(self._value.known.content)[::-1]


def _entries(lines: bytes) -> list[Any]:
    return [msgspec.json.decode(line) for line in lines.splitlines()]


def _alike(entry: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Tell whether two processes have changed the same."""
    return all(entry.get(name) == other.get(name) for name in ("what", "from", "digest"))


def _cut(lines: bytes) -> bytes:
    """Leave out the oldest entries if there are too many."""
    kept = lines.splitlines(keepends=True)[-MOST_ENTRIES:]
    size = sum(map(len, kept))
    while size > MOST_BYTES:
        size -= len(kept.pop(0))
    return b"".join(kept)
