"""Metrics of limiters, for Prometheus and OpenTelemetry, in one line each.

    from ratekeeper.metrics import prometheus
    prometheus(limiter)                # in prometheus-client's default registry
    prometheus()                       # all limiters of this process, also those of middleware

Nothing but the standard library is imported until one of them is called. Reading order:

- `families`: the names and labels of all metrics
- `tallies`: the counts of one thread or process, which need no lock; `counting`: what a decision adds to them
- `collecting`: the figures of some limiters, read when they are asked for
- `registering` and `exposition`: these in a registry of prometheus-client; `instruments`: in OpenTelemetry
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider
    from prometheus_client.registry import CollectorRegistry

    from ratekeeper.base_limiter import BaseLimiter

__all__ = ["opentelemetry", "prometheus"]


def prometheus(*limiters: BaseLimiter, policy: str = "", registry: CollectorRegistry | None = None) -> None:
    """Show the figures of limiters in a registry of prometheus-client, by default in its default one.

    Without limiters, those of all limiters of this process are shown, also of those that are made later. `policy` is
    the label of limiters whose rules are from no policy; give one to tell limiters apart whose rules have equal names.
    What was decided before this call is not counted. Each process has its own figures.
    """
    try:
        from ratekeeper.metrics.registering import collector_in
    except ModuleNotFoundError as error:
        raise _missing(error, "prometheus") from error
    collector_in(registry).collection.add(limiters, policy)


def opentelemetry(
    *limiters: BaseLimiter,
    policy: str = "",
    meter_provider: MeterProvider | None = None,
    spans: bool = False,
    tracer_provider: TracerProvider | None = None,
) -> None:
    """Show the figures of limiters as instruments of OpenTelemetry; the same as `prometheus` shows.

    The providers are the global ones by default. With `spans`, each decision is a span below that of its caller.
    """
    try:
        from ratekeeper.metrics.instruments import instruments_of, trace
    except ModuleNotFoundError as error:
        raise _missing(error, "opentelemetry") from error
    instruments_of(meter_provider).collection.add(limiters, policy)
    if spans:
        trace(limiters, policy, tracer_provider)


def _missing(error: ModuleNotFoundError, extra: str) -> ImportError:
    if (error.name or "").startswith("ratekeeper"):
        return error
    return ModuleNotFoundError(f"{error.name} is missing: pip install 'ratekeeper[{extra}]'", name=error.name)
