"""Decisions on Redis: what is stored, how it is called, and that threads, tasks and forks share it exactly."""

import asyncio
import gc
import inspect
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from contextlib import ExitStack, contextmanager, suppress
from fractions import Fraction

import msgpack
import pytest
import redis
import redis.asyncio
from redis._parsers import _RESP2Parser

from ratekeeper import (
    AsyncLimiter,
    FixedWindow,
    InvalidRule,
    LeakyBucket,
    Limiter,
    RateLimited,
    SlidingWindowCounter,
    SlidingWindowLog,
    StoreUnavailable,
    TokenBucket,
)
from ratekeeper.clock import stopwatch
from ratekeeper.stores import AsyncRedisStore, MemoryStore, RedisStore
from ratekeeper.stores.redis import script, thread_batches, thread_connections
from ratekeeper.stores.redis.batching import shows_away
from ratekeeper.stores.redis.semaphore import SignalSafeSemaphore
from ratekeeper.testing import ManualClock
from tests import inside, servers
from tests.answering import welcomed
from tests.proxy import Proxy
from tests.waiters import Call, in_queue, until, until_async, untraced, waiters

RULES = [
    FixedWindow(100, "365d"),
    SlidingWindowLog(100, 86_400),
    SlidingWindowCounter(100, "365d"),
    TokenBucket(100, "1/day"),
    LeakyBucket(100, "1/day"),
    LeakyBucket(100, "1/day", "shaping"),
]
STRICT = {"on_error": "raise", "deadline": 30}


@pytest.fixture
def limiter(server, client):
    with Limiter("fixed-window 3/year", server.url, **STRICT) as limiter:
        yield limiter


def test_a_limiter_on_redis_decides(limiter):
    assert [limiter.hit("k").allowed for _ in range(4)] == [True, True, True, False]
    assert limiter.hit("k").degraded is False


def test_an_async_limiter_on_redis_decides(server, client):
    async def scenario():
        async with AsyncLimiter("fixed-window 3/year", server.url, **STRICT) as limiter:
            return [await limiter.hit("k") for _ in range(4)]

    decisions = asyncio.run(scenario())
    assert [decision.allowed for decision in decisions] == [True, True, True, False]
    assert not any(decision.degraded for decision in decisions)


def test_limiters_of_different_objects_share_usage_through_the_server(server, limiter):
    with Limiter("fixed-window 3/year", server.url, **STRICT) as other:
        assert [one.hit("k").remaining for one in (limiter, other, limiter)] == [2, 1, 0]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.text)
def test_every_key_has_a_ttl_that_ends_with_its_use(server, client, rule):
    with Limiter(rule, server.url, **STRICT) as limiter:
        decision = limiter.hit("k")
    (name,) = client.keys("*")
    ttl = client.pttl(name) / 1000
    assert decision.reset_after - 1 < ttl <= decision.reset_after + 0.002


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.text)
def test_with_a_clock_of_ones_own_a_key_stays_for_a_minute_at_least(server, client, rule):
    clock = ManualClock()
    short = type(rule)(1, 1) if not isinstance(rule, LeakyBucket) else LeakyBucket(1, 1, rule.mode)
    with Limiter(short, server.url, clock=clock, **STRICT) as limiter:
        limiter.hit("k")
    (name,) = client.keys("*")
    assert 59 < client.pttl(name) / 1000 <= 60


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.text)
def test_a_denied_hit_and_a_peek_write_nothing(server, client, rule):
    with Limiter(rule, server.url, **STRICT) as limiter:
        limiter.peek("fresh")
        limiter.hit("k", 100)
        (name,) = client.keys("*")
        before = client.dump(name)
        written = client.info("stats")["total_error_replies"], client.info("persistence")["rdb_changes_since_last_save"]
        assert not limiter.hit("k")
        assert not limiter.peek("k")
        after = client.info("stats")["total_error_replies"], client.info("persistence")["rdb_changes_since_last_save"]
    assert (client.dump(name), after) == (before, written)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.text)
def test_what_is_emptied_leaves_redis(server, client, rule):
    with Limiter(rule, server.url, **STRICT) as limiter:
        for give in (lambda: limiter.refund("k", 5), lambda: limiter.reset("k")):
            limiter.hit("k", 5)
            assert client.dbsize() == 1
            give()
            assert client.dbsize() == 0


def test_a_script_that_the_server_forgot_is_sent_again(client, limiter):
    limiter.hit("k")
    client.script_flush()
    assert limiter.hit("k").remaining == 1
    assert client.script_exists(script.SHA) == [True]


def test_an_async_script_that_the_server_forgot_is_sent_again(server, client):
    async def scenario():
        async with AsyncLimiter("fixed-window 3/year", server.url, **STRICT) as limiter:
            await limiter.hit("k")
            client.script_flush()
            return await limiter.hit("k")

    assert asyncio.run(scenario()).remaining == 1


def test_a_lone_decision_is_one_round_trip(client, limiter):
    limiter.hit("k")
    before = client.info("commandstats")
    limiter.hit("k")
    after = client.info("commandstats")
    assert after["cmdstat_evalsha"]["calls"] - before["cmdstat_evalsha"]["calls"] == 1
    assert "cmdstat_hello" not in after or after["cmdstat_hello"] == before.get("cmdstat_hello")


