"""What all routes of the service share: one store, its limiters and policies, and the counters."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Hashable, Mapping

from ratekeeper import AsyncLimiter
from ratekeeper.algorithms import Rule
from ratekeeper.http import Headers
from ratekeeper.http.http_limiter import HttpLimiter
from ratekeeper.notices import Notices
from ratekeeper.policies.model import NO_STORE_OPTIONS, StoreOptions
from ratekeeper.service import DEADLINE
from ratekeeper.service.administration import Administration, PoliciesGiven
from ratekeeper.service.callers import Callers
from ratekeeper.service.figures import Figures
from ratekeeper.service.served_policies import ServedPolicies
from ratekeeper.service.worker import ALONE, Worker
from ratekeeper.stores import Store

MAX_LIMITERS = 1_000
MAX_KEPT_RULES = 2_000  # of all these limiters together: a rule takes about 5 KiB, so all take at most 10 MiB

_TURNS = 2  # parts of batches that are decided at a time
RulesGiven = str | Rule | Mapping[str, str | Rule]


class Service:
    """The state behind the routes."""

    def __init__(
        self,
        store: Store,
        deadline: float = DEADLINE,
        policies: PoliciesGiven = None,
        options: StoreOptions = NO_STORE_OPTIONS,
        worker: Worker = ALONE,
        *,
        token: str | None = None,
        caller_token: str | None = None,
        counts: bool = True,
        logs_denials: bool = False,
    ) -> None:
        self.store = store
        self.worker = worker
        self.is_stopping = False
        self._deadline = deadline
        self._options = options
        self.figures = Figures(store, worker, lambda: self.policies.policies, counts=counts, logs_denials=logs_denials)
        self.turns = asyncio.Semaphore(_TURNS)
        """Bounds the work on batches between which other clients have their turn."""
        self.notices = Notices()
        self.policies = ServedPolicies(
            store,
            deadline,
            options,
            self.notices,
            observe=self.figures.observe,
            note_version=self.figures.note_version,
            note_reload=self.figures.note_reload,
        )
        self.callers = Callers(caller_token, token, lambda: self.policies.policies)
        self.administration = Administration(policies, self.policies, store)
        self._limiters: OrderedDict[Hashable, HttpLimiter] = OrderedDict()
        self._rules = 0  # of these limiters

    def limiter(self, rules: RulesGiven, *, prefix: str = "ratekeeper") -> AsyncLimiter:
        """Return a limiter on the service's store, for one rule or several by name.

        The most recently used limiters are kept: up to 1,000, with up to 2,000 rules.
        """
        limiter: AsyncLimiter = self.http_limiter(rules, prefix=prefix).limiter
        return limiter

    def http_limiter(self, rules: RulesGiven, *, prefix: str = "ratekeeper") -> HttpLimiter:
        """Return a limiter together with its headers."""
        key = (prefix, tuple(rules.items()) if isinstance(rules, Mapping) else rules)
        return self.recall(key) or self.keep(key, rules, prefix=prefix)

    def recall(self, key: Hashable) -> HttpLimiter | None:
        """Return the limiter that is kept under a key."""
        known = self._limiters.get(key)
        if known is not None:
            self._limiters.move_to_end(key)
        return known

    def keep(self, key: Hashable, rules: RulesGiven, *, prefix: str = "ratekeeper") -> HttpLimiter:
        """Make a limiter and keep it under a key; those that were not used for longest are dropped.

        Clients choose the rules and their names. So rules are stored by their texts, and a name cannot reach another
        rule's usage; and a full store counts all rules of a prefix as one when it divides its room.
        """
        made = AsyncLimiter(
            rules,
            self.store,
            prefix=prefix,
            group=prefix,
            deadline=self._deadline,
            on_error=self._options.on_error or "local",
            local_share=self._options.local_share or 1,
            notices=self.notices,
            stored_by="text",
        )
        self.figures.observe(made)
        limiter = HttpLimiter(made, Headers())
        self._limiters[key] = limiter
        self._rules += len(limiter.rules)
        while len(self._limiters) > MAX_LIMITERS or self._rules > MAX_KEPT_RULES:
            self._rules -= len(self._limiters.popitem(last=False)[1].rules)
        return limiter
