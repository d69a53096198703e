"""Samples as the metrics of prometheus-client, which formats them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate, groupby

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from ratekeeper.metrics.families import Family, Sample


def metrics_of(samples: Iterable[Sample]) -> Iterator[Metric]:
    """Yield the metrics of samples in which those of a family stand together."""
    for family, series in groupby(samples, lambda sample: sample.family):
        yield metric_of(family, series)


def metric_of(family: Family, series: Iterable[Sample] = ()) -> Metric:
    """Return the metric of a family, with these series."""
    if family.kind == "histogram":
        return _histogram(family, series)
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = kind(family.name, family.help, labels=family.labels)
    for _, labels, values in series:
        metric.add_metric(labels, values[0])
    return metric


def _histogram(family: Family, series: Iterable[Sample]) -> Metric:
    metric = HistogramMetricFamily(family.name, family.help, labels=family.labels)
    bounds = [*(str(bound / family.unit) for bound in family.bounds), "+Inf"]
    for _, labels, (*counts, total) in series:
        metric.add_metric(labels, list(zip(bounds, accumulate(counts), strict=True)), total / family.unit)
    return metric
