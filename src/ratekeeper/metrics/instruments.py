"""The figures of limiters as instruments of OpenTelemetry, and their decisions as spans.

Counts and gauges are read when they are collected. OpenTelemetry has no histograms that can be read, so each hit and
each batch is recorded.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence

from opentelemetry.metrics import CallbackOptions, Histogram, Meter, MeterProvider, Observation, get_meter_provider
from opentelemetry.trace import Tracer, TracerProvider, get_tracer

from ratekeeper.base_limiter import BaseLimiter, watch_limiters
from ratekeeper.clock import stopwatch, wall_clock
from ratekeeper.decision import Decision
from ratekeeper.metrics.collecting import Collection
from ratekeeper.metrics.counting import LIBRARY, ThreadCounter, outcome_of
from ratekeeper.metrics.families import BATCH_SIZE, DECISION_SECONDS, FAMILIES, Family
from ratekeeper.metrics.tallies import ThreadTallies
from ratekeeper.observers import HitOrWait
from ratekeeper.stores.protocol import Demand

_SCOPE = "ratekeeper"


class Instruments:
    """The instruments of one provider."""

    def __init__(self, provider: MeterProvider) -> None:
        meter = provider.get_meter(_SCOPE)
        self._seconds = _histogram(meter, DECISION_SECONDS, "s")
        self._batches = _histogram(meter, BATCH_SIZE, "1")
        self.collection = Collection(self._counter)
        for family in FAMILIES:
            if family.kind == "counter":
                meter.create_observable_counter(family.name, [self._observer(family)], "1", family.help)
            elif family.kind == "gauge":
                meter.create_observable_gauge(family.name, [self._observer(family)], "1", family.help)

    def _counter(self, tallies: ThreadTallies, policy: str) -> RecordingCounter:
        return RecordingCounter(ThreadCounter(tallies, policy), policy, self._seconds, self._batches)

    def _observer(self, family: Family) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterator[Observation]:
            for sample in self.collection.samples():
                if sample.family is family:
                    labels = dict(zip(family.labels, sample.labels, strict=True))
                    yield Observation(sample.values[0], labels)

        return observe


def _histogram(meter: Meter, family: Family, unit: str) -> Histogram:
    bounds = [bound / family.unit for bound in family.bounds]
    return meter.create_histogram(family.name, unit, family.help, explicit_bucket_boundaries_advisory=bounds)


class RecordingCounter:
    """Counts like a `ThreadCounter`, and records what has a histogram."""

    def __init__(self, counter: ThreadCounter, policy: str, seconds: Histogram, batches: Histogram) -> None:
        self._counter = counter
        self._labels = {"policy": policy, "protocol": LIBRARY}
        self._seconds = seconds
        self._batches = batches

    def decided(
        self, operation: HitOrWait, demands: Sequence[Demand], decision: Decision, began_ns: int, ended_ns: int
    ) -> None:
        """Count a decision."""
        self._counter.decided(operation, demands, decision, began_ns, ended_ns)
        if operation == "hit":
            self._seconds.record((ended_ns - began_ns) / DECISION_SECONDS.unit, self._labels)

    def called(self, requests: int, answered: bool) -> None:
        """Count a call."""
        self._counter.called(requests, answered)
        self._batches.record(requests)


class Spans:
    """Makes a span of each decision, below the span in which it was asked for. Spans show no keys."""

    def __init__(self, tracer: Tracer, policy: str) -> None:
        self._tracer = tracer
        self._policy = policy

    def decided(
        self, operation: HitOrWait, demands: Sequence[Demand], decision: Decision, began_ns: int, ended_ns: int
    ) -> None:
        """Make a span of a decision that has been made."""
        del demands
        to_epoch_ns = wall_clock() - stopwatch()
        attributes: dict[str, str | bool | tuple[str, ...]] = {
            "ratekeeper.policy": self._policy,
            "ratekeeper.rule": decision.rule,
            "ratekeeper.outcome": outcome_of(decision),
            "ratekeeper.degraded": decision.degraded,
        }
        if decision.shadow_denied:
            attributes["ratekeeper.shadow_denied"] = decision.shadow_denied
        started = self._tracer.start_span(
            f"ratekeeper.{operation}", start_time=began_ns + to_epoch_ns, attributes=attributes
        )
        started.end(ended_ns + to_epoch_ns)


_instruments: weakref.WeakKeyDictionary[MeterProvider, Instruments] = weakref.WeakKeyDictionary()


def instruments_of(provider: MeterProvider | None) -> Instruments:
    """Return the instruments of a provider (None: the global one), which are created if there are none yet."""
    provider = get_meter_provider() if provider is None else provider
    made = _instruments.get(provider)
    if made is None:
        made = _instruments[provider] = Instruments(provider)
    return made


def trace(limiters: Sequence[BaseLimiter], policy: str, provider: TracerProvider | None) -> None:
    """Make spans of the decisions of limiters, or of all, with a tracer of a provider (None: the global one)."""
    tracer = get_tracer(_SCOPE, tracer_provider=provider)

    def begin(limiter: BaseLimiter) -> None:
        limiter.observe(Spans(tracer, limiter.policy or policy))

    if not limiters:
        watch_limiters(begin)
    for limiter in limiters:
        begin(limiter)
