"""Crowds that wait for a key on Redis with a timeout: they share what is asked of the server."""

import asyncio

from ratekeeper import AsyncLimiter, Decision, LeakyBucket, RateLimited, SlidingWindowLog, TokenBucket
from ratekeeper.testing import ManualClock
from tests.waiters import PATIENCE, in_queue, until_async

STRICT = {"on_error": "raise", "deadline": 30}


def calls(client, command):
    return client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"]


def test_a_crowd_shares_one_snapshot_of_its_key(server, client):
    async def scenario():
        clock = ManualClock()
        async with AsyncLimiter(SlidingWindowLog(1, 1), server.url, clock=clock, **STRICT) as limiter:
            await limiter.hit("k")
            before = calls(client, "lrange")
            tasks = [asyncio.create_task(limiter.wait("k", timeout=5)) for _ in range(300)]
            await until_async(lambda: in_queue(limiter) == 5, "the others are refused")
            asked = calls(client, "lrange") - before
            for second in range(1, 6):
                clock.advance(1)
                await until_async(lambda second=second: in_queue(limiter) == 5 - second, "one more served")
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        return asked, [type(end) is RateLimited for end in ended]

    asked, refused = asyncio.run(scenario())
    assert refused == [False] * 5 + [True] * 295
    assert asked <= 2


def test_nobody_of_a_crowd_is_told_that_a_healthy_store_is_unavailable(server, client):
    async def scenario():
        async with AsyncLimiter(TokenBucket(1, 10), server.url, on_error="raise", deadline=10) as limiter:
            await limiter.hit("k")
            waits = (limiter.wait("k", timeout=1) for _ in range(1000))
            return await asyncio.wait_for(asyncio.gather(*waits, return_exceptions=True), PATIENCE)

    ended = asyncio.run(scenario())
    assert {type(end) for end in ended} <= {Decision, RateLimited}


def test_a_crowd_that_is_shaped_departs_or_is_refused(server, client):
    async def scenario():
        async with AsyncLimiter(LeakyBucket(20, 100, "shaping"), server.url, **STRICT) as limiter:
            waits = (limiter.wait("k", timeout=0.5) for _ in range(300))
            return await asyncio.wait_for(asyncio.gather(*waits, return_exceptions=True), PATIENCE)

    ended = asyncio.run(scenario())
    assert {type(end) for end in ended} <= {Decision, RateLimited}
    assert any(isinstance(end, Decision) for end in ended)
