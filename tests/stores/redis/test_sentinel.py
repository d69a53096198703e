"""Sentinels name the master; when it fails, the next one is asked for."""

import asyncio

import pytest
import redis.asyncio.sentinel
import redis.sentinel

from ratekeeper import AsyncLimiter, FixedWindow, Limiter
from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores import AsyncRedisStore, RedisStore
from ratekeeper.stores.redis.urls import NodeAddress
from tests import clusters, inside, servers
from tests.clusters import client

STRICT = {"on_error": "raise", "deadline": 10.0}
RULE = FixedWindow(1_000, "365d")


@pytest.fixture(scope="module", params=servers.programs())
def sentinels(request):
    made = clusters.Sentinels(servers.programs()[request.param])
    yield made
    made.stop()


def test_the_master_is_found_by_its_name(sentinels):
    with Limiter(RULE, sentinels.url, **STRICT) as limiter:
        assert limiter.hit("found").remaining == 999
    assert client(sentinels.master).keys("*{found}") != []


def test_the_master_is_found_by_its_name_in_a_loop(sentinels):
    async def scenario():
        async with AsyncLimiter(RULE, sentinels.url, **STRICT) as limiter:
            return await asyncio.gather(*(limiter.hit("found in a loop") for _ in range(3)))

    assert sorted(decision.remaining for decision in asyncio.run(scenario())) == [997, 998, 999]


def test_a_sentinel_that_is_away_is_passed_over(sentinels):
    url = sentinels.url.replace("redis+sentinel://", f"redis+sentinel://127.0.0.1:{servers.free_port()},")
    with Limiter(RULE, url, **STRICT) as limiter:
        assert limiter.hit("passed over").remaining == 999


def test_an_unknown_master_is_named(sentinels):
    url = sentinels.url.replace(sentinels.name, "nobody")
    with Limiter(RULE, url, **STRICT) as limiter, pytest.raises(StoreUnavailable, match="no master 'nobody'"):
        limiter.hit("k")


def test_existing_clients_of_a_sentinel_say_where_it_is(sentinels):
    addresses = [("127.0.0.1", port) for port in sentinels.ports]
    theirs = redis.sentinel.Sentinel(addresses).master_for(sentinels.name)
    with Limiter(RULE, RedisStore(theirs), **STRICT) as limiter:
        assert limiter.hit("theirs").remaining == 999

    async def scenario():
        store = AsyncRedisStore(redis.asyncio.sentinel.Sentinel(addresses).master_for(sentinels.name))
        decision = await AsyncLimiter(RULE, store, **STRICT).hit("theirs")
        await store.close()
        return decision.remaining

    assert asyncio.run(scenario()) == 998


def test_without_a_master_and_a_sentinel_nobody_else_is_asked(sentinels):
    gone = f"127.0.0.1:{servers.free_port()}"
    with Limiter(RULE, f"redis+sentinel://{gone}/nobody", **STRICT) as limiter:
        topology = inside.servers(limiter.store).topology
        topology._master = NodeAddress("127.0.0.1", servers.free_port())  # noqa: SLF001 - as if a sentinel had named it
        for reason in ("Connection refused", "no sentinel knows the master"):
            with pytest.raises(StoreUnavailable, match=reason):
                limiter.hit("k")
            inside.second_passed(limiter.store)


def test_a_planned_failover_reaches_no_caller(sentinels):
    """The old master still answers, read-only; writes that it refuses are sent to the new one."""
    with Limiter(RULE, sentinels.url, **STRICT) as limiter:
        remaining = limiter.hit("planned").remaining
        before = sentinels.master
        clusters.until(lambda: client(before).wait(1, 1000) == 1, "the replica has it")
        sentinels.fail_over()
        clusters.until(lambda: sentinels.master is not before, "the sentinels name another")
        clusters.until(lambda: client(before).info("replication")["role"] == "slave", "the old master follows")
        assert [limiter.hit("planned").remaining for _ in range(2)] == [remaining - 1, remaining - 2]


def test_after_a_failover_the_new_master_decides(sentinels):
    with Limiter(RULE, sentinels.url) as limiter:
        assert not limiter.hit("failover").degraded
        before = sentinels.master
        before.stop()
        clusters.until(lambda: not limiter.hit("failover").degraded, "the new master decides")
        clusters.until(lambda: sentinels.master is not before, "the first sentinel has heard of it as well")
        after = limiter.hit("failover").remaining
        before.start()  # empty, and to become the other's replica
        assert limiter.hit("failover").remaining == after - 1