def test_tasks_that_ask_in_one_turn_share_two_calls(server, client):
    async def scenario():
        async with AsyncLimiter("fixed-window 100/year", server.url, **STRICT) as limiter:
            await asyncio.gather(*(limiter.hit("other") for _ in range(99)))  # both connections are there
            before = client.info("commandstats")["cmdstat_evalsha"]["calls"]
            decisions = await asyncio.gather(*(limiter.hit("k") for _ in range(99)))
            calls = client.info("commandstats")["cmdstat_evalsha"]["calls"] - before
            return calls, sorted(decision.remaining for decision in decisions)

    assert asyncio.run(scenario()) == (2, list(range(1, 100)))


async def half_leave(limiter, tasks, after):
    """Make one hit in each of these tasks; cancel every second one after some seconds, and return the other results."""
    calls = [asyncio.create_task(limiter.hit("k")) for _ in range(tasks)]
    await asyncio.sleep(after)
    for call in calls[::2]:
        call.cancel()
    ends = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 10)
    assert all(isinstance(end, asyncio.CancelledError) for end in ends[::2])
    return ends[1::2]


def test_of_tasks_that_ask_the_same_each_gets_its_own_answer_and_who_leaves_early_pays_nothing(server, client):
    async def scenario():
        async with AsyncLimiter("fixed-window 100/year", server.url, **STRICT) as limiter:
            await limiter.hit("k")
            decisions = await half_leave(limiter, 40, 0)  # after all have asked, before anything is sent
            return [decision.remaining for decision in decisions], (await limiter.peek("k")).remaining

    remaining, left = asyncio.run(scenario())
    assert sorted(remaining) == list(range(79, 99))
    assert left == 79


def test_tasks_that_ask_the_same_of_a_server_that_is_away_all_hear_of_it(server, client):
    async def scenario():
        async with AsyncLimiter("fixed-window 100/year", server.url, deadline=1) as limiter:
            await limiter.hit("k")
            server.signal(signal.SIGSTOP)
            return await half_leave(limiter, 100, 0.05)

    try:
        assert all(decision.degraded for decision in asyncio.run(scenario()))
    finally:
        server.signal(signal.SIGCONT)


def test_each_caller_who_asks_the_same_counts_once_as_a_failure(server, client, monkeypatch):
    inside.never_late(monkeypatch)

    async def scenario():
        store = AsyncRedisStore(server.url)
        await AsyncLimiter("fixed-window 100/year", store, **STRICT).hit("k")
        server.signal(signal.SIGSTOP)
        await half_leave(AsyncLimiter("fixed-window 100/year", store, deadline=1), 10, 0.05)
        under_way = inside.under_way(store)
        await until_async(lambda: not under_way, "the call has come to its end")
        await store.close()
        return store.breaker.failures

    try:
        assert asyncio.run(scenario()) == 10
    finally:
        server.signal(signal.SIGCONT)


def test_a_log_that_raises_leaves_nobody_without_an_answer(server, client):
    class Broken(logging.Handler):
        def emit(self, record):
            raise RuntimeError(record)

    async def scenario():
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # which gets the error of the log handler
        async with AsyncLimiter("fixed-window 100/year", server.url, deadline=0.2) as limiter:
            await limiter.hit("k")
            server.signal(signal.SIGSTOP)
            return await asyncio.wait_for(asyncio.gather(*(limiter.hit("k") for _ in range(8))), 10)

    log, broken = logging.getLogger("ratekeeper"), Broken()
    log.addHandler(broken)
    try:
        assert all(decision.degraded for decision in asyncio.run(scenario()))
    finally:
        log.removeHandler(broken)
        server.signal(signal.SIGCONT)


def test_a_log_that_raises_while_a_request_is_given_up_keeps_nobody_waiting(server, client, monkeypatch):
    """One request is given up and the log raises; the next one is still given up in time, and so is the last."""
    inside.never_late(monkeypatch)

    class Broken(logging.Handler):
        def emit(self, record):
            raise RuntimeError(record)

    async def scenario():
        raised = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context["exception"]))
        store = AsyncRedisStore(server.url)
        limiters = [
            AsyncLimiter("fixed-window 100/year", store, on_error="raise", deadline=deadline)
            for deadline in (0.3, 0.6, 20)
        ]
        server.signal(signal.SIGSTOP)
        hits = [asyncio.ensure_future(limiter.hit("k")) for limiter in limiters]
        await asyncio.wait(hits[:2], timeout=6)
        ended = [hit.done() for hit in hits]
        await store.close()
        ends = await asyncio.gather(*hits, return_exceptions=True)
        return ended, [type(end) for end in ends], [type(error) for error in raised]

    log, broken = logging.getLogger("ratekeeper"), Broken()
    log.addHandler(broken)
    try:
        ended, ends, raised = asyncio.run(scenario())
    finally:
        log.removeHandler(broken)
        server.signal(signal.SIGCONT)
    assert raised == [RuntimeError]
    assert ended == [True, True, False]
    assert ends == [StoreUnavailable] * 3


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.text)
def test_threads_on_one_key_are_admitted_exactly_the_limit(server, client, rule):
    with Limiter(rule, server.url, **STRICT) as limiter:
        admitted = []

        def work():
            admitted.extend(limiter.hit("k").allowed for _ in range(20))

        threads = [threading.Thread(target=work) for _ in range(16)]
        with untraced():
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert (sum(admitted), len(admitted)) == (100, 320)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.text)
def test_tasks_on_one_key_are_admitted_exactly_the_limit(server, client, rule):
    async def scenario():
        async with AsyncLimiter(rule, server.url, **STRICT) as limiter:
            return await asyncio.gather(*(limiter.hit("k") for _ in range(1000)))

    assert sum(decision.allowed for decision in asyncio.run(scenario())) == 100


