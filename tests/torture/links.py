"""Drills on the link to Redis: replies that are lost, a slow link, a black hole, a link that comes and goes."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from ratekeeper import AsyncLimiter, Limiter
from tests.proxy import Proxy
from tests.servers import RedisServer, newest, programs
from tests.torture.crowds import (
    RULE,
    Crowd,
    Tasks,
    Threads,
    both,
    check,
    check_on_error,
    figure,
    is_quiet,
    logged,
    until_away,
    until_back,
    until_stood_in,
    without_notices,
)


def _server() -> RedisServer:
    return RedisServer(programs()[newest()])


def lost_replies(lone: int = 200, batched: int = 500) -> str:
    """Replies are lost after the script ran: nothing is charged twice, and each caller gets an answer."""
    server = _server()
    try:
        with Proxy(server.port) as proxy, Limiter(RULE, server.url, on_error="raise") as direct, logged():
            direct.hit("the server knows the script now")
            for name, ask in _WAYS.items():
                before = proxy.lost
                keys = [f"{name} {number}" for number in range(lone if "lone" in name else batched)]
                degraded = ask(proxy, keys)
                charged = [10**9 - direct.peek(key).remaining for key in keys]
                assert degraded == len(keys), f"{name}: {degraded} of {len(keys)} were answered by on_error"
                assert max(charged) == 1, f"{name}: a hit was charged {max(charged)} times"
                # threads that come after the first loss find Redis away and are not sent at all
                assert "threads" in name or min(charged) == 1, f"{name}: {charged.count(0)} hits were not executed"
                assert proxy.lost > before, f"{name}: no reply was lost"
            return f"{proxy.lost} replies lost, {lone} lone and {batched} batched hits each way: none charged twice"
    finally:
        server.stop()


def _lone(proxy: Proxy, keys: list[str]) -> int:
    degraded = 0
    for key in keys:  # each with a limiter of its own, which does not know yet that replies are lost
        proxy.mode = "pass"
        with Limiter(RULE, proxy.url, deadline=5) as limiter:
            limiter.peek(key)
            proxy.mode = "lose"
            degraded += limiter.hit(key).degraded
    return degraded


def _lone_tasks(proxy: Proxy, keys: list[str]) -> int:
    async def scenario() -> int:
        degraded = 0
        for key in keys:
            proxy.mode = "pass"
            async with AsyncLimiter(RULE, proxy.url, deadline=5) as limiter:
                await limiter.peek(key)
                proxy.mode = "lose"
                degraded += (await limiter.hit(key)).degraded
        return degraded

    return asyncio.run(scenario())


def _batched_tasks(proxy: Proxy, keys: list[str]) -> int:
    async def scenario() -> int:
        proxy.mode = "pass"
        async with AsyncLimiter(RULE, proxy.url, deadline=5) as limiter:
            await asyncio.gather(*map(limiter.peek, keys))
            proxy.mode = "lose"
            return sum(decision.degraded for decision in await asyncio.gather(*map(limiter.hit, keys)))

    return asyncio.run(scenario())


def _batched_threads(proxy: Proxy, keys: list[str]) -> int:
    degraded: list[bool] = []
    proxy.mode = "pass"
    with Limiter(RULE, proxy.url, deadline=5) as limiter:
        limiter.peek("a connection is there")
        proxy.mode = "freeze"  # until all have asked
        threads = [threading.Thread(target=lambda key=key: degraded.append(limiter.hit(key).degraded)) for key in keys]
        for thread in threads:
            thread.start()
        proxy.mode = "lose"
        for thread in threads:
            thread.join()
    return sum(degraded)


_WAYS: dict[str, Callable[[Proxy, list[str]], int]] = {
    "lone": _lone,
    "lone tasks": _lone_tasks,
    "batched tasks": _batched_tasks,
    "batched threads": _batched_threads,
}


def slow_link(threads: int = 50, tasks: int = 500, seconds: float = 10.0) -> str:
    """Over a link of 20 ms there and back Redis decides all calls, of 70 ms some, of 300 ms none; all are in time.

    On a busy machine not all of 20 ms and none for sure of 70 ms are in time; then each caller is decided at 20 ms.
    """
    server = _server()
    try:
        with Proxy(server.port) as proxy, logged() as lines, both(proxy.url, threads, tasks) as crowds:
            proxy.delay = 0.01
            time.sleep(seconds / 2)
            until_back(crowds)
            if is_quiet():
                degraded = sum(told.degraded for crowd in crowds for told in crowd.told)
                assert degraded == 0, f"a link of 20 ms: {degraded} degraded"
                proxy.delay = 0.035  # calls that wait for an earlier one do not have enough time for both
                time.sleep(seconds / 2)
                openings = sum(crowd.breaker.openings for crowd in crowds)
                assert openings == 0, f"a link of 70 ms was taken to be away {openings} times"
            proxy.delay = 0.15 if is_quiet() else 0.5  # beyond what a busy machine may add to a deadline
            _stay_away(crowds, proxy, seconds / 2)
            check_on_error(proxy.url)
            proxy.delay = 0.0
            back = until_back(crowds)
    finally:
        server.stop()
    check(crowds, lines)
    return figure(crowds, back)


def black_hole(threads: int = 50, tasks: int = 500, seconds: float = 5.0) -> str:
    """Nothing answers: neither on a connection, nor when a new one is opened."""
    figures = []
    for what, hole in {"accepted": _silent, "unanswered": _full}.items():
        with hole() as (port, arrived), logged() as lines:
            url, begun = f"redis://127.0.0.1:{port}", time.monotonic()
            with Threads(url, threads) as first, Tasks(url, tasks) as second:
                until_away([first, second])
                time.sleep(seconds)
            came, lasted = arrived(), time.monotonic() - begun
            check_on_error(url)
        crowds = [first, second]
        decided = sum(not told.degraded for crowd in crowds for told in crowd.told)
        assert not decided, f"{decided} calls were decided by nobody"
        changes = without_notices(lines, crowds)
        assert len(changes) == len(crowds), f"logged: {changes}"
        assert came <= len(crowds) * (lasted + 3), f"{came} connections in {lasted:.1f} s"
        for crowd in crowds:
            crowd.check()
            figures.append(f"{crowd.callers} {crowd.name} {what} {crowd.slowest() * 1000:.0f} ms")
    return f"slowest answers: {', '.join(figures)}"


@contextmanager
def _silent() -> Iterator[tuple[int, Callable[[], int]]]:
    """A server that accepts connections and never answers."""
    with Proxy(0, mode="freeze") as proxy:
        yield proxy.port, lambda: proxy.connections


@contextmanager
def _full() -> Iterator[tuple[int, Callable[[], int]]]:
    """An address where not even a connection is accepted: the backlog is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listening:
        address = listening.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            with suppress(BlockingIOError):
                one.connect(address)
        try:
            yield address[1], lambda: 0
        finally:
            for one in waiting:
                one.close()


