"""What a limiter answers while Redis is away, and that it comes back by itself."""

import asyncio
import gc
import logging
import math
import os
import signal
import time
from fractions import Fraction

import pytest
import redis

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
    fallback,
)
from ratekeeper.clock import stopwatch
from ratekeeper.stores import AsyncRedisStore, RedisStore
from ratekeeper.stores import breaker as breakers
from ratekeeper.testing import ManualClock
from tests import inside, servers
from tests.waiters import PATIENCE, Call, RecordingWaiter, in_queue, until, until_async, untraced, waiters

RULES = {"a": FixedWindow(3, 86_400), "b": FixedWindow(5, 86_400)}


@pytest.fixture
def server():
    server = servers.RedisServer(servers.programs()[servers.newest()])
    yield server
    server.stop()


@pytest.fixture
def gone():
    """The address of a server that is not there."""
    return f"redis://127.0.0.1:{servers.free_port()}"


class Async:
    """An AsyncLimiter that is called like a Limiter, in an event loop of its own for each call."""

    def __init__(self, *args, **kwargs):
        self._limiter = AsyncLimiter(*args, **kwargs)
        self.store = self._limiter.store

    def __getattr__(self, name):
        async def call(*args):
            try:
                return await getattr(self._limiter, name)(*args)
            finally:
                await self._limiter.close()

        return lambda *args: asyncio.run(call(*args))


@pytest.fixture(params=[Limiter, Async], ids=["Limiter", "AsyncLimiter"])
def face(request):
    return request.param


def test_without_a_word_the_same_rules_are_enforced_in_this_process(face, gone):
    limiter = face(RULES, gone)
    decisions = [limiter.hit("k") for _ in range(4)]
    assert [(decision.allowed, decision.remaining) for decision in decisions] == [
        (True, 2),
        (True, 1),
        (True, 0),
        (False, 0),
    ]
    assert all(decision.degraded for decision in decisions)
    assert decisions[-1].rule == "a"


def test_open_admits_everything(face, gone):
    limiter = face(RULES, gone, on_error="open")
    decisions = [limiter.hit("k", 3) for _ in range(4)]
    assert {(decision.allowed, decision.remaining, decision.degraded) for decision in decisions} == {(True, 3, True)}


def test_closed_denies_everything_until_the_store_is_asked_again(face, gone):
    decision = face(RULES, gone, on_error="closed").hit("k")
    assert (decision.allowed, decision.remaining, decision.retry_after, decision.degraded) == (False, 0, 1.0, True)


def test_a_rule_that_does_not_bind_denies_nothing_here_either(gone):
    def decisions(on_error, *names):
        limiter = Limiter(RULES, gone, on_error=on_error, shadow=[name for name in RULES if name not in names])
        taken = [limiter.take({"a": "k", "b": "k"}) for _ in range(6)]
        assert all(each.decision.degraded for each in taken)
        return limiter, taken

    def remaining(limiter):
        asked = inside.mixed(limiter, [("peek", name, "k", 1, False) for name in RULES])
        return [answer[1] for answer in inside.below(limiter).execute(asked).answers]

    limiter, taken = decisions("local", "b")
    assert [bool(each) for each in taken] == [True] * 5 + [False]
    assert remaining(limiter) == [0, 0]
    for each in reversed(taken):  # the denied one, two that only "b" was charged, then three
        each.give_back()
    assert remaining(limiter) == [3, 5]

    limiter, taken = decisions("open", "b")
    assert [bool(each) for each in taken] == [True] * 6
    assert [bool(each) for each in decisions("closed", "b")[1]] == [False] * 6
    assert [bool(each) for each in decisions("closed")[1]] == [True] * 6


def test_raise_raises(face, gone):
    limiter = face(RULES, gone, on_error="raise")
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            limiter.hit("k")


def test_every_operation_is_answered_while_the_store_is_away(face, gone):
    limiter = face(RULES, gone)
    limiter.charge("k", 2)
    assert limiter.peek("k").remaining == 1
    limiter.refund("k", 1)
    assert limiter.peek("k").remaining == 2
    limiter.reset("k")
    assert limiter.wait("k").remaining == 2
    assert limiter.peek("k").degraded