def test_several_rules_are_decided_all_or_nothing(server, client):
    rules = {"user": FixedWindow(2, 86_400), "tenant": SlidingWindowLog(3, 86_400), "all": TokenBucket(10, "1/day")}
    with Limiter(rules, server.url, **STRICT) as limiter:
        keys = [{"user": user, "tenant": "acme", "all": "all"} for user in ("ada", "ada", "ada", "bob", "bob")]
        decisions = [limiter.hit(key) for key in keys]
        assert [(decision.allowed, decision.rule) for decision in decisions] == [
            (True, "user"),
            (True, "user"),
            (False, "user"),
            (True, "tenant"),
            (False, "tenant"),
        ]
        assert decisions[-1].layers["all"].remaining == 7


def test_one_limiter_serves_one_event_loop_after_another(server, client):
    limiter = AsyncLimiter("fixed-window 3/year", server.url, **STRICT)

    async def scenario():
        remaining = (await limiter.hit("k")).remaining
        await limiter.close()
        return remaining

    assert [asyncio.run(scenario()) for _ in range(3)] == [2, 1, 0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_a_forked_child_has_connections_of_its_own(server, client):
    with Limiter("fixed-window 100/year", server.url, **STRICT) as limiter:
        limiter.hit("k")
        with untraced():
            children = []
            for _ in range(4):
                child = os.fork()
                if child == 0:
                    status = 1
                    try:
                        status = 0 if all(limiter.hit("k").limit == 100 for _ in range(10)) else 2
                    finally:
                        os._exit(status)
                children.append(child)
            for _ in range(10):
                limiter.hit("k")
            assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
        assert limiter.peek("k").remaining == 100 - 1 - 40 - 10


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_a_child_that_is_forked_in_the_middle_of_a_call_leaves_the_connection_to_its_parent(
    server, client, monkeypatch
):
    connection_type = thread_connections._ThreadConnection  # noqa: SLF001 - where a call is under way
    exchange = connection_type.exchange
    child = None
    kept = -1

    def exchange_and_fork(connection, commands):
        nonlocal child
        replies = exchange(connection, commands)
        child = os.fork() if child is None else child
        return replies

    with Limiter("fixed-window 100/year", server.url, **STRICT) as limiter, untraced():
        limiter.hit("k")
        monkeypatch.setattr(connection_type, "exchange", exchange_and_fork)
        try:
            limiter.hit("k")
            kept = sum(map(len, inside.idle(limiter.store).values()))
        finally:
            if child == 0:
                os._exit(kept)
        assert os.waitpid(child, 0)[1] == 0
        assert kept == 1


def test_a_restarted_server_is_met_with_a_new_connection(server, limiter):
    limiter.hit("k")
    server.stop()
    server.start()
    assert limiter.hit("k").remaining == 2  # it forgot everything


def test_a_connection_that_was_reset_while_it_was_idle_is_not_used(server, client):
    async def scenario(proxy):
        limiter = AsyncLimiter("fixed-window 100/year", proxy.url, **STRICT)
        await limiter.hit("k")
        (idle,) = inside.idle(limiter.store)[None]
        proxy.reset()
        await until_async(lambda: idle._reader.exception() is not None, "it was reset")  # noqa: SLF001 - third-party
        try:
            return await limiter.hit("k")
        finally:
            await limiter.close()

    with Proxy(server.port) as proxy:
        assert asyncio.run(scenario(proxy)).remaining == 98


def test_a_key_that_holds_something_else_is_an_error_that_says_so(client, limiter):
    limiter.hit("k")
    (name,) = client.keys("*")
    for something in ("hello", "", b"\xef\xbb", "12", msgpack.packb(float("nan")) + b"1", msgpack.packb([1, 2])):
        client.set(name, something)
        with pytest.raises(StoreUnavailable, match="holds no state"):
            limiter.hit("k")
    assert limiter.hit("another").allowed
    assert not limiter.store.breaker.is_open


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1, 1.5, "", 2**53 + 2, "x", None])
def test_the_script_refuses_what_is_not_a_whole_number_and_writes_nothing(client, bad):
    rule = ["fixed_window", 10, 60_000_000, 0, 0]
    lone = b"".join(map(msgpack.packb, [*rule, bad]))
    for argument in (lone, msgpack.packb([False, 1, *rule, "hit", 1, 1, 1, 1, bad])):
        with pytest.raises(redis.ResponseError, match="is not a whole number"):
            client.eval(script.TEXT, 1, "key", argument)
    assert client.dbsize() == 0