def flapping(threads: int = 50, tasks: int = 500, flaps: int = 40, period: float = 0.3) -> str:
    """A link that comes and goes: every call is answered, few reach for what is away, and Redis decides again."""
    server = _server()
    try:
        with Proxy(server.port) as proxy, logged() as lines, both(proxy.url, threads, tasks) as crowds:
            for _ in range(flaps):
                proxy.refuse()
                time.sleep(period)
                proxy.mode = "pass"
                time.sleep(period)
            proxy.refuse()
            _stay_away(crowds, proxy, 1.0)
            check_on_error(proxy.url)
            proxy.mode = "pass"
            back = until_back(crowds)
    finally:
        server.stop()
    check(crowds, lines)
    openings = max(crowd.breaker.openings for crowd in crowds)
    return f"{flaps + 1} times gone, {openings} times taken to be away; {figure(crowds, back)}"


def _stay_away(crowds: list[Crowd], proxy: Proxy, seconds: float) -> None:
    """Let Redis be away, and raise unless each store asks for it about once a second and it decides nothing."""
    until_away(crowds)
    before, begun = proxy.connections, time.monotonic()
    time.sleep(seconds)
    until_stood_in(crowds)
    came, lasted = proxy.connections - before, time.monotonic() - begun
    assert came <= len(crowds) * (lasted + 2), f"{came} connections in {lasted:.1f} s to a Redis that is away"


DRILLS = {"lost_replies": lost_replies, "slow_link": slow_link, "black_hole": black_hole, "flapping": flapping}