def test_a_server_that_goes_and_comes_back_is_used_again(face, server, monkeypatch):
    now = stopwatch()
    monkeypatch.setattr(breakers, "stopwatch", lambda: now)
    limiter = face(RULES, server.url, deadline=10)
    assert not limiter.hit("k").degraded
    server.stop()
    assert limiter.hit("k").degraded
    server.start()
    assert limiter.hit("k").degraded  # it is asked once a second at most
    now += 1_000_000_000
    assert not limiter.hit("k").degraded
    assert not limiter.hit("k").degraded


def answers_again(limiter):
    """Return whether the store decides in time, asked as if a second had passed."""
    inside.second_passed(limiter.store)
    return not limiter.peek("other").degraded


def test_a_frozen_server_costs_one_caller_its_deadline_and_the_others_nothing(face, server):
    limiter = face(RULES, server.url, deadline=0.3)
    limiter.hit("k")
    server.signal(signal.SIGSTOP)
    begun = time.monotonic()
    decisions = [limiter.hit("k") for _ in range(20)]
    assert all(decision.degraded for decision in decisions)
    assert time.monotonic() - begun < 10 * 0.3
    server.signal(signal.SIGCONT)
    until(lambda: answers_again(limiter), "the store decides again")


def test_callers_that_do_not_wait_for_their_deadline_let_the_store_be_taken_for_away_all_the_same(server):
    async def scenario():
        async with AsyncLimiter(RULES, server.url, deadline=0.5) as limiter:
            await limiter.hit("k")
            server.signal(signal.SIGSTOP)
            for _ in range(20):  # a call that was held up itself shows nothing
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(limiter.hit("k"), 0.05)
                await asyncio.sleep(0.6)  # longer than its deadline
                if limiter.store.is_away:
                    break
            assert limiter.store.is_away
            server.signal(signal.SIGCONT)
            inside.second_passed(limiter.store)
            calls = inside.under_way(limiter.store)
            await until_async(lambda: not calls, "the call has come to its end")
            probe = asyncio.ensure_future(limiter.hit("k"))
            await until_async(lambda: calls, "it is sent")
            probe.cancel()
            await until_async(lambda: not limiter.store.is_away, "the store is back")

    asyncio.run(scenario())


@pytest.mark.parametrize("deadline", [0.005, 0.02])
def test_a_short_deadline_is_enough_to_tell_that_a_server_is_not_there(face, gone, deadline):
    limiter = face(RULES, gone, deadline=deadline)
    for _ in range(100):  # a call that was held up itself shows nothing
        assert limiter.hit("k").degraded
        if limiter.store.is_away:
            return
    raise AssertionError("it was never taken to be away")


def test_a_loop_that_was_busy_sends_nothing_late_and_blames_nobody(server):
    async def scenario():
        store = AsyncRedisStore(server.url)
        patient, hasty = (
            AsyncLimiter(FixedWindow(10, 86_400), store, on_error=on_error, deadline=deadline)
            for on_error, deadline in [("raise", 10), ("local", 0.05)]
        )
        await patient.hit("k")
        asking = asyncio.ensure_future(hasty.hit("k"))
        await asyncio.sleep(0)  # it is waiting to be sent
        asyncio.get_running_loop().call_soon(time.sleep, 0.2)  # and this runs before it
        late = await asking
        blamed, remaining = store.is_away, (await patient.peek("k")).remaining
        await store.close()
        return late.degraded, blamed, remaining

    assert asyncio.run(scenario()) in [(True, False, 9), (False, False, 8)]  # given up, or sent just in time


def test_a_later_part_of_a_request_ends_with_the_whole_though_others_came_before_it_with_more_time(server):
    async def scenario():
        async with AsyncLimiter(FixedWindow(10, 86_400), server.url, on_error="raise", deadline=10) as limiter:
            await limiter.hit("k")
            server.signal(signal.SIGSTOP)
            batches = inside.batches(limiter.store)
            request = inside.demands(limiter, "k")
            now = stopwatch()
            other = batches.execute(request, now + 10_000_000_000)
            part = batches.execute(request, now + 100_000_000, now - 9_900_000_000)
            ended, _ = await asyncio.wait([other, part], return_when=asyncio.FIRST_COMPLETED)
            server.signal(signal.SIGCONT)
            assert ended == {part}
            assert isinstance(part.exception(), StoreUnavailable)
            await other

    asyncio.run(scenario())