def test_an_existing_client_or_pool_says_how_to_connect(server, client):
    store = RedisStore(client)
    with Limiter("fixed-window 3/year", store, **STRICT) as limiter:
        assert limiter.hit("k").remaining == 2
    with Limiter("fixed-window 3/year", RedisStore(client.connection_pool), **STRICT) as limiter:
        assert limiter.hit("k").remaining == 1
    store.close()


def test_an_existing_asyncio_client_says_how_to_connect(server, client):
    async def scenario():
        existing = redis.asyncio.Redis(port=server.port)
        store = AsyncRedisStore(existing)
        decision = await AsyncLimiter("fixed-window 3/year", store, **STRICT).hit("k")
        await store.close()
        await (existing.aclose() if hasattr(existing, "aclose") else existing.close())  # 5.0.0 has only the latter
        return decision

    assert asyncio.run(scenario()).remaining == 2


@pytest.mark.parametrize(
    ("kind", "store"),
    [(Limiter, AsyncRedisStore), (AsyncLimiter, RedisStore)],
)
def test_a_store_of_the_other_kind_is_refused(server, kind, store):
    with pytest.raises(TypeError, match=rf"{store.__name__}\(.*\) .*; an? {kind.__name__} needs an? "):
        kind("1/s", store(server.url))


@pytest.mark.parametrize("store", [RedisStore, AsyncRedisStore])
@pytest.mark.parametrize("source", [42, None, object(), MemoryStore()])
def test_what_cannot_be_connected_to_is_refused(store, source):
    with pytest.raises(TypeError, match="a store needs a URL, or a client or pool of redis"):
        store(source)


def test_a_password_is_not_shown():
    store = RedisStore("redis://ada:secret@127.0.0.1:1/0?password=secret")
    with pytest.raises(StoreUnavailable) as raised:
        Limiter("1/s", store, on_error="raise").hit("k")
    assert "secret" not in f"{store!r} {raised.value}"


def test_a_url_that_cannot_be_read_is_refused_without_showing_its_password():
    with pytest.raises(InvalidRule) as raised:
        Limiter("1/s", "redis://ada:secret@127.0.0.1:port/0")
    assert "secret" not in str(raised.value)


def test_inspect_shows_what_redis_holds(server, client):
    with Limiter({"f": FixedWindow(5, 86_400), "l": SlidingWindowLog(5, 86_400)}, server.url, **STRICT) as limiter:
        limiter.hit("k", 2)
        seen = limiter.inspect("k")
        fresh = limiter.inspect("other")
    assert (seen["f"].state["count"], seen["l"].state["count"]) == (2, 2)
    assert seen["f"].raw.endswith(b"\x02")
    assert 86_390 < seen["l"].ttl <= 86_400
    assert 50 < seen["f"].bytes < 200
    assert client.exists(seen["f"].name, seen["l"].name) == 2
    assert (fresh["f"].raw, fresh["f"].ttl, fresh["f"].bytes, fresh["f"].state["count"]) == (None, None, 0, 0)


def test_a_waiter_is_woken_when_redis_will_admit_it(server, client):
    clock = ManualClock()
    with Limiter(TokenBucket(1, 20), server.url, clock=clock, **STRICT) as limiter:
        limiter.hit("k")
        call = Call(limiter.wait, "k", timeout=0.05)
        until(lambda: waiters(limiter), "somebody waits")
        clock.advance(0.05)
        assert call.outcome().allowed
        with pytest.raises(RateLimited) as raised:
            limiter.wait("k", timeout=0.04)
        assert raised.value.decision.retry_after == 0.05


def test_a_timeout_that_those_ahead_make_impossible_is_refused_at_once(server, client):
    clock = ManualClock()
    with Limiter(TokenBucket(1, 20), server.url, clock=clock, **STRICT) as limiter:
        limiter.hit("k")
        call = Call(limiter.wait, "k")
        until(lambda: waiters(limiter), "somebody waits")
        with pytest.raises(RateLimited) as raised:
            limiter.wait("k", timeout=0.09)
        assert raised.value.decision.retry_after == 0.1
        clock.advance(0.05)
        assert call.outcome().allowed


def test_a_log_of_a_thousand_units_takes_at_most_twelve_bytes_a_unit(server, client):
    clock = ManualClock()
    with Limiter(SlidingWindowLog(1000, 86_400), server.url, clock=clock, **STRICT) as limiter:
        for _ in range(1000):
            clock.advance(0.013)
            limiter.hit("k")
    (name,) = client.keys("*")
    assert client.memory_usage(name, samples=0) <= 12 * 1000


