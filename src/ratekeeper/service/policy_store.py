"""Policies that a fleet keeps in its store: each process follows them, and any of them can replace them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ratekeeper.clock import Clock
from ratekeeper.errors import InvalidRule, StoreUnavailable
from ratekeeper.policies.documents import Format, as_text
from ratekeeper.service.editions import MOST_EDITIONS, Edition
from ratekeeper.service.policy_sources import candidate
from ratekeeper.service.served_policies import ServedPolicies
from ratekeeper.service.versioned_values import VersionedValue
from ratekeeper.service.web import Problem

LOOKS = 0.5  # seconds between two looks


class PolicyStore:
    """The policies that are kept in the store, and the editions before them."""

    kind = "store"
    path = None
    pause = LOOKS
    changed_by = "PUT to /v1/policies replaces them"

    def __init__(self, value: VersionedValue, served: ServedPolicies, clock: Clock) -> None:
        self._value = value
        self._served = served
        self._clock = clock
        self._settled = b""  # the header of the edition that was taken or refused last
        self._lock = asyncio.Lock()
        served.are_awaited = True
        served.none_because = "the policies have not been read from the store yet"

    async def look(self) -> None:
        async with self._lock:
            await self._follow()

    async def reload(self, by: str) -> bool:  # noqa: ARG002 - who has replaced them says so
        before = self._served.edition
        await self.look()
        return self._served.edition is not before

    async def replace(self, content: bytes, known: Format | None, version: int, by: str) -> Edition:
        """Replace a version by what a text says; return its edition."""
        async with self._lock:
            await self._follow()
            self._check(version)
            policies = await asyncio.to_thread(candidate, as_text(content), known, self._clock)
            edition = Edition(version + 1, policies.text, policies.format, self._clock() // 1_000, by)
            before = self._value.known
            if before.version:
                await self._former(before.version).keep(before)
            try:
                replaced = await self._value.replace(edition.content)
            except StoreUnavailable as error:
                raise StoreUnavailable(f"{error}; GET /v1/policies tells whether they were replaced") from None
            if not replaced:
                await self._follow()
                self._check(version)
                raise Problem(503, "the stored policies are being replaced by others; try again")
            self._settled = self._value.known.header
            await self._served.put_in_force(edition, policies)
            return edition

    async def history(self) -> Sequence[Edition]:
        async with self._lock:
            await self._follow()
        version = self._value.known.version
        formers = [self._former(version - back) for back in range(1, min(version, MOST_EDITIONS))]
        await asyncio.gather(*(former.look() for former in formers))
        kept = {former.known.version: former.known for former in (self._value, *formers)}
        wanted = (kept.get(number) for number in range(version, max(0, version - MOST_EDITIONS), -1))
        return [Edition.read(stored.version, stored.content) for stored in wanted if stored is not None]

    async def _follow(self) -> None:
        """Take over what is stored, if it has changed."""
        await self._value.look()
        served, stored = self._served, self._value.known
        served.are_awaited = False
        served.none_because = "no policies are stored yet; PUT them to /v1/policies"
        if not stored.version or stored.header == self._settled:
            return
        self._settled = stored.header
        try:
            edition = Edition.read(stored.version, stored.content)
            policies = await asyncio.to_thread(candidate, edition.text, edition.format, self._clock)
        except InvalidRule as error:
            served.refuse("the store", error, stored.version)
        else:
            await served.put_in_force(edition, policies)

    def _check(self, version: int) -> None:
        stored = self._value.known.version
        if stored != version:
            raise Problem(412, f"the stored policies have version {stored}, not {version}", field="if-match")

    def _former(self, version: int) -> VersionedValue:
        """Return where an edition is kept after it was replaced: one place for each of the last ones, in turn."""
        return self._value.sibling(str(version % MOST_EDITIONS))
