"""Where the service has its policies from: the program that embeds it, a file, or the store.

A source looks for changes again and again, and puts them in force.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from ratekeeper.clock import Clock, wall_clock
from ratekeeper.errors import InvalidRule
from ratekeeper.policies import InvalidPolicies, Mistake, Policies
from ratekeeper.policies.documents import MAX_BYTES, Format, as_text, read_text
from ratekeeper.service.editions import MOST_EDITIONS, Edition
from ratekeeper.service.served_policies import ServedPolicies
from ratekeeper.service.web import Problem

LOOKS = 0.25  # seconds between two looks at a file


class PolicySource(Protocol):
    """Where policies are from."""

    kind: str
    changed_by: str
    """Who changes the policies, and how."""
    pause: float
    """Seconds between two looks."""

    @property
    def path(self) -> str | None:
        """The file, if they are from one."""

    async def look(self) -> None:
        """Put in force what has changed."""

    async def reload(self, by: str) -> bool:
        """Put in force what is there now, since someone says so; tell whether that changed anything."""

    async def history(self) -> Sequence[Edition]:
        """Return the last editions, the newest first."""


def candidate(text: str, known: Format | None, clock: Clock, path: Path | None = None) -> Policies:
    """Return policies that are not in force; raise InvalidPolicies with all mistakes."""
    return Policies(read_text(text, known, path), clock)


class OwnPolicies:
    """Policies of the program that embeds the service, which changes them itself."""

    kind = "program"
    path = None
    pause = LOOKS
    changed_by = "the program that embeds this service changes its policies"

    def __init__(self, policies: Policies, served: ServedPolicies) -> None:
        self._served = served
        self._history: deque[Edition] = deque(maxlen=MOST_EDITIONS)
        served.begin(policies, self._note(policies, 1))

    async def look(self) -> None:
        served = self._served
        if served.policies is not None and served.edition is not None and served.policies.text != served.edition.text:
            served.edition = self._note(served.policies, served.edition.version + 1)

    async def reload(self, by: str) -> bool:  # noqa: ARG002 - it refuses everybody
        raise Problem(409, self.changed_by)

    async def history(self) -> Sequence[Edition]:
        return list(reversed(self._history))

    def _note(self, policies: Policies, version: int) -> Edition:
        edition = Edition(version, policies.text, policies.format, wall_clock() // 1_000, "this program")
        self._history.append(edition)
        return edition


class PolicyFile:
    """A file, whose changes are taken over once two looks have found the same: half of a file can be valid, too."""

    kind = "file"
    pause = LOOKS

    def __init__(
        self, policies: Policies, path: Path, served: ServedPolicies, tell: Callable[[Edition], Awaitable[None]]
    ) -> None:
        """`tell` is called with each edition that is put in force later."""
        self.path = str(path)
        self._by = f"file {path}"
        self.changed_by = f"the policies are those of {self._by}: change it, or serve with --policies store"
        self._served = served
        self._tell = tell
        self._clock = policies.clock
        self._settled: Any = None  # the signature of the file as it was taken or refused last
        self._seen: Any = None  # its signature and content at the last look, if they are not settled
        self._lock = asyncio.Lock()
        edition = Edition(1, policies.text, policies.format, wall_clock() // 1_000, self._by)
        self._history = deque([edition], maxlen=MOST_EDITIONS)
        served.begin(policies, edition)

    async def look(self) -> None:
        seen = await asyncio.to_thread(self._see)
        if seen is None:
            return
        if seen != self._seen:
            self._seen = seen
            return
        self._settled, self._seen = seen[0], None
        await self._take(seen[1], self._by)

    async def reload(self, by: str) -> bool:
        return await self._take(await asyncio.to_thread(self._content), by)

    async def history(self) -> Sequence[Edition]:
        return list(reversed(self._history))

    def _see(self) -> tuple[Any, bytes | str] | None:
        """Return the file's signature and its content; None if it is as it was when it was settled."""
        try:
            status = Path(self.path).stat()
        except OSError as error:
            signature: Any = error.errno
        else:
            signature = (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)
        return None if signature == self._settled else (signature, self._content())

    def _content(self) -> bytes | str:
        """Return what is in the file, or why it cannot be read."""
        try:
            with Path(self.path).open("rb") as file:
                return file.read(MAX_BYTES + 1)
        except OSError as error:
            return f"cannot be read: {error.strerror}"

    async def _take(self, content: bytes | str, by: str) -> bool:
        """Put a content in force if it differs from what is; tell whether it was put in force."""
        async with self._lock:
            served, edition = self._served, self._served.edition
            assert edition is not None  # noqa: S101 - there was a first one
            try:
                if isinstance(content, str):
                    raise InvalidPolicies([Mistake(None, "", content)], self.path)
                text = as_text(content, self.path).removeprefix("\ufeff")
                if text == edition.text:
                    served.refused = None
                    return False
                policies = await asyncio.to_thread(candidate, text, edition.format, self._clock, Path(self.path))
            except InvalidRule as error:
                served.refuse(by, error)
                return False
            following = Edition(edition.version + 1, text, edition.format, wall_clock() // 1_000, by)
            if not await served.put_in_force(following, policies):
                return False
            self._history.append(following)
        await self._tell(following)
        return True
