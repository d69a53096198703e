"""What operators change while the service runs: its policies and its overrides, and the trail of these changes."""

from __future__ import annotations

import os
from typing import Any, cast

from ratekeeper.clock import Clock
from ratekeeper.errors import InvalidRule
from ratekeeper.policies import Policies
from ratekeeper.service.audit_trail import AuditTrail
from ratekeeper.service.editions import Edition
from ratekeeper.service.override_store import LOOKS, OverrideStore
from ratekeeper.service.policy_sources import OwnPolicies, PolicyFile, PolicySource
from ratekeeper.service.policy_store import PolicyStore
from ratekeeper.service.served_policies import ServedPolicies
from ratekeeper.service.store_time import StoreTime
from ratekeeper.service.versioned_values import VersionedValue
from ratekeeper.stores import Store
from ratekeeper.stores.protocol import SharedValues

IN_STORE = "store"
"""What is given for policies that are kept in the store."""

PoliciesGiven = str | os.PathLike[str] | Policies | None


class Administration:
    """The source of the policies, the overrides, and the audit trail, all of one store."""

    def __init__(self, given: PoliciesGiven, served: ServedPolicies, store: Store) -> None:
        layer: Any = store.for_asyncio()
        if given is not None and not isinstance(layer, SharedValues):
            raise InvalidRule(f"{store!r} cannot share values, which policies need; use another store")
        shared: SharedValues = layer
        time = StoreTime()
        self.served = served
        self.audit = AuditTrail(VersionedValue(shared, "audit", time), time)
        self.overrides = OverrideStore(VersionedValue(shared, "overrides", time), served, time)
        self.source = self._source(given, VersionedValue(shared, "policies", time), time)
        if self.source is not None:
            served.following.add(self.source.look, self.source.pause)
            served.following.add(self.overrides.look, LOOKS)

    def _source(self, given: PoliciesGiven, value: VersionedValue, clock: Clock) -> PolicySource | None:
        if given is None:
            return None
        if given == IN_STORE:
            return PolicyStore(value, self.served, clock)
        if isinstance(given, Policies):
            return OwnPolicies(given, self.served)
        policies = Policies.load(cast("str", given), None, clock)
        if policies.path is None:
            return OwnPolicies(policies, self.served)
        return PolicyFile(policies, policies.path, self.served, self._note)

    async def _note(self, edition: Edition) -> None:
        """Note what a file has changed."""
        facts = {"version": edition.version, "digest": edition.digest}
        await self.audit.note("policies reloaded", edition.by, facts, of_each_process=True)
