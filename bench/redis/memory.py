"""Server memory per key, compared with the layout that tutorials show."""

import asyncio
import random
import sys
from collections.abc import Callable, Sequence
from functools import partial
from time import time, time_ns

import redis

from bench.contestants import DAY, OURS, rule
from bench.redis.contestants import PATIENCE
from bench.redis.server import server
from bench.tables import by_contestant, find, number, ratio, section, table, times
from bench.timing import Measurement, Target
from ratekeeper import AsyncLimiter

NAME = "redis-memory"
TITLE = "On Redis: memory"
ABOUT = (
    "Bytes by which the server's `used_memory` grows per key, over 16,000 keys `user:0`, `user:1`, ... that were "
    "each hit three times: name, value, expiry and the server's own tables; and per unit of a sliding log, over "
    "64 keys with 1,000 units each. The common layout is the one that tutorials teach, written with plain commands: "
    "one counter key per window, two of them for the sliding counter, a hash with two floats for a bucket, a "
    "sorted set of distinct members for the log. The key names are each side's own: ours contain the rule's text, so "
    "that no two rules share a key."
)

COMMON = "common layout"
PER_KEY, PER_UNIT = "bytes per key", "bytes per unit of a log"
LOG = "sliding window log"
KEYS, HITS = 16_000, 3  # just below a power of two, for the two keys of the sliding counter as well
LOGS, UNITS = 64, 1_000
LIMIT = 10_000
CHUNK = 500  # keys in a pipeline
SHARE, UNIT_BYTES = 0.75, 12

Command = tuple[str, ...]


def _counter(kind: str, user: str, started: float, count: int, windows: int) -> list[Command]:
    name = f"rl:{kind}:{user}:{int(started * 1000)}"
    return [("INCRBY", name, str(count)), ("PEXPIRE", name, str(windows * DAY * 1000))]


def _bucket(kind: str, user: str, now: float, fields: Sequence[str], level: float) -> list[Command]:
    name = f"rl:{kind}:{user}"
    return [
        ("HSET", name, fields[0], f"{level:.17g}", fields[1], f"{now:.17g}"),  # as Lua writes a number
        ("EXPIRE", name, str(DAY + 60)),
    ]


def _fixed_window(user: str, now: float) -> list[Command]:
    return _counter("fw", user, now - now % DAY, HITS, 1)


def _sliding_window_counter(user: str, now: float) -> list[Command]:
    started = now - now % DAY
    return _counter("swc", user, started, HITS, 2) + _counter("swc", user, started - DAY, HITS, 2)


def _token_bucket(user: str, now: float) -> list[Command]:
    return _bucket("tb", user, now, ("tokens", "last_refill"), LIMIT - HITS + random.random())


def _leaky_bucket(user: str, now: float) -> list[Command]:
    return _bucket("lb", user, now, ("volume", "last_drain"), HITS - random.random())


def _sorted_set(user: str, now: float) -> list[Command]:
    name = f"rl:swl:{user}"
    milliseconds = [str(int(now * 1000) + unit) for unit in range(UNITS)]
    members = (part for at in milliseconds for part in (at, f"{at}{random.random():.17g}"))
    return [("ZADD", name, *members), ("EXPIRE", name, str(DAY))]


LAYOUTS: dict[str, Callable[[str, float], list[Command]]] = {
    "fixed window": _fixed_window,
    "sliding window counter": _sliding_window_counter,
    "token bucket": _token_bucket,
    "leaky bucket": _leaky_bucket,
}


def run(_rounds: int) -> list[Measurement]:
    """Count once each: the result does not depend on the time."""
    for algorithm in (*LAYOUTS, LOG):
        _hit(algorithm, CHUNK, 1, 0)  # loads the script and lets the server's buffers grow, which happens once
    figures = []
    for algorithm, layout in LAYOUTS.items():
        later_s = DAY if algorithm == "sliding window counter" else 1  # a count in both windows, a fraction of a unit
        figures.append(_growth(PER_KEY, algorithm, OURS, KEYS, partial(_hit, algorithm, KEYS, HITS, later_s)))
        figures.append(_growth(PER_KEY, algorithm, COMMON, KEYS, partial(_write, layout, KEYS)))
    units = LOGS * UNITS
    figures.append(_growth(PER_UNIT, LOG, OURS, units, partial(_hit, LOG, LOGS, UNITS, 0)))
    figures.append(_growth(PER_UNIT, LOG, COMMON, units, partial(_write, _sorted_set, LOGS)))
    return figures


def _growth(what: str, algorithm: str, contestant: str, count: int, fill: Callable[[], None]) -> Measurement:
    print(f"{NAME}: {what}: {contestant}, {algorithm}", file=sys.stderr)
    server().empty()
    before = server().memory()
    fill()
    grown = server().memory() - before
    return Measurement(what, algorithm, contestant, "bytes", (grown / count,))


def _hit(algorithm: str, keys: int, hits: int, later_s: int) -> None:
    """Hit each of these keys, the last time this much later."""

    async def fill() -> None:
        shift_ns = 0
        limiter = AsyncLimiter(
            rule(algorithm, LIMIT),
            server().url,
            clock=lambda: time_ns() + shift_ns,
            on_error="raise",
            deadline=PATIENCE,
        )
        for hit in range(1, hits + 1):
            if hit == hits:
                shift_ns = later_s * 10**9
            decisions = await asyncio.gather(*(limiter.hit(f"user:{key}") for key in range(keys)))
            if not all(decisions):
                raise SystemExit(f"{NAME}: {algorithm}: all should have been admitted")
        await limiter.close()

    asyncio.run(fill())


def _write(layout: Callable[[str, float], list[Command]], keys: int) -> None:
    """Write each of these keys as tutorials do."""
    now = time()
    with redis.Redis.from_url(server().url) as client:  # closing it also frees its buffer on the server
        for first in range(0, keys, CHUNK):
            pipeline = client.pipeline(transaction=False)
            for key in range(first, min(first + CHUNK, keys)):
                for command in layout(f"user:{key}", now):
                    pipeline.execute_command(*command)
            pipeline.execute()


def tables(figures: Sequence[Measurement]) -> list[str]:
    header, rows = by_contestant(figures, PER_KEY)
    beside = ["**ours / common layout**", *(f"**{times(_ratio(figures, algorithm))}**" for algorithm in header[1:])]
    return [
        section(PER_KEY, table(header, [*rows, beside])),
        section(PER_UNIT, table(*by_contestant(figures, PER_UNIT))),
    ]


def _ratio(figures: Sequence[Measurement], algorithm: str) -> float:
    return ratio(find(figures, PER_KEY, algorithm, OURS), find(figures, PER_KEY, algorithm, COMMON))


def targets(figures: Sequence[Measurement]) -> list[Target]:
    rows = []
    for algorithm in LAYOUTS:
        measured = _ratio(figures, algorithm)
        promise = f"on Redis, {algorithm}: at most {SHARE} of the bytes of the common layout"
        rows.append(Target(promise, times(measured), measured <= SHARE))
    unit = find(figures, PER_UNIT, LOG, OURS)
    if unit:
        promise = f"on Redis, {LOG}: at most {UNIT_BYTES} bytes a unit at {UNITS:,} units"
        rows.append(Target(promise, number(unit.median), unit.median <= UNIT_BYTES))
    return rows
