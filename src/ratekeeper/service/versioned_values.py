"""Values with a version that processes share on a store: whoever replaces one knows the version that it replaces.

A value begins with a header of fixed length: its version, and a digest of its content. Two values with the same header
are the same. So processes read only the header of a value again and again, and the rest when it has changed.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from typing import NamedTuple

from ratekeeper import flows
from ratekeeper.service.store_time import StoreTime
from ratekeeper.stores.protocol import SharedValue, SharedValues

_HEADER = re.compile(rb"([0-9]{20}) [0-9a-f]{32}\n")
_HEADER_BYTES = 54
_log = logging.getLogger("ratekeeper")


class Stored(NamedTuple):
    """A value as it was read."""

    version: int
    """Its version, from 1; 0 if there is no value, or a damaged one."""
    value: bytes
    """All of it, with the header."""

    @property
    def header(self) -> bytes:
        """How the value begins."""
        return self.value[:_HEADER_BYTES]

    @property
    def content(self) -> bytes:
        """The value without the header."""
        return self.value[_HEADER_BYTES:] if self.version else b""


NOTHING = Stored(0, b"")


class VersionedValue:
    """One value, as this process knows it.

    A process that knows a higher version than the store writes it again: the store has lost it, in a restart or a
    failover.
    """

    def __init__(self, shared: SharedValues, name: str, time: StoreTime) -> None:
        self.known = NOTHING
        """The value that was read or written last."""
        self._shared = shared
        self._name = name
        self._time = time
        self._lock = asyncio.Lock()

    async def look(self) -> bool:
        """Read the value if it has changed; tell whether it has.

        Raise StoreUnavailable if the store does not answer.
        """
        async with self._lock:
            header = await self._read(_HEADER_BYTES)
            if header == self.known.header:
                return False
            if _version(header) >= self.known.version:
                read = _stored(await self._read())
                if read.version >= self.known.version:
                    self.known = read
                    return True
                header = read.header
            if await flows.result(self._shared.replace_shared(self._name, header, self.known.value)):
                _log.warning("the store has lost version %d of %r; wrote it again", self.known.version, self._name)
            return False

    async def replace(self, content: bytes) -> bool:
        """Write the next version, unless the store has another than the known one; tell whether it was written.

        Raise StoreUnavailable if the store does not answer; whether it was written then shows in the next look.
        """
        async with self._lock:
            version = self.known.version + 1
            header = b"%020d %b\n" % (version, _digest(version, content))
            if not await flows.result(self._shared.replace_shared(self._name, self.known.header, header + content)):
                return False
            self.known = Stored(version, header + content)
            return True

    async def keep(self, stored: Stored) -> None:
        """Write a value of another name, unless there is one with this version or a higher one already."""
        async with self._lock:
            header = await self._read(_HEADER_BYTES)
            if _version(header) < stored.version:
                await flows.result(self._shared.replace_shared(self._name, header, stored.value))

    def sibling(self, name: str) -> VersionedValue:
        """Return another value, of the same name with this one behind it."""
        return VersionedValue(self._shared, f"{self._name}:{name}", self._time)

    async def _read(self, most: int | None = None) -> bytes:
        read: SharedValue = await flows.result(self._shared.read_shared(self._name, most))
        self._time.learn(read.now_us)
        return read.content


def _stored(value: bytes) -> Stored:
    """Return a value with its version, or as nothing if it is damaged."""
    version = _version(value[:_HEADER_BYTES])
    is_whole = version and value[:_HEADER_BYTES].split()[1] == _digest(version, value[_HEADER_BYTES:])
    return Stored(version if is_whole else 0, value)


def _version(header: bytes) -> int:
    found = _HEADER.fullmatch(header)
    return 0 if found is None else int(found[1])


def _digest(version: int, content: bytes) -> bytes:
    digest = hashlib.blake2b(b"%d " % version, digest_size=16)
    digest.update(content)
    return digest.hexdigest().encode()
