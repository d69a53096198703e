"""Drills on the callers of Redis: of all kinds at once, interrupted by signals, forked, and waiting by the thousand."""

from __future__ import annotations

import asyncio
import gc
import itertools
import multiprocessing
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import redis

import ratekeeper
from ratekeeper import AsyncLimiter, FixedWindow, LeakyBucket, Limiter
from ratekeeper.algorithms import Rule
from tests.servers import RedisServer
from tests.torture.redis import STRICT, own_server, rules_of, run_all

LIMIT = 10**9


def mixed(hits: int = 10_000, limit: int = 20_000) -> str:
    """Threads, tasks and processes on one key are admitted exactly the limit together, by each algorithm."""
    server = own_server()
    rules = rules_of(limit)
    spawning = multiprocessing.get_context("spawn")
    together = spawning.Barrier(4)
    totals = [spawning.Array("q", len(rules)) for _ in range(4)]
    try:
        workers = [
            spawning.Process(target=_from_both, args=(server.url, rules, hits, together, *totals[:2])),
            spawning.Process(target=_from_both, args=(server.url, rules, hits, together, *totals[2:])),
        ]
        assert run_all(workers) == [0, 0], "a process failed"
    finally:
        server.stop()
    for index, rule in enumerate(rules):
        admitted = [total[index] for total in totals]
        assert sum(admitted) == limit, f"{rule.text}: {admitted} admitted, {limit:,} are the limit"
    kinds = ", ".join(f"{sum(total):,}" for total in totals)
    return f"{len(rules)} rules admitted exactly {limit:,} each; to threads and tasks of two processes: {kinds}"


def _from_both(url: str, rules: list[Rule], hits: int, together: Any, to_threads: Any, to_tasks: Any) -> None:
    tasks = threading.Thread(target=_from_tasks, args=(url, rules, hits, together, to_tasks))
    tasks.start()
    _from_threads(url, rules, hits, together, to_threads)
    tasks.join()


