"""The policies that the service decides by. Every protocol finds a policy here, and decides by it.

    served = service.policies.find("api")
    decision = await served.limiter.hit({"user": "42"}, cost=1)

The limiter follows every change of the policies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ratekeeper import AsyncLimiter
from ratekeeper.decision import Decision
from ratekeeper.http import Headers
from ratekeeper.http.header_writers import HeaderWriters
from ratekeeper.http.headers import EncodedFields
from ratekeeper.notices import Notices
from ratekeeper.policies import Policies, UnknownPolicy
from ratekeeper.policies.model import StoreOptions
from ratekeeper.policies.policies import unknown_policy
from ratekeeper.stores import Store
from ratekeeper.stores.protocol import Operation

_NONE: Mapping[str, Any] = {}


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
        return decision, self._writers.of(demands).encoded(decision) if demands else []


class ServedPolicies:
    """The policies in force by name, or none if the service was started without them."""

    def __init__(
        self,
        policies: Policies | None,
        store: Store,
        deadline: float,
        options: StoreOptions,
        notices: Notices,
        *,
        observe: Callable[[AsyncLimiter], object],
    ) -> None:
        """`observe` is called with each limiter, before it decides anything."""
        self.policies = policies
        self._store = store
        self._deadline = deadline
        self._options = options
        self._notices = notices
        self._observe = observe
        self._served: dict[str, ServedPolicy] = {}
        for name in policies or _NONE:
            self.find(name)

    def find(self, policy: str) -> ServedPolicy:
        """Return a policy; raise UnknownPolicy if it is not in force."""
        policies = self.policies
        if policies is None:
            raise UnknownPolicy("no policies are served; start the service with --policies FILE")
        served = self._served.get(policy)
        if policy not in policies:
            self._served.pop(policy, None)
            raise unknown_policy(policy, policies)
        if served is None:
            limiter = policies.async_limiter(
                policy, self._store, deadline=self._deadline, defaults=self._options, notices=self._notices
            )
            self._observe(limiter)
            served = self._served[policy] = ServedPolicy(policy, limiter)
        return served
