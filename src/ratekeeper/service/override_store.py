"""Overrides at run time, which the processes on a store share: each follows them, and any of them can change them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

import msgspec

from ratekeeper.errors import StoreUnavailable
from ratekeeper.policies import InvalidPolicies, Mistake, Policies, RuntimeOverride
from ratekeeper.policies.build import MAX_OVERRIDES
from ratekeeper.policies.runtime_overrides import read_override, stored_override
from ratekeeper.service.editions import moment
from ratekeeper.service.served_policies import ServedPolicies
from ratekeeper.service.store_time import StoreTime
from ratekeeper.service.versioned_values import VersionedValue

LOOKS = 0.5  # seconds between two looks
_TRIES = 20  # to write, while others do
_log = logging.getLogger("ratekeeper")


class StoredOverride(msgspec.Struct, frozen=True):
    """An override as it is stored."""

    id: str
    policy: str
    when: dict[str, list[str]]
    limits: str | dict[str, str]
    ends_us: int
    """When it ends, on the store's clock, in microseconds since the epoch."""
    set_us: int
    by: str

    def fields(self, now_us: int) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "id": self.id,
            "policy": self.policy,
            "when": self.when,
            "limits": self.limits,
            "expires_in": max(0, self.ends_us - now_us) / 1e6,
            "expires_at": moment(self.ends_us),
            "set_at": moment(self.set_us),
            "by": self.by,
        }


_decoder = msgspec.json.Decoder(list[StoredOverride])
_Known = tuple[StoredOverride, RuntimeOverride]


class OverrideStore:
    """The overrides in the store, of which those that have not ended are in force here."""

    def __init__(self, value: VersionedValue, served: ServedPolicies, time: StoreTime) -> None:
        self._value = value
        self._served = served
        self._time = time
        self._in_force: dict[str, _Known] = {}  # by id
        self._applied: tuple[Policies | None, bytes] = (None, b"")  # where, and the header of what
        self._lock = asyncio.Lock()

    async def look(self) -> None:
        """Take over what others have changed."""
        async with self._lock:
            await self._follow()

    async def all(self) -> list[dict[str, Any]]:
        """Return the overrides that have not ended, the newest first."""
        async with self._lock:
            await self._follow()
            return [each.fields(self._now_us()) for each in reversed(self._stored())]

    async def set(self, id: str, given: Any, by: str) -> dict[str, Any]:  # noqa: A002 - the usual word
        """Put an override in force, before all others; one with the same id is replaced. Return it."""
        async with self._lock:
            await self._follow()
            policies = self._served.policies
            if policies is None:
                raise InvalidPolicies([Mistake(None, "policy", self._served.none_because)])
            read = read_override(id, given, policies, 0)
            for _ in range(_TRIES):
                now_us = self._now_us()
                ends_us = now_us + read.ends_ns // 1_000
                made = StoredOverride(id, read.policy, read.conditions, read.limit_texts, ends_us, now_us, by)
                kept = [each for each in self._stored() if each.id != id]
                if len(kept) >= MAX_OVERRIDES:
                    reason = f"{len(kept)} overrides are in force, which is the most; remove one first"
                    raise InvalidPolicies([Mistake(None, "id", reason)])
                if await self._write([*kept, made]):
                    return made.fields(now_us)
        raise StoreUnavailable("others change the overrides all the time; try again")

    async def remove(self, id: str) -> bool:  # noqa: A002 - the usual word
        """End an override; tell whether it was in force."""
        async with self._lock:
            await self._follow()
            for _ in range(_TRIES):
                stored = self._stored()
                kept = [each for each in stored if each.id != id]
                if len(kept) == len(stored):
                    return False
                if await self._write(kept):
                    return True
        raise StoreUnavailable("others change the overrides all the time; try again")

    def _now_us(self) -> int:
        return self._time() // 1_000

    def _stored(self) -> list[StoredOverride]:
        """Return what is stored and has not ended, the newest last."""
        content, now_us = self._value.known.content, self._now_us()
        return [each for each in (_decoder.decode(content) if content else ()) if now_us < each.ends_us]

    async def _write(self, overrides: Iterable[StoredOverride]) -> bool:
        """Store these overrides instead of those that are known; if others were quicker, find out what they did."""
        written = await self._value.replace(msgspec.json.encode(list(overrides)))
        await (self._apply() if written else self._follow())
        return written

    async def _follow(self) -> None:
        await self._value.look()
        await self._apply()

    async def _apply(self) -> None:
        """Put in force what is known, in the policies in force, unless that was done."""
        policies, header = self._served.policies, self._value.known.header
        if policies is None or (policies, header) == self._applied:
            return
        await asyncio.to_thread(self._switch, policies)
        self._applied = policies, header

    def _switch(self, policies: Policies) -> None:
        in_force: dict[str, _Known] = {}
        ahead_ns = policies.clock() - self._time()
        for each in self._stored():
            known = self._in_force.get(each.id)
            if known is not None and known[0] == each:
                in_force[each.id] = known
                continue
            try:
                ends_ns = each.ends_us * 1_000 + ahead_ns
                override = stored_override(each.id, each.policy, each.when, each.limits, ends_ns)
            except InvalidPolicies as error:
                _log.error("the stored override %r cannot be read, and is not in force: %s", each.id, error)
            else:
                in_force[each.id] = each, override
        policies.replace_overrides([override for _, override in in_force.values()])
        self._in_force = in_force
