"""Collecting: the figures of limiters of this process, for whoever exports them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from ratekeeper.base_limiter import BaseLimiter, watch_limiters
from ratekeeper.decision import Decision
from ratekeeper.metrics import families
from ratekeeper.metrics.counting import ThreadCounter
from ratekeeper.metrics.families import Sample
from ratekeeper.metrics.tallies import ThreadTallies, in_order, summed
from ratekeeper.observers import HitOrWait
from ratekeeper.queues import queues_of
from ratekeeper.stores.protocol import Demand, Observable, Store, StoreFigures


class Counter(Protocol):
    """Counts for a collection: an observer of limiters and of the calls of stores."""

    def decided(
        self, operation: HitOrWait, demands: Sequence[Demand], decision: Decision, began_ns: int, ended_ns: int
    ) -> None:
        """Count a decision."""

    def called(self, requests: int, answered: bool) -> None:
        """Count a call."""


class Collection:
    """The figures of some limiters. It keeps none of them alive, and what they have counted stays counted."""

    def __init__(self, make_counter: Callable[[ThreadTallies, str], Counter] = ThreadCounter) -> None:
        self._make_counter = make_counter
        self._tallies = ThreadTallies()
        self._counters: dict[str, Counter] = {}  # by policy
        self._policies: weakref.WeakKeyDictionary[BaseLimiter, str] = weakref.WeakKeyDictionary()
        self._stores: dict[weakref.ref[Store], StoreFigures] = {}  # as they stood when they were last looked at
        self._gone = StoreFigures(True)

    def add(self, limiters: Sequence[BaseLimiter], policy: str) -> None:
        """Count what limiters decide from now on; without limiters, all of this process, also those made later.

        `policy` is the label of those whose rules are from no policy.
        """
        if not limiters:
            watch_limiters(lambda limiter: self._add(limiter, policy))
        for limiter in limiters:
            if not isinstance(limiter, BaseLimiter):
                raise TypeError(f"metrics need a Limiter or an AsyncLimiter, not {type(limiter).__name__}")
            self._add(limiter, policy)

    def _add(self, limiter: BaseLimiter, policy: str) -> None:
        if limiter in self._policies:
            return
        policy = self._policies[limiter] = limiter.policy or policy
        counter = self._counters.get(policy)
        if counter is None:
            counter = self._counters[policy] = self._make_counter(self._tallies, policy)
        known = weakref.ref(limiter.store)
        if known not in self._stores and isinstance(limiter.store, Observable):
            self._stores[known] = StoreFigures(True)
            limiter.store.observe_calls(counter.called)
        limiter.observe(counter)

    def samples(self) -> list[Sample]:
        """Return the figures now, those of a family together."""
        return in_order(summed([*self._tallies.samples(), *self._of_stores(), *self._limits()]))

    def _of_stores(self) -> Iterator[Sample]:
        """Yield what is not counted call by call."""
        alive = [store for known in list(self._stores) if (store := self._look_at(known)) is not None]
        yield Sample(families.WAITING, (), [sum(queues_of(store).size for store in alive)])
        figures = [*self._stores.values(), self._gone]
        if alive:
            yield Sample(families.STORE_UP, (), [int(all(each.is_up for each in figures))])
        for family, field in (
            (families.KEYS, "keys"),
            (families.EVICTIONS, "evictions"),
            (families.REMEMBERED_DENIALS, "remembered_denials"),
        ):
            numbers = [number for each in figures if (number := getattr(each, field)) is not None]
            if numbers:
                yield Sample(family, (), [sum(numbers)])

    def _look_at(self, known: weakref.ref[Store]) -> Store | None:
        """Note how a store stands; of one that is gone, keep what it had counted."""
        store = known()
        if isinstance(store, Observable):
            self._stores[known] = store.figures()
            return store
        last = self._stores.pop(known, StoreFigures(True))
        gone = self._gone
        self._gone = gone._replace(
            evictions=_added(gone.evictions, last.evictions),
            remembered_denials=_added(gone.remembered_denials, last.remembered_denials),
        )
        return None

    def _limits(self) -> Iterator[Sample]:
        """Yield the limit of each rule; if rules have equal names, the lowest."""
        limits: dict[tuple[str, str], int] = {}
        for limiter, policy in list(self._policies.items()):
            for name, rule in limiter.rules.items():
                limits[policy, name] = min(rule.limit, limits.get((policy, name), rule.limit))
        for labels, limit in limits.items():
            yield Sample(families.LIMIT, labels, [limit])


def _added(one: int | None, other: int | None) -> int | None:
    return other if one is None else one + (other or 0)
