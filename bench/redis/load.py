"""How concurrent callers in one event loop are measured."""

import asyncio
import statistics
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns
from typing import NamedTuple

from bench.contestants import OURS
from bench.redis.contestants import PEER_CONTESTANTS, AsyncHit, Contestant
from bench.redis.server import Server, server
from bench.tables import find, ratio, spread, times
from bench.timing import Measurement, Target, interleave

WARM_UP = 128  # callers that run first and are not counted: they open the connections and load the scripts


class Load(NamedTuple):
    """The metrics of one sample."""

    per_second: float
    p50_ms: float
    p99_ms: float
    server_us: float
    errors: float


METRICS = {
    "per_second": "decisions/s",
    "p50_ms": "p50, ms",
    "p99_ms": "p99, ms",
    "server_us": "server, us",
    "errors": "errors",
}


def sample(
    contestant: Contestant, traffic: Sequence[Sequence[str]], limit: int, admits: int, where: Server | None = None
) -> Load:
    """Let each caller hit its keys one after another, all callers at once; `admits` hits must be admitted."""
    where = where or server()
    return asyncio.run(_sample(contestant, traffic, limit, admits, where))


async def _sample(
    contestant: Contestant, traffic: Sequence[Sequence[str]], limit: int, admits: int, where: Server
) -> Load:
    async with contestant.open(where.url, limit) as hit:
        await asyncio.gather(*(hit(f"warm:{number}") for number in range(WARM_UP)))
        latencies_ns: list[int] = []
        errors: list[Exception] = []
        callers = [_call(hit, contestant.admitted, keys, latencies_ns, errors) for keys in traffic]
        processor_us, started = where.processor_us(), perf_counter_ns()
        admitted = sum(await asyncio.gather(*callers))
        elapsed_ns = perf_counter_ns() - started
        processor_us = where.processor_us() - processor_us
    if not admits - len(errors) <= admitted <= admits:
        raise SystemExit(f"{contestant.name}, {contestant.algorithm}: admitted {admitted} instead of {admits}")
    percentiles = statistics.quantiles(latencies_ns, n=100)
    count = len(latencies_ns)
    return Load(
        count / elapsed_ns * 1e9, percentiles[49] / 1e6, percentiles[98] / 1e6, processor_us / count, len(errors)
    )


async def _call(
    hit: AsyncHit,
    is_admitted: Callable[[object], bool],
    keys: Sequence[str],
    latencies_ns: list[int],
    errors: list[Exception],
) -> int:
    admitted = 0
    for key in keys:
        started = perf_counter_ns()
        try:
            admitted += is_admitted(await hit(key))
        except Exception as error:  # noqa: BLE001 - any error is a failed decision
            errors.append(error)
        else:
            latencies_ns.append(perf_counter_ns() - started)
    return admitted


def measure(what: str, case: str, tasks: Mapping[Contestant, Callable[[], Load]], rounds: int) -> list[Measurement]:
    """Measure the tasks in turns; each metric of a case becomes one figure."""
    samples = interleave(f"{what}: {case}", tasks, rounds)
    return [
        Measurement(f"{case}: {name}", one.algorithm, one.name, name, tuple(getattr(load, field) for load in loads))
        for field, name in METRICS.items()
        for one, loads in samples.items()
    ]


def row(figures: Sequence[Measurement], case: str, one: Contestant, metrics: Sequence[str]) -> list[str]:
    """Return a contestant's name, algorithm and figures in one case."""
    cells = [one.name, one.algorithm]
    for metric in metrics:
        figure = find(figures, f"{case}: {metric}", one.algorithm, one.name)
        cells.append(f"{sum(figure.samples):.0f}" if figure and metric == METRICS["errors"] else spread(figure))
    return cells


def best_peer(figures: Sequence[Measurement], case: str, best: Callable[..., Measurement] = max) -> Measurement | None:
    """Return the best figure of any Python peer, with any algorithm."""
    names = {one.name for one in PEER_CONTESTANTS}
    peers = [figure for figure in figures if figure.case == case and figure.contestant in names]
    return best(peers, key=lambda figure: figure.median, default=None)


def beats_peers(
    figures: Sequence[Measurement], case: str, algorithm: str, at_least: float, traffic: str, aim: str = ""
) -> Target:
    """Return the target that ours makes this many times as many decisions as the best peer."""
    peer = best_peer(figures, case)
    measured = ratio(find(figures, case, algorithm, OURS), peer)
    promise = f"on Redis, {algorithm}, {traffic}: {at_least} times the best Python peer's decisions{aim}"
    return Target(promise, f"{times(measured)} ({peer.contestant if peer else 'no peer'})", measured >= at_least)
