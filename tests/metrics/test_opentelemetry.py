"""`ratekeeper.metrics.opentelemetry`: the figures of limiters as instruments, and decisions as spans."""

import time

import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest

from ratekeeper import FixedWindow, Limiter, RateLimited
from ratekeeper.metrics import opentelemetry, prometheus
from ratekeeper.metrics.families import DECISION_SECONDS
from ratekeeper.stores import MemoryStore
from tests import servers
from tests.metrics.figures import Page

RULES = {"user": FixedWindow(2, 600), "all": FixedWindow(9, 600)}


@pytest.fixture
def reader():
    return InMemoryMetricReader()


@pytest.fixture
def provider(reader):
    provider = MeterProvider(metric_readers=[reader])
    yield provider
    provider.shutdown()


def collected(reader):
    """Return the data of each metric, by its name."""
    (resource,) = reader.get_metrics_data().resource_metrics
    return {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}


def values(metric):
    return {tuple(point.attributes.values()): point.value for point in metric.data.data_points}


def test_decisions_are_counted_by_rule_and_outcome(reader, provider):
    limiter = Limiter(RULES)
    opentelemetry(limiter, meter_provider=provider)
    for _ in range(3):
        limiter.hit("a")
    seen = collected(reader)
    assert values(seen["ratekeeper_decisions_total"]) == {("", "user", "admitted"): 2, ("", "user", "denied"): 1}
    assert values(seen["ratekeeper_limit"]) == {("", "user"): 2, ("", "all"): 9}
    assert values(seen["ratekeeper_keys"]) == {(): 2}
    (seconds,) = seen["ratekeeper_decision_seconds"].data.data_points
    assert (seconds.count, dict(seconds.attributes)) == (3, {"policy": "", "protocol": "library"})
    assert list(seconds.explicit_bounds) == [bound / 1e9 for bound in DECISION_SECONDS.bounds]
    assert seen["ratekeeper_decision_seconds"].unit == "s"


def test_it_says_the_same_as_prometheus_under_the_same_names(tmp_path):
    translated = PrometheusMetricReader(disable_target_info=True)  # in the default registry
    own = CollectorRegistry()
    provider = MeterProvider(metric_readers=[translated])
    limiters = [
        Limiter(RULES, MemoryStore(max_keys=3)),
        Limiter(RULES, servers.shared(servers.newest()).url, prefix=tmp_path.name),
    ]
    opentelemetry(*limiters, policy="api", meter_provider=provider)
    prometheus(*limiters, policy="api", registry=own)
    for limiter in limiters:
        for key in ("a", "a", "a", "a", "b", "c"):
            limiter.hit(key)
    pages = [Page(generate_latest(registry).decode()) for registry in (REGISTRY, own)]
    provider.shutdown()
    limiters[1].close()
    times = {"ratekeeper_decision_seconds_sum"}
    shown = [{name: found for name, found in page.samples.items() if name not in times} for page in pages]
    assert shown[0] == shown[1]
    assert len(shown[1]) >= 12


def test_limiters_of_two_calls_are_counted_by_the_same_instruments(reader, provider, caplog):
    limiters = [Limiter("5/day"), Limiter("6/day")]
    for limiter in limiters:
        opentelemetry(limiter, meter_provider=provider)
        limiter.hit("a")
    assert len(values(collected(reader)["ratekeeper_decisions_total"])) == 2
    assert caplog.records == []


def test_a_span_is_made_of_each_decision_below_that_of_its_caller(provider):
    exporter = InMemorySpanExporter()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    limiter = Limiter(RULES)
    opentelemetry(limiter, policy="api", meter_provider=provider, spans=True, tracer_provider=tracers)
    before = time.time_ns()
    with tracers.get_tracer("application").start_as_current_span("request"):
        limiter.hit("secret")
        limiter.wait("secret")
        with pytest.raises(RateLimited):
            limiter.wait("secret", timeout=0)
    *decided, request = exporter.get_finished_spans()
    assert [(span.name, dict(span.attributes)) for span in decided] == [
        (
            name,
            {
                "ratekeeper.policy": "api",
                "ratekeeper.rule": "user",
                "ratekeeper.outcome": outcome,
                "ratekeeper.degraded": False,
            },
        )
        for name, outcome in (
            ("ratekeeper.hit", "admitted"),
            ("ratekeeper.wait", "admitted"),
            ("ratekeeper.wait", "denied"),
        )
    ]
    assert {span.parent.span_id for span in decided} == {request.context.span_id}
    assert all(before - 1e9 <= span.start_time <= span.end_time <= time.time_ns() + 1e9 for span in decided)
    assert "secret" not in str([span.to_json() for span in decided])


def test_a_span_names_the_rules_that_were_only_tried_out(provider):
    exporter = InMemorySpanExporter()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    limiter = Limiter({"user": FixedWindow(1, 60)}, shadow=True)
    opentelemetry(limiter, meter_provider=provider, spans=True, tracer_provider=tracers)
    limiter.hit("a", cost=2)
    (span,) = exporter.get_finished_spans()
    assert span.attributes["ratekeeper.shadow_denied"] == ("user",)
    assert span.attributes["ratekeeper.outcome"] == "unlimited"