def _from_threads(url: str, rules: list[Rule], hits: int, together: Any, admitted: Any) -> None:
    together.wait(60)
    for index, rule in enumerate(rules):
        with Limiter(rule, url, **STRICT) as limiter:
            counts = [0] * 8

            def work(number: int, limiter: Limiter = limiter, counts: list[int] = counts) -> None:
                counts[number] = sum(limiter.hit("one").allowed for _ in range(hits // 8))

            _at_once(work, len(counts))
        admitted[index] = sum(counts)


def _from_tasks(url: str, rules: list[Rule], hits: int, together: Any, admitted: Any) -> None:
    async def scenario() -> None:
        for index, rule in enumerate(rules):
            async with AsyncLimiter(rule, url, **STRICT) as limiter:

                async def work(limiter: AsyncLimiter = limiter) -> int:
                    return sum([(await limiter.hit("one")).allowed for _ in range(hits // 50)])

                admitted[index] = sum(await asyncio.gather(*(work() for _ in range(50))))

    together.wait(60)
    asyncio.run(scenario())


def _at_once(work: Any, count: int) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class _Alarm(Exception):
    pass


@contextmanager
def _alarms(every: float) -> Iterator[threading.Event]:
    """Raise _Alarm again and again in this thread, wherever it is below a call of the library.

    It may take the place of a KeyboardInterrupt on its way out; so Ctrl-C sets what this gives, and raises nothing.
    """
    ended = threading.Event()
    library = str(Path(ratekeeper.__file__).parent)

    def interrupt(_: int, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code.co_name != "__del__":  # where it could not be caught
            if frame.f_code.co_filename.startswith(library):
                raise _Alarm
            frame = frame.f_back

    before = signal.signal(signal.SIGALRM, interrupt), signal.signal(signal.SIGINT, lambda *_: ended.set())
    signal.setitimer(signal.ITIMER_REAL, every, every)
    with warnings.catch_warnings():  # a socket that is interrupted while it is made is closed as garbage
        warnings.simplefilter("ignore", ResourceWarning)
        gc.disable()  # an exception raised during garbage collection cannot be caught
        try:
            yield ended
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before[0])
            signal.signal(signal.SIGINT, before[1])
            gc.enable()
            gc.collect()


def signals_redis(hits: int = 20_000, limit: int = 1_000) -> str:
    """A storm of signals during calls: no answer reaches another caller, no call hangs, and no connection is left."""
    server = own_server()
    tickets = itertools.count(1)
    over = threading.Event()
    wrong: list[str] = []
    errors: list[str] = []
    counts = {"answered": 0, "interrupted": 0}
    admitted: list[bool] = []
    try:
        with (
            Limiter(FixedWindow(LIMIT, "365d"), server.url, on_error="raise", deadline=10) as limiter,
            Limiter(FixedWindow(limit, "365d"), limiter.store, on_error="raise", deadline=10) as narrow,
        ):

            def ask() -> None:
                """Hit the shared key, and a key of its own with a cost of its own."""
                admitted.append(narrow.hit("one").allowed)
                ticket = next(tickets)
                remaining = limiter.hit(ticket, ticket).remaining
                counts["answered"] += 1
                if remaining != LIMIT - ticket:
                    wrong.append(f"{LIMIT - ticket} expected, {remaining} told")

            def ask_on(_: int) -> None:
                while not over.is_set():
                    try:
                        ask()
                    except Exception as error:  # noqa: BLE001 - whatever reaches a caller is what is looked for
                        errors.append(str(error))

            others = threading.Thread(target=_at_once, args=(ask_on, 6))
            others.start()
            try:
                with _alarms(0.001) as ended:
                    for _ in range(hits):
                        if ended.is_set():
                            raise KeyboardInterrupt
                        try:
                            ask()
                        except _Alarm:
                            counts["interrupted"] += 1
                        except Exception as error:  # noqa: BLE001 - as above
                            errors.append(str(error))
            finally:
                over.set()
                others.join()
            with Limiter(FixedWindow(limit, "365d"), server.url, **STRICT) as fresh:
                used = limit - fresh.peek("one").remaining
            clients = _clients(server)
    finally:
        server.stop()
    assert not wrong, f"{len(wrong)} callers got another's answer: {wrong[0]}"
    assert counts["interrupted"], "no call was interrupted"
    others_fault = "the call to Redis was interrupted"  # the only trouble that an interrupted caller makes for others
    assert set(errors) <= {others_fault}, f"callers were told: {set(errors)}"
    unknown = counts["interrupted"] + len(errors)
    assert sum(admitted) <= used <= sum(admitted) + unknown, f"{sum(admitted):,} admitted, {used:,} counted"
    assert clients <= 4, f"{clients} connections are open"
    return (
        f"{counts['answered']:,} answered, {counts['interrupted']:,} interrupted, {len(errors):,} beside those: "
        f"every answer its caller's own, {clients} connections open"
    )


def _clients(server: RedisServer) -> int:
    """How many connections the server has, but for the one that asks."""
    with redis.Redis(port=server.port) as client:
        return len(client.client_list()) - 1


def fork_redis(times: int = 200, hits: int = 50) -> str:
    """Children forked from busy threads continue, as their parent does: own connections, own answers, exact totals."""
    server = own_server()
    over = threading.Event()
    wrong: list[int] = []
    parents = [0] * 4
    stuck = 0
    try:
        with Limiter(FixedWindow(LIMIT, "365d"), server.url, **STRICT) as limiter:
            limiter.hit("one")

            def ask(number: int) -> None:
                for ticket in itertools.count(1):
                    if over.is_set():
                        return
                    if limiter.hit(("parent", number, ticket), ticket).remaining != LIMIT - ticket:
                        wrong.append(ticket)
                    limiter.hit("one")
                    parents[number] += 1

            asking = threading.Thread(target=_at_once, args=(ask, len(parents)))
            before = _connections(server)
            asking.start()
            try:
                for number in range(times):
                    child = os.fork()
                    if child == 0:
                        _go_on(limiter, number, hits)
                    stuck += os.waitpid(child, 0)[1] != 0
            finally:
                over.set()
                asking.join()
            used = LIMIT - limiter.peek("one").remaining
            opened = _connections(server) - before
            clients = _clients(server)
    finally:
        server.stop()
    expected = 1 + sum(parents) + times * hits
    assert not stuck, f"{stuck} of {times} children did not get their own answers"
    assert not wrong, f"{len(wrong)} answers in the parent were another's"
    assert used == expected, f"{used:,} counted, {expected:,} hits"
    assert opened >= times, f"{times} children opened {opened} connections"
    assert clients <= 4, f"{clients} connections are open"
    return f"{times} children of 4 busy threads: {used:,} hits, all counted; {opened} connections, {clients} still open"


def _go_on(limiter: Limiter, number: int, hits: int) -> None:
    """In a child: hit on, and leave with 0 if every answer is its own."""
    status = 1
    try:
        signal.alarm(20)
        for ticket in range(1, hits + 1):
            if limiter.hit(("child", number, ticket), ticket).remaining != LIMIT - ticket:
                status = 2
                return
            limiter.hit("one")
        status = 0
    finally:
        os._exit(status)


def _connections(server: RedisServer) -> int:
    with redis.Redis(port=server.port) as client:
        return int(client.info("stats")["total_connections_received"])


def waiters(count: int = 10_000, rate: int = 250) -> str:
    """Thousands wait for one shaping bucket: they depart in order, at the rate and never before, and none is lost."""
    server = own_server()

    async def scenario() -> tuple[float, list[tuple[int, float]]]:
        departures: list[tuple[int, float]] = []
        async with AsyncLimiter(LeakyBucket(count, rate, "shaping"), server.url, **STRICT) as limiter:

            async def depart(number: int) -> None:
                decision = await limiter.wait("one")
                assert decision.allowed and not decision.degraded, f"the {number}th got {decision}"  # noqa: PT018
                departures.append((number, time.time()))

            begun = time.time()  # the server's clock is this one
            await asyncio.gather(*(depart(number) for number in range(count)))
        return begun, departures

    try:
        begun, departures = asyncio.run(scenario())
    finally:
        server.stop()
    order = [number for number, _ in departures]
    assert order == list(range(count)), f"{sum(a != b for a, b in enumerate(order))} departed out of order"
    early = max(begun + number / rate - at for number, at in departures)
    assert early < 0.000_002, f"one departed {early * 1000:.3f} ms before its time"  # but for the clocks' microseconds
    first, last = departures[0][1], departures[-1][1]
    assert last - first < 10 * count / rate, f"{last - first:.1f} s for {count / rate:.1f} s of departures"
    late = sorted(at - first - number / rate for number, at in departures)
    return (
        f"{count:,} departed in order in {last - first:.2f} s, at {rate}/s; "
        f"half of them up to {late[count // 2] * 1000:.1f} ms late, one {late[-1] * 1000:.1f}"
    )


DRILLS = {"mixed": mixed, "signals_redis": signals_redis, "fork_redis": fork_redis, "waiters": waiters}
