"""The policies that the service decides by. Every protocol finds a policy here, and decides by it.

    served = service.policies.find("api")
    decision = await served.limiter.hit({"user": "42"}, cost=1)

The limiter follows every change of the policies.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import get_running_loop
from collections.abc import Callable, Sequence
from typing import Any, Literal

from ratekeeper import AsyncLimiter
from ratekeeper.clock import wall_clock
from ratekeeper.decision import Decision
from ratekeeper.errors import InvalidRule, StoreUnavailable
from ratekeeper.http import Headers
from ratekeeper.http.header_writers import HeaderWriters
from ratekeeper.http.headers import EncodedFields
from ratekeeper.notices import Notices
from ratekeeper.policies import Policies, UnknownPolicy
from ratekeeper.policies.model import StoreOptions
from ratekeeper.policies.policies import unknown_policy
from ratekeeper.policies.versions import Applied
from ratekeeper.service.editions import Edition, Refusal, reasons_of
from ratekeeper.service.following import Following
from ratekeeper.stores import Store
from ratekeeper.stores.protocol import Demand, Operation

_log = logging.getLogger("ratekeeper")


class ServedPolicy:
    """A policy in force, with its limiter on the service's store. Both follow every change of the policies."""

    __slots__ = ("_writers", "limiter", "policy")

    def __init__(self, policy: str, limiter: AsyncLimiter) -> None:
        self.policy = policy
        """The name of the policy."""
        self.limiter = limiter
        """Its keys are the attributes of requests."""
        self._writers = HeaderWriters(Headers())

    async def decide(self, operation: Operation, attributes: Any, cost: Any = 1) -> tuple[Decision, EncodedFields]:
        """Do an operation; return the decision and the headers that report it."""
        limiter = self.limiter
        demands = limiter.demands(operation, attributes, cost)
        decision = await limiter.decide(operation, attributes, demands)
        return decision, self.headers(demands, decision)

    def headers(self, demands: Sequence[Demand], decision: Decision) -> EncodedFields:
        """Return the headers that report a decision on these demands."""
        blocked = demands.blocked if isinstance(demands, Applied) else ()
        if not demands or (blocked and any(rule.binds for rule in blocked)):
            return []  # there is no limit to report
        return self._writers.of(demands).encoded(decision)


class ServedPolicies:
    """The policies in force by name, if there are any, and the edition that they are from."""

    def __init__(
        self,
        store: Store,
        deadline: float,
        options: StoreOptions,
        notices: Notices,
        *,
        observe: Callable[[AsyncLimiter], object],
        note_version: Callable[[int], object],
        note_reload: Callable[[Literal["ok", "error"]], object],
    ) -> None:
        """`observe` is called with each limiter, before it decides anything; the others when policies change."""
        self.following = Following()
        """How this process finds out what others change."""
        self.policies: Policies | None = None
        self.edition: Edition | None = None
        self.refused: Refusal | None = None
        """The latest edition, if it was not put in force."""
        self.none_because = "no policies are served; start the service with --policies FILE"
        """Why there are no policies, if there are none."""
        self.are_awaited = False
        """Whether they are still to be read from the store."""
        self._store = store
        self._deadline = deadline
        self._options = options
        self._notices = notices
        self._observe = observe
        self._note_version = note_version
        self._note_reload = note_reload
        self._served: dict[str, ServedPolicy] = {}

    def rules_of(self, policy: str) -> int:
        """Return how many rules a policy has, at least 1."""
        known = None if self.policies is None else self.policies.get(policy)
        return 1 if known is None else len(known.rules)

    def find(self, policy: str) -> ServedPolicy:
        """Return a policy; raise UnknownPolicy if it is not in force."""
        if self.following.loop is not get_running_loop():
            self.following.begin()
        policies = self.policies
        if policies is None:
            if self.are_awaited:
                raise StoreUnavailable(self.none_because)
            raise UnknownPolicy(self.none_because)
        served = self._served.get(policy)
        if served is None or policy not in policies:
            served = self._serve(policy, policies)
        return served

    def rule_names(self, policy: str) -> list[str]:
        """Return the names of the rules of a policy in force."""
        return [rule.name for rule in self.policies[policy].rules] if self.policies else []

    def begin(self, policies: Policies, edition: Edition) -> None:
        """Put the first edition in force."""
        for name in policies:
            self._serve(name, policies)
        self.policies, self.edition, self.refused = policies, edition, None
        self._note_version(edition.version)

    async def put_in_force(self, edition: Edition, policies: Policies) -> bool:
        """Put an edition and what it says in force, all or nothing, while requests are decided; tell whether it was."""
        try:
            await asyncio.to_thread(self._switch, edition, policies)  # so that other requests are answered meanwhile
        except InvalidRule as error:
            self.refuse(edition.by, error, edition.version)
            return False
        self.edition, self.refused = edition, None
        self._note_version(edition.version)
        self._note_reload("ok")
        _log.info("policies: version %d is in force, by %s", edition.version, edition.by)
        return True

    def refuse(self, by: str, error: InvalidRule, version: int | None = None) -> None:
        """Note why an edition was not put in force."""
        self.refused = Refusal(version, wall_clock() // 1_000, by, reasons_of(error))
        kept = "the last good version goes on" if self.policies is not None else "no policies are in force"
        self._note_reload("error")
        _log.error("policies by %s were refused, and %s: %s", by, kept, error)

    def _switch(self, edition: Edition, policies: Policies) -> None:
        if self.policies is None:
            self.begin(policies, edition)
            return
        self.policies.replace(policies)
        for name in self.policies:
            self._serve(name, self.policies)
        for name in self._served.keys() - set(self.policies):
            del self._served[name]

    def _serve(self, policy: str, policies: Policies) -> ServedPolicy:
        """Return a policy, which gets its limiter if it has none; raise UnknownPolicy if it is not in force."""
        if policy not in policies:
            self._served.pop(policy, None)
            raise unknown_policy(policy, policies)
        if policy not in self._served:
            limiter = policies.async_limiter(
                policy, self._store, deadline=self._deadline, defaults=self._options, notices=self._notices
            )
            self._observe(limiter)
            self._served[policy] = ServedPolicy(policy, limiter)
        return self._served[policy]