def test_what_a_frozen_server_was_sent_is_not_sent_again(face, server):
    limiter = face(FixedWindow(10, 86_400), server.url, deadline=0.2)
    limiter.hit("k")
    server.signal(signal.SIGSTOP)
    limiter.hit("k")
    server.signal(signal.SIGCONT)
    inside.second_passed(limiter.store)
    assert limiter.peek("k").remaining in (8, 9)  # it was executed once, or was given up before it was


def test_one_line_is_logged_for_each_change_and_none_for_each_request(face, server, caplog):
    limiter = face(RULES, server.url, deadline=5)
    with caplog.at_level(logging.WARNING, "ratekeeper"):
        server.stop()
        for _ in range(10):
            limiter.hit("k")
        server.start()
        inside.second_passed(limiter.store)
        for _ in range(10):
            limiter.hit("k")
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(" is ")[2][:4] for line in lines if "RedisStore(" in line] == ["away", "back"]
    assert [line.partition(":")[0] for line in lines if "RedisStore(" not in line] == ["degraded"]
    assert (limiter.store.breaker.openings, limiter.store.breaker.failures) == (1, 1)


def test_a_reservation_is_given_back_to_where_it_was_taken(gone):
    async def scenario():
        limiter = AsyncLimiter(LeakyBucket(5, "1/minute", "shaping"), gone)
        await limiter.hit("k")
        waiting = asyncio.create_task(limiter.wait("k"))
        await until_async(lambda: in_queue(limiter, "departure") == 1, "a reservation")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        return (await limiter.peek("k")).remaining

    assert asyncio.run(scenario()) == 4


def test_while_a_store_is_away_one_caller_a_second_is_let_through(monkeypatch):
    now = 0
    monkeypatch.setattr(breakers, "stopwatch", lambda: now)
    breaker = breakers.Breaker("store")
    assert breaker.admits(0)
    breaker.failed(StoreUnavailable("no"))
    assert (breaker.is_open, breaker.admits(0)) == (True, False)
    now = 999_999_999
    assert not breaker.admits(0)
    now = 1_000_000_000
    assert [breaker.admits(0), breaker.admits(0)] == [True, False]
    breaker.succeeded()
    assert (breaker.is_open, breaker.admits(0), breaker.admits(0)) == (False, True, True)


def test_who_asks_a_store_that_is_away_is_the_only_one_until_its_time_is_over(monkeypatch):
    now = 0
    monkeypatch.setattr(breakers, "stopwatch", lambda: now)
    breaker = breakers.Breaker("store")
    breaker.failed(StoreUnavailable("no"))
    now = 1_000_000_000
    assert breaker.admits(6_000_000_000)
    now = 5_999_999_999
    assert not breaker.admits(now)
    now = 6_000_000_000
    assert breaker.admits(now)


def test_a_wait_with_a_timeout_follows_on_error_when_the_server_goes_while_others_are_in_line(server):
    async def scenario():
        limiter = AsyncLimiter(FixedWindow(1, 86_400), server.url, clock=(clock := ManualClock()))
        await limiter.hit("k")
        first = asyncio.create_task(limiter.wait("k"))
        await until_async(lambda: in_queue(limiter) == 1, "one in the queue")
        server.stop()
        second = asyncio.create_task(limiter.wait("k", timeout=200_000))
        await until_async(lambda: in_queue(limiter) == 2, "two in the queue")
        clock.advance(86_400)
        decision = await first
        clock.advance(86_400)
        await second
        await limiter.close()
        return decision.degraded

    assert asyncio.run(scenario())


