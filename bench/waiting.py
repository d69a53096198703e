"""The cost of waiting, compared with aiolimiter: with free capacity, and with a thousand tasks in line."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from time import perf_counter, process_time, process_time_ns

import aiolimiter

from bench.contestants import OURS
from bench.tables import find, labels, spread, table
from bench.timing import Measurement, Target, interleave
from ratekeeper import AsyncLimiter, LeakyBucket, TokenBucket

NAME = "waiting"
TITLE = "Waiting"
ABOUT = (
    "ratekeeper runs `await AsyncLimiter(rule).wait(key)`, aiolimiter `await AsyncLimiter(rate, period).acquire()`, "
    "which supports one key. At once: microseconds for one wait while there is capacity. In line: 1,000 tasks "
    "arrive together at a bucket of 100 that refills at 2,000 a second; CPU milliseconds for all of them, and their "
    "elapsed time, which is at least 450 ms (499.5 ms when shaping, where departures are spaced from the first one on)."
)

PEER = "aiolimiter"
AT_ONCE, PROCESSOR, ELAPSED = "at once, us", "in line, processor ms", "in line, elapsed ms"

AT_ONCE_HITS = 5_000
TASKS = 1_000
CAPACITY, RATE = 100, 2_000

Wait = Callable[[], Awaitable[object]]


def _ours(rule: TokenBucket | LeakyBucket) -> Wait:
    return partial(AsyncLimiter(rule).wait, "user:0")


def _theirs(capacity: int, rate: int) -> Wait:
    return aiolimiter.AsyncLimiter(capacity, capacity / rate).acquire


def _policing(capacity: int, rate: int) -> Wait:
    return _ours(LeakyBucket(capacity=capacity, leak_rate=rate, mode="policing"))


def _token_bucket(capacity: int, rate: int) -> Wait:
    return _ours(TokenBucket(capacity=capacity, refill_rate=rate))


def _shaping(capacity: int, rate: int) -> Wait:
    return _ours(LeakyBucket(capacity=max(capacity, TASKS), leak_rate=rate, mode="shaping"))


CONTESTANTS: Mapping[tuple[str, str], Callable[[int, int], Wait]] = {
    (OURS, "token bucket"): _token_bucket,
    (OURS, "leaky bucket"): _policing,
    (OURS, "leaky bucket, shaping"): _shaping,
    (PEER, "leaky bucket"): _theirs,
}


def run(rounds: int) -> list[Measurement]:
    elapsed: dict[tuple[str, str], list[float]] = {who: [] for who in CONTESTANTS}
    at_once = {who: partial(_at_once, make) for who, make in CONTESTANTS.items() if "shaping" not in who[1]}
    in_line = {who: partial(_in_line, make, elapsed[who]) for who, make in CONTESTANTS.items()}
    figures = []
    for what, tasks in ((AT_ONCE, at_once), (PROCESSOR, in_line)):
        for (name, algorithm), samples in interleave(f"{NAME}: {what}", tasks, rounds).items():
            figures.append(Measurement(what, algorithm, name, what.split()[-1], samples))
    for (name, algorithm), samples in elapsed.items():
        figures.append(Measurement(ELAPSED, algorithm, name, "ms", tuple(samples)))
    return figures


def _at_once(make: Callable[[int, int], Wait]) -> float:
    async def measure() -> float:
        wait = make(2 * AT_ONCE_HITS, RATE)
        await wait()
        started = process_time_ns()
        for _ in range(AT_ONCE_HITS):
            await wait()
        return (process_time_ns() - started) / AT_ONCE_HITS / 1000

    return asyncio.run(measure())


def _in_line(make: Callable[[int, int], Wait], elapsed: list[float]) -> float:
    async def measure() -> float:
        wait = make(CAPACITY, RATE)
        started, processor = perf_counter(), process_time()
        await asyncio.gather(*(wait() for _ in range(TASKS)))
        elapsed.append((perf_counter() - started) * 1000)
        return (process_time() - processor) * 1000

    return asyncio.run(measure())


def tables(figures: Sequence[Measurement]) -> list[str]:
    cases = labels(figures, "case")
    rows = [
        [name, algorithm, *(spread(find(figures, what, algorithm, name)) for what in cases)]
        for name, algorithm in CONTESTANTS
    ]
    return [table(["", "algorithm", *cases], rows, left=2)]


def targets(figures: Sequence[Measurement]) -> list[Target]:
    return []
