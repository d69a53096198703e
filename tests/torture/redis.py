"""Drills against Redis servers of their own: exact totals, faults, and callers that go away."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import threading
import time
from contextlib import suppress
from typing import Any

import redis

from ratekeeper import (
    AsyncLimiter,
    Decision,
    FixedWindow,
    LeakyBucket,
    Limiter,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
)
from ratekeeper.algorithms import Rule
from tests import inside
from tests.servers import RedisServer, newest, programs
from tests.torture import progress
from tests.torture.crowds import check_times, logged, until


def rules_of(limit: int) -> list[Rule]:
    return [
        FixedWindow(limit, "365d"),
        SlidingWindowLog(limit, "365d"),
        SlidingWindowCounter(limit, "365d"),
        TokenBucket(limit, "4/day"),
        LeakyBucket(limit, "4/day"),
        LeakyBucket(limit, "4/day", "shaping"),
    ]


STRICT = {"on_error": "raise", "deadline": 60.0}


def own_server() -> RedisServer:
    return RedisServer(programs()[newest()])


def run_all(processes: list[Any]) -> list[int]:
    """Run processes and return their exit codes. Ctrl-C does not reach them: they are stopped from here."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # which they inherit
    try:
        for process in processes:
            process.start()
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        for process in processes:
            process.join()
    finally:
        for process in processes:
            process.terminate()
            process.join()
    return [process.exitcode for process in processes]


def _hits(url: str, rule: object, hits: int, admitted: object) -> None:
    with Limiter(rule, url, **STRICT) as limiter:  # type: ignore[arg-type]
        count = sum(limiter.hit("one").allowed for _ in range(hits))
    with admitted.get_lock():  # type: ignore[attr-defined]
        admitted.value += count  # type: ignore[attr-defined]


def exact(processes: int = 8, hits: int = 50_000, limit: int = 100_000) -> str:
    """Eight processes on one key are admitted exactly the limit, while the server's scripts are flushed in a loop."""
    server = own_server()
    spawning = multiprocessing.get_context("spawn")
    stop = threading.Event()
    flushed = []

    def flush() -> None:
        with redis.Redis(port=server.port) as client, suppress(redis.ConnectionError):  # Ctrl-C ends the server as well
            while not stop.wait(0.01):
                flushed.append(client.script_flush())

    flushing = threading.Thread(target=flush)
    flushing.start()
    try:
        for rule in rules_of(limit):
            progress("exact", rule.text)
            admitted = spawning.Value("q", 0)
            workers = [
                spawning.Process(target=_hits, args=(server.url, rule, hits, admitted)) for _ in range(processes)
            ]
            assert run_all(workers) == [0] * processes, f"{rule.text}: a process failed"
            assert admitted.value == limit, f"{rule.text}: {admitted.value:,} admitted, {limit:,} expected"
    finally:
        stop.set()
        flushing.join()
        server.stop()
    assert flushed, "no script was flushed"
    times = f"{len(flushed):,} times"
    return f"6 rules, {processes} processes x {hits:,} hits, scripts flushed {times}: each admitted exactly its limit"


def cancelled(tasks: int = 20_000) -> str:
    """Half of many concurrent hits are cancelled: the others get their own answers, and nothing is left behind."""
    server = own_server()

    async def scenario() -> tuple[int, int]:
        async with AsyncLimiter(FixedWindow(10**6, "365d"), server.url, **STRICT) as limiter:

            async def call(number: int) -> Decision:
                decision = await limiter.hit(f"key {number}", number + 1)
                assert decision.remaining == 10**6 - number - 1, f"key {number} got another's answer"
                return decision

            calls = [asyncio.create_task(call(number)) for number in range(tasks)]
            await asyncio.sleep(0.01)
            for number in range(0, tasks, 2):
                calls[number].cancel()
            ends = await asyncio.gather(*calls, return_exceptions=True)
            failed = [end for end in ends if isinstance(end, Exception)]
            assert not failed, f"{len(failed)} failed: {failed[0]!r}"
            store = limiter.store
            left = (len(inside.not_sent(store)), len(inside.idle(store)[None]) <= 4)
            assert left == (0, True), "something was left behind"
            return sum(isinstance(end, Decision) for end in ends), len(asyncio.all_tasks()) - 1

    try:
        answered, left = asyncio.run(scenario())
    finally:
        server.stop()
    assert left == 0, f"{left} tasks are left"
    assert answered >= tasks // 2, f"{answered:,} of {tasks:,} were answered"
    return f"{tasks:,} hits, {tasks - answered:,} cancelled, every other answer its caller's own"


def concurrent(callers: int = 5_000) -> str:
    """Thousands of concurrent hits share two connections, without an error."""
    server = own_server()

    async def scenario() -> int:
        async with AsyncLimiter(FixedWindow(10**6, "365d"), server.url, **STRICT) as limiter:
            decisions = await asyncio.gather(*(limiter.hit(f"key {number}") for number in range(callers)))
            return sum(decision.allowed and not decision.degraded for decision in decisions)

    try:
        with redis.Redis(port=server.port) as client:
            before = client.info("stats")["total_connections_received"]
            decided = asyncio.run(scenario())
            connections = client.info("stats")["total_connections_received"] - before
    finally:
        server.stop()
    assert decided == callers, f"{decided:,} of {callers:,} were decided by Redis"
    assert connections <= 2, f"{callers:,} callers opened {connections} connections"
    return f"{callers:,} callers at once, {connections} connections"


def killed(rounds: int = 3) -> str:
    """A server that is killed and comes back: every call is answered, and Redis decides again soon."""
    return _away(rounds, lambda server: server.stop(), lambda server: server.start(), "killed")


def frozen(rounds: int = 3) -> str:
    """A server that is frozen: every call is answered, and Redis decides again soon after."""
    return _away(
        rounds,
        lambda server: server.signal(signal.SIGSTOP),
        lambda server: server.signal(signal.SIGCONT),
        "frozen",
    )


def _away(rounds: int, go: object, come: object, what: str) -> str:
    server = own_server()
    slowest = returned = 0.0
    with logged(), Limiter(FixedWindow(10**9, "365d"), server.url) as limiter:
        try:
            for _ in range(rounds):
                until(lambda: not limiter.hit("one").degraded, "Redis decides before the fault")
                go(server)  # type: ignore[operator]
                for _ in range(200):
                    begun = time.monotonic()
                    assert limiter.hit("one").degraded, "answered by a server that is away"
                    slowest = max(slowest, time.monotonic() - begun)
                come(server)  # type: ignore[operator]
                begun = time.monotonic()
                until(lambda: not limiter.hit("one").degraded, "back on Redis")
                returned = max(returned, time.monotonic() - begun)
        finally:
            server.stop()
    check_times(slowest, returned)
    return f"{rounds} times {what}: slowest answer {slowest * 1000:.0f} ms, back on Redis within {returned:.2f} s"


DRILLS = {"exact": exact, "cancelled": cancelled, "concurrent": concurrent, "killed": killed, "frozen": frozen}