def test_who_waits_while_the_store_is_away_notices_that_it_is_back(server):
    """According to the stand-in, the day must end first; Redis comes back empty."""
    limiter = Limiter(FixedWindow(1, 86_400), server.url, deadline=5)
    server.stop()
    assert limiter.hit("k").degraded
    assert limiter.hit("other").degraded
    waiting = [Call(limiter.wait, key, timeout=timeout) for key in ("k", "other") for timeout in (None, 2 * 86_400)]
    until(lambda: len(waiters(limiter)) == 4, "all in the queue")
    server.start()
    until(lambda: sum(call.result is not None for call in waiting) == 2, "one of each line")
    assert all(call.result is None or call.result.degraded is False for call in waiting)
    limiter.reset("k")
    limiter.reset("other")
    assert all(call.outcome().allowed for call in waiting)
    assert not inside.queues(limiter).degraded


def test_async_waiters_notice_that_the_store_is_back(server):
    async def scenario():
        limiter = AsyncLimiter(FixedWindow(1, 86_400), server.url, deadline=5)
        server.stop()
        keys = [f"k{number}" for number in range(100)]
        for key in keys:
            await limiter.hit(key)
        tasks = [asyncio.create_task(limiter.wait(key)) for key in keys]
        await until_async(lambda: len(inside.queues(limiter).degraded) == len(keys), "all denied here")
        server.start()
        decisions = await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)
        await limiter.close()
        return {decision.degraded for decision in decisions}

    assert asyncio.run(scenario()) == {False}


@pytest.fixture
def without_snapshots(server):
    """The address of a healthy server that decides, but does not permit reading how keys are stored."""
    with redis.Redis(port=server.port) as client:
        client.acl_setuser("limiter", enabled=True, nopass=True, keys=["*"], categories=["+@all"], commands=["-pttl"])
    return server.url.replace("redis://", "redis://limiter:any@")


@pytest.mark.parametrize("on_error", ["local", "raise"])
def test_without_a_forecast_from_a_healthy_store_nobody_is_refused_early(
    without_snapshots, on_error, monkeypatch, caplog
):
    """In this process's share, one of eight, the second waiter would have room only in two minutes."""
    monkeypatch.setattr("ratekeeper.queues.Waiter", RecordingWaiter)
    clock = ManualClock(1_700_000_040)  # where a minute begins
    limiter = Limiter(FixedWindow(8, 60), without_snapshots, clock=clock, on_error=on_error, local_share=1 / 8)
    limiter.hit("k", 8)
    waiting = [Call(limiter.wait, "k", 1, timeout) for timeout in (None, 90, 90)]
    until(lambda: in_queue(limiter) == 3, "three in line")
    until(lambda: caplog.records, "one tried to get a forecast")
    assert limiter.notices.counts["degraded"] == 0
    assert ["not as soon as it is hopeless" in record.getMessage() for record in caplog.records] == [True]
    clock.advance(60)
    assert [call.outcome().allowed for call in waiting] == [True] * 3


def test_a_forecast_of_the_stand_in_is_dropped_when_the_store_is_back(server, monkeypatch):
    monkeypatch.setattr("ratekeeper.queues.Waiter", RecordingWaiter)
    clock = ManualClock(1_700_000_040)
    limiter = Limiter(FixedWindow(8, 60), server.url, clock=clock, local_share=1 / 8)
    server.stop()
    assert limiter.hit("k").degraded
    waiting = [Call(limiter.wait, "k", 8, timeout) for timeout in (None, 600)]  # of the share, they never fit
    until(lambda: in_queue(limiter) == 2, "two in the queue")
    server.start()
    until(lambda: answers_again(limiter), "Redis is back")
    assert not limiter.charge("k", 8).degraded
    clock.advance(1)
    until(lambda: in_queue(limiter) == 2 and not inside.queues(limiter).degraded, "the first asked Redis")
    with pytest.raises(RateLimited) as raised:
        Call(limiter.wait, "k", 8, 150).outcome()
    assert raised.value.decision.retry_after == 179.0
    for call, seconds in zip(waiting, (59, 60), strict=True):
        clock.advance(seconds)
        assert call.outcome().allowed


