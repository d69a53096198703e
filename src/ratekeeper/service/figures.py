"""What the service counts: the figures of all workers together, the live chart, and the top talkers.

Every limiter of the service tells of its decisions here, whichever protocol has asked for them. A protocol other than
HTTP says so once, in the task that serves its connection or its call: `service_counter.PROTOCOL.set("resp")`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ratekeeper.limiter import AsyncLimiter
from ratekeeper.metrics import families
from ratekeeper.metrics.counting import CallCounter, DecisionPlaces
from ratekeeper.metrics.families import Family, Sample
from ratekeeper.metrics.tallies import Tally, in_order, summed
from ratekeeper.observers import Observer
from ratekeeper.policies import Policy
from ratekeeper.queues import queues_of
from ratekeeper.service.denial_log import DenialLog
from ratekeeper.service.heavy_hitters import HeavyHitters, merged
from ratekeeper.service.live import Live
from ratekeeper.service.service_counter import CountedNow, LiveCounter, ServiceCounter
from ratekeeper.service.slabs import MAX_SLAB_SERIES, Slab, SlabReader
from ratekeeper.service.talkers import By, Talker, Talkers
from ratekeeper.service.worker import ALONE, Worker
from ratekeeper.stores import Store
from ratekeeper.stores.protocol import Observable

_PAUSE = 1.0  # seconds from one look at what is not counted call by call to the next
_log = logging.getLogger("ratekeeper")


class Figures:
    """The figures of this worker, and of all workers together."""

    def __init__(
        self,
        store: Store,
        worker: Worker = ALONE,
        policies: Callable[[], Mapping[str, Policy] | None] = lambda: None,
        *,
        counts: bool = True,
        logs_denials: bool = False,
    ) -> None:
        """`policies` returns those in force. Without `counts`, there is the live chart, and nothing else.

        With `logs_denials`, a sample of the denials is logged.
        """
        self._denials: dict[str, DenialLog] | None = {} if logs_denials else None  # by policy
        self.counts = counts
        self._policies = policies
        self._store = store
        self._worker = worker
        self._slab = _slab_of(worker)
        self._tally = self._slab or Tally(MAX_SLAB_SERIES)
        self._others: dict[int, SlabReader] = {}
        self._before: dict[Family, int] = {}  # what earlier workers under this number had counted
        self._counters: dict[str, Observer] = {}  # by policy
        self.live = Live(None if self._slab is None else self._slab.cells)
        self.talkers = Talkers() if worker.directory is None else Talkers.read(self._talkers_of(worker.index))
        self._now = CountedNow(self.live, self.talkers)
        for result in ("ok", "error") if counts else ():
            self._tally.at(families.POLICIES_RELOADS, (result,))  # from 0, so that a first one is an increase
        if counts and isinstance(store, Observable):
            store.observe_calls(CallCounter(self._tally).count)

    def observe(self, limiter: AsyncLimiter) -> None:
        """Count what a limiter decides: by its policy, or as a client's rules if it has none."""
        policy = limiter.policy
        counter = self._counters.get(policy)
        if counter is None:
            counter = self._counters[policy] = self._counter_of(policy)
        limiter.observe(counter)
        if self._denials is not None:
            limiter.observe(self._denials.setdefault(policy, DenialLog(policy)))

    def _counter_of(self, policy: str) -> Observer:
        if not self.counts:
            return LiveCounter(self._now)
        return ServiceCounter(policy, self._now, DecisionPlaces(self._tally, policy, names_rules=bool(policy)))

    def note_version(self, version: int) -> None:
        """Note the version of the policies in force in this worker."""
        if self.counts:
            self._note(families.POLICIES_VERSION, version)

    def note_reload(self, result: str) -> None:
        """Count a reload of the policies: "ok", or "error" if they have mistakes."""
        self._tally.cells[self._tally.at(families.POLICIES_RELOADS, (result,))] += 1

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look at what is not counted call by call, now and again every second, and share it with the other workers."""
        self.refresh()
        if self._worker.directory is not None:
            with suppress(OSError):  # no room at the moment
                self.talkers.write(self._talkers_of(self._worker.index))
        loop.call_later(_PAUSE, self.watch, loop)

    def refresh(self) -> None:
        """Note what is not counted call by call."""
        if self._slab is not None:
            self._slab.beat()
        if not self.counts:
            return
        self._note(families.WAITING, queues_of(self._store).size)
        if isinstance(self._store, Observable):
            figures = self._store.figures()
            self._note(families.STORE_UP, int(figures.is_up))
            if figures.keys is not None:
                self._note(families.KEYS, figures.keys)
            for family, number in (
                (families.EVICTIONS, figures.evictions),
                (families.REMEMBERED_DENIALS, figures.remembered_denials),
            ):
                if number is not None:
                    at = self._tally.at(family)
                    self._tally.cells[at] = self._before.setdefault(family, self._tally.cells[at]) + number

    def samples(self) -> list[Sample]:
        """Return the figures of all workers."""
        samples = [*self._tally.samples(), *self._limits()]
        for other in self._readers():
            is_alive = other.is_alive
            samples += [sample for sample in other.samples() if is_alive or sample.family.kind != "gauge"]
        return in_order(summed(samples))

    def live_report(self) -> dict[str, Any]:
        """Return how many decisions all workers have made, in all and in each of the latest seconds."""
        return self.live.report([other.cells for other in self._readers()])

    def top(self, by: By, now_ns: int) -> HeavyHitters[Talker]:
        """Return the top talkers of all workers."""
        files = [self._talkers_of(index) for index in self._other_indexes()]
        everybody = [self.talkers, *map(Talkers.read, files)]
        return merged(summary for talkers in everybody for summary in talkers.latest(by, now_ns))

    def close(self) -> None:
        """Close the files of this worker."""
        if self._slab is not None:
            self._slab.close()

    def _note(self, family: Family, number: int) -> None:
        self._tally.cells[self._tally.at(family)] = number

    def _limits(self) -> Iterator[Sample]:
        for policy in (self._policies() or {}).values():
            for rule in policy.rules:
                if rule.limit != "unlimited":
                    limit = 0 if isinstance(rule.limit, str) else rule.limit.limit
                    yield Sample(families.LIMIT, (policy.name, rule.name), [limit])

    def _other_indexes(self) -> list[int]:
        return [index for index in range(self._worker.count) if index != self._worker.index]

    def _readers(self) -> Iterator[SlabReader]:
        """Yield the slabs of the other workers that have one."""
        if self._worker.directory is None:
            return
        for index in self._other_indexes():
            if index not in self._others:
                with suppress(OSError, ValueError):  # it has not begun
                    self._others[index] = SlabReader(self._worker.directory, index)
            if index in self._others:
                yield self._others[index]

    def _talkers_of(self, index: int) -> Path:
        assert self._worker.directory is not None  # noqa: S101 - there are several workers
        return self._worker.directory / f"talkers-{index}"


def _slab_of(worker: Worker) -> Slab | None:
    """Return the slab of a worker, if it shares its figures with others."""
    if worker.directory is None:
        return None
    try:
        return Slab(worker.directory, worker.index)
    except OSError as error:
        _log.warning("metrics: the figures of worker %d are not shared: %s", worker.index + 1, error)
        return None
