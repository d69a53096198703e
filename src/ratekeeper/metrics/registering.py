"""The figures of limiters in a registry of prometheus-client."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

from prometheus_client.core import Metric
from prometheus_client.registry import REGISTRY, Collector, CollectorRegistry

from ratekeeper.metrics.collecting import Collection
from ratekeeper.metrics.exposition import metric_of, metrics_of
from ratekeeper.metrics.families import FAMILIES


class LimiterCollector(Collector):
    """Gives a registry the figures of limiters when it is asked for them."""

    def __init__(self) -> None:
        self.collection = Collection()

    def collect(self) -> Iterable[Metric]:
        """Return the metrics now."""
        return metrics_of(self.collection.samples())

    def describe(self) -> Iterable[Metric]:
        """Return all metrics that there may be, without their values."""
        return map(metric_of, FAMILIES)


_collectors: weakref.WeakKeyDictionary[CollectorRegistry, LimiterCollector] = weakref.WeakKeyDictionary()


def collector_in(registry: CollectorRegistry | None) -> LimiterCollector:
    """Return the collector in a registry (None: the default one), which is registered if there is none yet."""
    registry = REGISTRY if registry is None else registry
    collector = _collectors.get(registry)
    if collector is None:
        collector = LimiterCollector()
        registry.register(collector)
        _collectors[registry] = collector
    return collector