def test_tasks_wait_in_line_for_redis(server, client):
    clock = ManualClock()

    async def scenario():
        async with AsyncLimiter(TokenBucket(1, 1), server.url, clock=clock, **STRICT) as limiter:
            assert await limiter.hit("k")
            tasks = [asyncio.create_task(limiter.wait("k", timeout=timeout)) for timeout in (None, 2)]
            await until_async(lambda: in_queue(limiter) == 2, "two in the queue")
            with pytest.raises(RateLimited) as raised:
                await limiter.wait("k", timeout=2.9)
            assert raised.value.decision.retry_after == 3
            clock.advance(1)
            assert (await tasks[0]).allowed
            clock.advance(1)
            assert (await tasks[1]).allowed

    asyncio.run(scenario())


def test_a_wait_that_is_cancelled_while_its_hit_is_under_way_gives_back(server, client):
    async def scenario():
        async with AsyncLimiter(FixedWindow(50, "365d"), server.url, **STRICT) as limiter:
            await limiter.hit("k")
            waits = [asyncio.create_task(limiter.wait(("other", number))) for number in range(20)]
            waits += [asyncio.create_task(limiter.wait("k")) for _ in range(1)]
            await until_async(lambda: inside.under_way(limiter.store), "a call is under way")
            for wait in waits:
                wait.cancel()
            ended = await asyncio.gather(*waits, return_exceptions=True)
            assert {type(end) for end in ended} == {asyncio.CancelledError}
            await until_async(lambda: not inside.undoing(), "what was taken is given back")
            return [(await limiter.peek(key)).remaining for key in ("k", ("other", 0), ("other", 19))]

    assert asyncio.run(scenario()) == [49, 50, 50]


def test_event_loops_that_ended_without_closing_leave_nothing_behind(server, client):
    limiter = AsyncLimiter("fixed-window 100/year", server.url, **STRICT)

    async def scenario():
        await limiter.hit("k")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        for _ in range(10):
            asyncio.run(scenario())
        gc.collect()
    assert len(inside.loops(limiter.store)) == 1
    assert client.info("clients")["connected_clients"] <= 3

    async def close():
        inside.loops(limiter.store).clear()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        asyncio.run(close())
        gc.collect()


def test_an_event_loop_that_is_closed_under_way_does_not_tell_the_others_that_redis_is_away(server, client):
    script = f"""
import asyncio, gc
from ratekeeper import AsyncLimiter
limiter = AsyncLimiter("fixed-window 100/year", {server.url!r}, on_error="raise", deadline=30)
async def begin(turns):
    hit = asyncio.ensure_future(limiter.hit("k"))
    for _ in range(turns):
        await asyncio.sleep(0)
async def go_on():
    gc.collect()  # here ends what the other loop had under way
    await limiter.hit("another")
    await limiter.close()
for turns in range(12):
    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin(turns))
    loop.close()
    del loop
    asyncio.run(go_on())
print("went on", limiter.store.breaker.openings)
"""
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert finished.stdout == "went on 0\n"


def test_waits_with_a_timeout_open_no_more_connections_than_there_are_calls(server, client):
    async def scenario():
        async with AsyncLimiter(TokenBucket(1, 1), server.url, clock=ManualClock(), **STRICT) as limiter:
            await limiter.hit("k")
            waits = [asyncio.create_task(limiter.wait("k", timeout=10_000)) for _ in range(200)]
            await until_async(lambda: in_queue(limiter) == 200, "all in the queue")
            connections = client.info("clients")["connected_clients"]
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
            return connections

    assert asyncio.run(scenario()) <= 1 + 4


@pytest.mark.parametrize(
    ("sent", "ends", "took", "is_away"),
    [
        (0, 100, 1, True),
        (80, 100, 1, True),
        (81, 100, 1, False),  # hardly any time was left
        (20, 100, 40, True),
        (21, 100, 40, False),  # Redis takes 40 ms at the moment: this one waited too long for an earlier batch
        (10, 100, 80, True),  # it had nearly all of its time
        (11, 100, 80, False),
    ],
)
def test_a_call_tells_that_redis_is_away_unless_it_waited_in_our_queue_for_too_long(sent, ends, took, is_away):
    asked, sent, ends, took = (1_000_000 * milliseconds for milliseconds in (0, sent, ends, took))
    assert shows_away(None, asked, sent, ends, took) is is_away


def test_a_later_part_of_a_request_that_had_little_time_left_does_not_tell_that_redis_is_away(server, client):
    """It has 15 ms left of its second: in threads, and in an event loop."""
    sync, loops = (kind("fixed-window 9/year", server.url, **STRICT) for kind in (Limiter, AsyncLimiter))
    part = inside.demands(sync, "k")

    async def scenario():
        await loops.hit("k")
        client.execute_command("CLIENT PAUSE", 400, "ALL")
        part = inside.demands(loops, "k")
        with pytest.raises(StoreUnavailable):
            await inside.batches(loops.store).execute(part, stopwatch() + 15_000_000, stopwatch() - 985_000_000)
        await loops.close()

    with sync:
        sync.hit("k")
        client.execute_command("CLIENT PAUSE", 400, "ALL")
        now = stopwatch()
        with pytest.raises(StoreUnavailable):
            inside.batches(sync.store).execute(part, now + 15_000_000, now - 985_000_000)
        assert not sync.store.is_away
    asyncio.run(scenario())
    assert not loops.store.is_away