def test_what_was_taken_from_redis_is_not_given_back_to_this_process(server):
    limiter = Limiter({"r": FixedWindow(5, 86_400)}, server.url, clock=ManualClock())
    taken = limiter.take("k", 2)
    server.stop()
    limiter.hit("k", 3)
    taken.give_back()
    assert limiter.peek("k").remaining == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_a_child_that_is_forked_while_a_lock_is_held_still_decides(server):
    limiter = Limiter(RULES, server.url, on_error="raise", deadline=30)
    limiter.hit("k")
    store = limiter.store
    with untraced(), inside.lock(store.breaker), inside.lock(store.denials), inside.lock(inside.batches(store)):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                signal.alarm(20)
                limiter.refund("k")
                limiter.store.breaker.failed(StoreUnavailable("no"))
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
    limiter.close()


@pytest.mark.parametrize(
    ("rule", "admitted"),
    [
        (FixedWindow(10, 86_400), 4),
        (SlidingWindowLog(9, 86_400), 3),
        (SlidingWindowCounter(1, 86_400), 1),
        (TokenBucket(10, "1/day"), 4),
        (LeakyBucket(7, "1/day"), 3),
    ],
)
def test_a_process_enforces_its_share_of_the_limit_rounded_up(face, gone, rule, admitted):
    limiter = face(rule, gone, local_share=1 / 3, clock=ManualClock())
    assert sum(limiter.hit("k").allowed for _ in range(12)) == admitted


def test_limiters_of_one_store_share_what_this_process_admits(gone):
    store = RedisStore(gone)
    clock = ManualClock()
    limiters = [Limiter("fixed-window 3/day", store, clock=clock) for _ in range(2)]
    assert [limiter.hit("k").allowed for limiter in limiters * 3] == [True] * 3 + [False] * 3


def test_limiters_that_are_no_more_leave_nothing_behind_in_this_process(gone):
    store = RedisStore(gone)
    gc.collect()
    gc.freeze()  # the objects of other tests, which take long to collect
    try:
        for number in range(50):
            Limiter({f"rule {number}": FixedWindow(3, 86_400)}, store)
            gc.collect()
    finally:
        gc.unfreeze()
    assert len(inside.tables(fallback.stand_in_of(store, None))) < 5


def test_a_wait_that_this_process_s_share_cannot_admit_in_time_is_refused_at_once(gone, monkeypatch):
    monkeypatch.setattr("ratekeeper.queues.Waiter", RecordingWaiter)
    clock = ManualClock(1_700_000_040)  # where a minute begins
    limiter = Limiter(FixedWindow(8, 60), gone, local_share=1 / 8, clock=clock)
    assert limiter.hit("k").degraded
    first = Call(limiter.wait, "k")
    until(lambda: in_queue(limiter) == 1, "one in the queue")
    with pytest.raises(RateLimited) as raised:  # the next minute has room for the first only
        Call(limiter.wait, "k", 1, 90).outcome()
    assert raised.value.decision.retry_after == 120.0
    clock.advance(60)
    assert first.outcome().allowed


def test_a_share_of_a_bucket_refills_at_its_share_of_the_rate(face, gone):
    clock = ManualClock()
    limiter = face(TokenBucket(40, 20), gone, local_share=Fraction(1, 4), clock=clock)
    assert limiter.hit("k", 10).allowed
    assert limiter.hit("k").retry_after == 0.2


def test_what_does_not_fit_into_the_share_may_fit_when_redis_is_back(face, gone):
    limiter = face(FixedWindow(10, 86_400), gone, local_share=0.5)
    denied = limiter.hit("k", 8)
    assert (denied.allowed, denied.degraded, denied.retry_after) == (False, True, 1.0)
    assert limiter.hit("k", 11).retry_after == math.inf


@pytest.mark.parametrize("share", [0, -1, 1e-9, 1.5, float("nan")])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(InvalidRule, match=f"local_share must be at least 0.000001 and at most 1, not {share}"):
        Limiter("1/s", local_share=share)


def test_a_share_of_a_rule_that_cannot_be_exact_is_refused_by_name():
    with pytest.raises(InvalidRule, match=r"local_share 1/999983 of token-bucket .*: refill_rate .* cannot be exact"):
        Limiter(TokenBucket(10, "999979/86399s"), local_share=Fraction(1, 999_983))