def test_a_leader_that_is_interrupted_before_it_can_tell_the_others_leaves_nobody_waiting(server, client, monkeypatch):
    hand_out = thread_batches._hand_out  # noqa: SLF001 - where an interruption would harm others

    def interrupted(batch, error):
        if len(batch) > 1:
            raise KeyboardInterrupt
        hand_out(batch, error)

    monkeypatch.setattr(thread_batches, "_hand_out", interrupted)

    def ask():
        try:
            return limiter.hit("k").allowed
        except (KeyboardInterrupt, StoreUnavailable) as error:
            return repr(error)

    with Limiter("fixed-window 100/year", server.url, **STRICT) as limiter:
        limiter.hit("k")
        server.signal(signal.SIGSTOP)
        try:
            calls = [Call(ask) for _ in range(2)]
            until(lambda: len(inside.leaders(limiter.store)) == 2, "two calls are under way")
            calls += [Call(ask) for _ in range(2)]
            until(lambda: len(inside.not_sent(limiter.store)) == 2, "two go together into the next one")
        finally:
            server.signal(signal.SIGCONT)
        ends = [call.outcome() for call in calls]
        assert ends[:2] == [True, True]
        assert sorted(ends[2:]) == ["KeyboardInterrupt()", "StoreUnavailable('the call to Redis was interrupted')"]
        assert not limiter.store.breaker.is_open
        assert limiter.hit("k").remaining == 100 - 6


def test_a_call_that_was_sent_late_does_not_tell_that_redis_is_away_though_its_leader_is_in_an_earlier_one(server):
    with RedisStoreFor(server) as store:
        batches = inside.batches(store)
        now = stopwatch()
        other, leader = (
            thread_batches._ThreadRequest([], now + 10_000_000)  # noqa: SLF001 - a batch that comes about by chance
            for _ in range(2)
        )
        other.sent_ns = leader.asked_ns = now - 90_000_000
        leader.leader = other

        def run_out_of_time(*_):
            raise StoreUnavailable("no time left") from TimeoutError()

        inside.connections(store).decide = run_out_of_time
        (result,) = batches._decide([[]], leader)  # noqa: SLF001 - as above
        assert not result.away


def test_a_leader_with_little_time_left_does_not_bound_the_call_of_others(server, client):
    class Crowded(thread_batches.ThreadBatches):
        """Lets the hasty caller lead, and send nothing before another one waits."""

        def _serve(self, leader):
            if leader.ends_ns < stopwatch() + 20_000_000_000:
                until(lambda: len(self._waiting) == 2, "another waits")
            super()._serve(leader)

    with RedisStoreFor(server) as store:
        patient = Limiter("fixed-window 100/year", store, **STRICT)
        hasty = Limiter("fixed-window 100/year", store, on_error="raise", deadline=0.1)
        crowded = Crowded(inside.connections(store), store.breaker, lambda *_: None)
        store._below = crowded  # noqa: SLF001 - a layer that waits where a busy machine would
        patient.hit("k")
        server.signal(signal.SIGSTOP)
        try:
            first = Call(patient.hit, "k")
            until(lambda: len(inside.leaders(store)) == 1 and not inside.not_sent(store), "a call is under way")
            second = Call(hasty.hit, "k")
            until(lambda: len(inside.leaders(store)) == 2, "the hasty one leads")
            third = Call(patient.hit, "k")
            with pytest.raises(StoreUnavailable):
                second.outcome()
        finally:
            server.signal(signal.SIGCONT)
        assert first.outcome().allowed
        assert third.outcome().allowed


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this platform has no interval timers")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a socket whose connect was interrupted
def test_signals_that_interrupt_a_caller_harm_nobody_else(server, client, monkeypatch):
    # A signal that is handled in a destructor is lost, and the next one must not find the report of that half written.
    monkeypatch.setattr(sys, "unraisablehook", bool)

    class Interruption(Exception):
        pass

    armed = False

    def interrupt(*_):
        if armed:
            raise Interruption

    limiter = Limiter(FixedWindow(10**9, "365d"), server.url, **STRICT)
    stop = threading.Event()
    errors = []

    def work():
        try:
            while not stop.is_set():
                assert not limiter.hit("k").degraded
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    before = signal.signal(signal.SIGALRM, interrupt)
    interrupted = 0
    collecting = gc.isenabled()
    gc.disable()
    try:
        with untraced():
            for thread in threads:
                thread.start()
            for round_number in range(300):
                try:
                    armed = True
                    signal.setitimer(signal.ITIMER_REAL, 0.0005 + round_number % 17 / 40_000, 0.002)
                    while True:
                        limiter.hit("k")
                except Interruption:
                    armed = False
                    interrupted += 1
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        stop.set()
        for thread in threads:
            thread.join()
        if collecting:
            gc.enable()
    assert interrupted > 100
    # If a leader is interrupted, so are the other requests of its batch, with an error; no call hangs.
    assert all("interrupted" in str(error) for error in errors)
    assert not limiter.store.breaker.is_open
    assert inside.leaders(limiter.store) == set()
    assert limiter.hit("k").allowed
    limiter.close()


def test_who_finds_no_room_to_ask_in_time_is_told_so():
    semaphore = SignalSafeSemaphore(1)
    with pytest.raises(StoreUnavailable, match="did not answer in time"):
        semaphore.call(stopwatch(), semaphore.call, stopwatch() + 10_000_000, int)
    assert semaphore.call(stopwatch(), int) == 0


def test_a_rule_that_only_looks_does_not_shorten_the_life_of_what_another_wrote(server, client):
    async def scenario():
        store = AsyncRedisStore(server.url)
        clock = ManualClock()
        long, short = (
            AsyncLimiter({"r": FixedWindow(5, window)}, store, clock=clock, **STRICT) for window in ("365d", 1)
        )
        await asyncio.gather(long.hit("k", 5), short.peek("k"))
        await store.close()

    asyncio.run(scenario())
    (name,) = client.keys("*")
    assert client.ttl(name) > 100_000


def test_usage_beyond_what_a_slower_rate_can_drain_is_capped_on_every_store(server, client):
    clock = ManualClock()
    fast, slow = TokenBucket(10**12, Fraction(10**9 + 1, 1000)), TokenBucket(10**6, Fraction(1, 1000))
    with Limiter({"r": fast}, server.url, clock=clock, **STRICT) as on_redis:
        memory = Limiter({"r": fast}, clock=clock)
        beside = Limiter({"r": slow}, on_redis.store, clock=clock, **STRICT)
        beside_memory = Limiter({"r": slow}, memory.store, clock=clock)
        assert on_redis.hit("k", 10**12) == memory.hit("k", 10**12)
        assert beside.hit("k") == beside_memory.hit("k")
        assert beside.refund("k", 5) == beside_memory.refund("k", 5)


def test_a_store_forgets_the_rules_of_limiters_that_are_gone(server, client):
    with RedisStoreFor(server) as store:
        for number in range(20):
            Limiter(f"fixed-window {number + 1}/year", store, **STRICT).hit("k")
        gc.collect()
        assert len(inside.servers(store).codec) == 0


@contextmanager
def RedisStoreFor(server):  # noqa: N802 - reads like the class that it makes
    store = RedisStore(server.url)
    yield store
    store.close()


@pytest.mark.parametrize("version", servers.programs())
def test_a_key_of_another_type_is_at_fault_alone(version):
    server = servers.shared(version)
    with redis.Redis(port=server.port) as client, RedisStoreFor(server) as store:
        limiter = Limiter({"r": SlidingWindowLog(5, 60)}, store, prefix=f"wrong type {version}", **STRICT)
        client.set(f"wrong type {version}:sl:r:{{k}}", "hello")
        with pytest.raises(StoreUnavailable, match="holds no state"):
            limiter.hit("k")
        with pytest.raises(StoreUnavailable, match="holds no state"):
            limiter.inspect("k")
        assert not store.breaker.is_open


def test_a_probe_that_meets_a_key_at_fault_tells_that_the_server_is_back(client, server):
    with RedisStoreFor(server) as store:
        limiter = Limiter({"r": "fixed-window 3/hour"}, store, prefix="p", **STRICT)
        client.rpush("p:fw:r:{k}", "precious")
        store.breaker.failed(StoreUnavailable("it was away"))
        inside.second_passed(store)
        with pytest.raises(StoreUnavailable, match="holds no state"):
            limiter.hit("k")
        assert not store.is_away


def test_a_list_under_the_name_of_a_counter_is_an_error_and_stays(client, server):
    with RedisStoreFor(server) as store:
        limiter = Limiter({"a": "fixed-window 3/hour", "b": "fixed-window 5/day"}, store, prefix="p", **STRICT)
        client.rpush("p:fw:b:{k}", "precious")
        with pytest.raises(StoreUnavailable, match="holds no state"):
            limiter.hit("k")
        assert client.keys("*") == [b"p:fw:b:{k}"]
        assert client.lrange("p:fw:b:{k}", 0, -1) == [b"precious"]


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
def test_a_server_that_may_evict_keys_is_warned_of_once(server, client, caplog, kind):
    async def scenario():
        limiter = kind("1/s", server.url, **STRICT)
        for key in "ab":
            decision = limiter.hit(key)
            if kind is AsyncLimiter:
                await decision
                await limiter.close()
            else:
                limiter.close()

    client.config_set("maxmemory-policy", "volatile-ttl")
    try:
        asyncio.run(scenario())
    finally:
        client.config_set("maxmemory-policy", "noeviction")
    (record,) = caplog.records
    assert "may evict keys (maxmemory-policy volatile-ttl)" in record.getMessage()
    caplog.clear()
    asyncio.run(scenario())
    assert not caplog.records


def test_a_hit_that_is_under_way_is_not_counted_twice_against_who_waits_behind_it(server, client):
    """The store has counted it, and the waiter is still in line: the one behind it is in time all the same."""
    foreseen = threading.Event()

    class Slow(RedisStore):
        def snapshot(self, *args):
            limiter.refund("k", 2)  # the first in line tries again
            until(lambda: limiter.peek("k").remaining == 1, "it is counted")
            seen = super().snapshot(*args)
            foreseen.set()
            return seen

        def execute(self, demands, *args):
            outcome = super().execute(demands, *args)
            if demands[0].operation == "hit" and outcome.answers[0][0]:
                foreseen.wait(30)
            return outcome

    with Limiter("fixed-window 2/year", Slow(server.url), **STRICT) as limiter:
        limiter.charge("k", 2)
        first = Call(lambda: limiter.wait("k").allowed)
        until(lambda: waiters(limiter), "one in the queue")
        second = Call(lambda: limiter.wait("k", timeout=20).allowed)
        assert [first.outcome(), second.outcome()] == [True, True]
        limiter.store.close()


@pytest.fixture(params=["with hiredis", "without hiredis"])
def parser(request, monkeypatch):
    thread_connections.parser_class.cache_clear()
    thread_connections.thread_connection.cache_clear()
    if request.param == "without hiredis":
        monkeypatch.setattr("redis.connection.DefaultParser", _RESP2Parser)
    yield
    thread_connections.parser_class.cache_clear()
    thread_connections.thread_connection.cache_clear()


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
def test_an_answer_in_small_pieces_does_not_outlast_the_deadline(kind):
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=_drip, args=(listening, stop))
        thread.start()

        async def scenario():
            limiter = kind("1/s", f"redis://127.0.0.1:{listening.getsockname()[1]}", on_error="raise", deadline=0.2)
            begun = time.monotonic()
            with suppress(StoreUnavailable):
                hit = limiter.hit("k")
                await hit
            return time.monotonic() - begun

        try:
            assert asyncio.run(scenario()) < 2  # ten times the deadline counts as a hang
        finally:
            stop.set()
            thread.join()


def _drip(listening, stop):
    """Answer with the digits of a number that goes on for a long time."""
    connection, _ = listening.accept()
    with connection, suppress(OSError):
        welcomed(connection)
        connection.recv(1 << 20)
        connection.sendall(b":")
        for _ in range(200):
            if stop.wait(0.02):
                break
            connection.sendall(b"1")


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
def test_an_answer_that_nobody_asked_for_is_no_answer_to_the_next_caller(kind):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=_answer_too_often, args=(listening,))
        thread.start()

        async def scenario():
            limiter = kind("100/s", f"redis://127.0.0.1:{listening.getsockname()[1]}", **STRICT)
            hits = [await done(limiter.hit("k")) for _ in range(2)]
            await done(limiter.close())
            return [hit.remaining for hit in hits]

        try:
            assert asyncio.run(scenario()) == [1, 2]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


async def done(result):
    return await result if inspect.isawaitable(result) else result


def _answer_too_often(listening):
    """Answer the first call of each connection three times; `remaining` is the number of the connection."""
    with suppress(OSError), ExitStack() as stack:
        for number in (1, 2):
            connection, _ = listening.accept()
            stack.enter_context(connection)
            welcomed(connection)
            connection.recv(1 << 20)
            connection.sendall(3 * (b"*7\r\n:1\r\n:0\r\n:1\r\n:%d\r\n:0\r\n:0\r\n:0\r\n" % number))


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
@pytest.mark.parametrize("reply", [b"+OK", b":1", b"$-1", b"*0", b"*2\r\n:1\r\n:2", b"*7" + 7 * b"\r\n$-1"])
def test_a_server_that_answers_what_is_no_decision_is_away(kind, reply):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=_answer, args=(listening, reply + b"\r\n"))
        thread.start()

        async def scenario():
            limiter = kind("1/s", f"redis://127.0.0.1:{listening.getsockname()[1]}", **STRICT)
            with pytest.raises(StoreUnavailable, match="sent a reply that is not a decision"):
                await done(limiter.hit("k"))
            assert limiter.store.is_away
            await done(limiter.close())

        try:
            asyncio.run(scenario())
        finally:
            thread.join()


def _answer(listening, reply):
    """Answer the first call, and the question for the policy behind it."""
    connection, _ = listening.accept()
    with connection, suppress(OSError):
        welcomed(connection)
        connection.recv(1 << 20)
        connection.sendall(2 * reply)


def test_a_store_that_is_closed_under_way_keeps_nobody_waiting_and_nothing_open(server, client):
    async def scenario():
        limiter = AsyncLimiter("fixed-window 100/year", server.url, **STRICT)
        await limiter.hit("k")
        server.signal(signal.SIGSTOP)
        try:
            hits = [asyncio.ensure_future(limiter.hit(f"k{number}")) for number in range(2_000)]
            await asyncio.sleep(0)
            await limiter.close()
            return await asyncio.wait_for(asyncio.gather(*hits, return_exceptions=True), 10)
        finally:
            server.signal(signal.SIGCONT)

    ends = asyncio.run(scenario())
    assert all(isinstance(end, StoreUnavailable) for end in ends)
    until(lambda: client.info("clients")["connected_clients"] == 1, "nothing is open but the client that asks")


def test_a_thread_may_take_the_last_connection_from_who_closes_the_store(limiter):
    class Emptied(list):
        """Seems to have one item until it is taken."""

        def __len__(self):
            return 1

    inside.idle(limiter.store)[None] = Emptied()
    limiter.store.close()
    inside.idle(limiter.store).clear()
    assert limiter.hit("k").allowed
