"""wait(): first come, first served, woken at a computed time, and nothing is left behind."""

import asyncio
import functools
import math
import signal
import threading
import time
from fractions import Fraction

import pytest

from ratekeeper import (
    AsyncLimiter,
    FixedWindow,
    LeakyBucket,
    Limiter,
    RateLimited,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
    queues,
)
from ratekeeper.algorithms.bucket import Bucket
from ratekeeper.queues import Place, Queues
from ratekeeper.stores import MemoryStore
from ratekeeper.testing import ManualClock
from tests import inside
from tests.waiters import (
    PATIENCE,
    Call,
    RecordingStore,
    RecordingWaiter,
    in_queue,
    until,
    until_async,
    untraced,
    waiters,
)

START = 1_700_000_040  # the start of a minute
ONE_A_SECOND = TokenBucket(capacity=1, refill_rate=1)
SHAPING = LeakyBucket(capacity=5, leak_rate=1, mode="shaping")


@pytest.fixture(autouse=True)
def waiters_that_tell_whether_they_sleep(monkeypatch):
    monkeypatch.setattr("ratekeeper.queues.Waiter", RecordingWaiter)


@pytest.fixture
def clock():
    return ManualClock(start=START)


def seconds(clock):
    """The time since the start of the test."""
    return (clock() - START * 10**9) / 10**9


class Waits:
    """Waits in threads, in the order in which they are started, and what came of them in the order of their ends."""

    def __init__(self, limiter, clock):
        self.limiter = limiter
        self.clock = clock
        self.ended = []
        self.calls = []

    def start(self, name, key="k", cost=1, timeout=None):
        self.calls.append(Call(self._wait, name, key, cost, timeout))
        self.settle()

    def settle(self):
        """Wait until all calls that have not ended are asleep."""
        until(
            lambda: len(self.ended) + in_queue(self.limiter) + in_queue(self.limiter, "departure") == len(self.calls),
            f"{len(self.calls)} calls that have ended or sleep; ended are {self.ended}",
        )

    def _waiters(self):
        return waiters(self.limiter) + waiters(self.limiter, "departure")

    def _wait(self, name, key, cost, timeout):
        try:
            self.limiter.wait(key, cost, timeout)
        except RateLimited:
            name = f"{name} refused"
        self.ended.append((name, seconds(self.clock)))

    def advance(self, amount, ends=0):
        """Move the clock, and wait for this many more ends."""
        expected = len(self.ended) + ends
        asleep = {waiter: waiter.sleeps for waiter in self._waiters()}
        self.clock.advance(amount)
        until(
            lambda: all(asleep.get(waiter) != waiter.sleeps for waiter in self._waiters()),
            "all who waited have looked at the clock",
        )
        until(lambda: len(self.ended) >= expected, f"{expected} ends; there are {self.ended}")
        self.settle()


# without waiting


def test_what_is_admitted_at_once_does_not_wait(clock):
    limiter = Limiter(ONE_A_SECOND, clock=clock)
    decision = limiter.wait("k")
    assert (decision.allowed, decision.remaining) == (True, 0)
    assert inside.nobody_waits(limiter)


def test_what_is_admitted_at_once_costs_one_hit(clock):
    store = RecordingStore()
    limiter = Limiter(TokenBucket(5, 1), store, clock=clock, on_decision=lambda *_: None)
    limiter.wait("k", 2)
    assert store.operations == ["hit"]
    assert limiter.peek("k").remaining == 3


def test_what_is_admitted_at_once_on_one_rule_with_nobody_to_tell_needs_no_place_in_line(clock):
    store = RecordingStore()
    limiter = Limiter(TokenBucket(5, 1), store, clock=clock)
    assert limiter.wait("k", 2).remaining == 3
    assert store.operations == []
    assert limiter.peek("k").remaining == 3


# woken by computed time


def test_a_waiter_makes_one_hit_that_is_denied_and_one_that_is_admitted(clock):
    store = RecordingStore()
    limiter = Limiter(TokenBucket(capacity=1, refill_rate=Fraction(1, 100)), store, clock=clock)
    limiter.hit("k")
    waiter = Call(limiter.wait, "k")
    until(lambda: store.hits == 1, "the first hit")
    until(lambda: in_queue(limiter) == 1, "asleep")
    for moves in range(1, 100):
        clock.advance(1)
        until(lambda moves=moves: waiters(limiter)[0].sleeps > moves, "asleep again")
    assert waiter.is_alive()
    clock.advance(1)
    assert waiter.outcome().allowed
    assert store.operations == ["hit", "hit"]


def test_an_async_waiter_makes_one_hit_that_is_denied_and_one_that_is_admitted(clock):
    store = RecordingStore()

    async def main():
        limiter = AsyncLimiter(TokenBucket(capacity=1, refill_rate=Fraction(1, 100)), store, clock=clock)
        await limiter.hit("k")
        waiter = asyncio.create_task(limiter.wait("k"))
        await until_async(lambda: store.hits == 1, "the first hit")
        for _ in range(99):
            clock.advance(1)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert not waiter.done()
        clock.advance(1)
        return (await waiter).allowed

    assert asyncio.run(main())
    assert store.operations == ["hit", "hit"]


def test_those_behind_ask_nothing_before_it_is_their_turn(clock):
    store = RecordingStore()
    limiter = Limiter(ONE_A_SECOND, store, clock=clock)
    limiter.hit("k")
    waits = Waits(limiter, clock)
    for name in "abcd":
        waits.start(name)
    for served in range(4):
        until(lambda served=served: store.hits == 2 * served + 1, "the denial of the first in line")
        waits.advance(1, ends=1)
    # one denial each when its turn came, and one admission each
    assert store.operations == ["hit"] * 8


@pytest.mark.parametrize(
    "rule",
    [
        FixedWindow(1, 60),
        SlidingWindowLog(1, 60),
        SlidingWindowCounter(1, 60),
        TokenBucket(1, Fraction(1, 60)),
        LeakyBucket(1, Fraction(1, 60)),
        LeakyBucket(1, Fraction(1, 60), "shaping"),
    ],
    ids=lambda rule: rule.text,
)
def test_a_waiter_sleeps_until_the_very_microsecond(rule, clock):
    store = RecordingStore()
    limiter = Limiter(rule, store, clock=clock)
    retry_after = 60 if rule.algorithm != "sliding-window-counter" else Fraction(60_000_001, 1_000_000)
    limiter.hit("k")
    waiter = Call(limiter.wait, "k")
    until(lambda: store.hits == 1, "the first hit")
    clock.advance(retry_after - Fraction(1, 1_000_000))
    assert store.hits == 1
    clock.advance(Fraction(1, 1_000_000))
    assert waiter.outcome().allowed
    assert store.hits == 2


# fairness


def test_threads_are_served_first_come_first_served_whatever_the_costs(clock):
    limiter = Limiter(TokenBucket(capacity=5, refill_rate=1), clock=clock)
    limiter.hit("k", 5)
    waits = Waits(limiter, clock)
    for name, cost in [("a", 5), ("b", 1), ("c", 3), ("d", 1)]:
        waits.start(name, cost=cost)
    for _ in range(10):
        waits.advance(1, ends={5: 1, 6: 1, 9: 1, 10: 1}.get(seconds(clock) + 1, 0))
    assert waits.ended == [("a", 5), ("b", 6), ("c", 9), ("d", 10)]
    assert inside.nobody_waits(limiter)


def test_tasks_are_served_first_come_first_served_whatever_the_costs(clock):
    ended = []

    async def main():
        limiter = AsyncLimiter(TokenBucket(capacity=5, refill_rate=1), clock=clock)
        await limiter.hit("k", 5)

        async def wait(name, cost):
            await limiter.wait("k", cost)
            ended.append((name, seconds(clock)))

        tasks = [asyncio.create_task(wait(name, cost)) for name, cost in [("a", 5), ("b", 1), ("c", 3), ("d", 1)]]
        await until_async(lambda: in_queue(limiter) == 4, "four in line")
        for second in range(1, 11):
            clock.advance(1)
            expected = sum(end <= second for end in (5, 6, 9, 10))
            await until_async(lambda expected=expected: len(ended) >= expected, f"{expected} ends")
        await asyncio.gather(*tasks)
        return limiter

    limiter = asyncio.run(main())
    assert ended == [("a", 5), ("b", 6), ("c", 9), ("d", 10)]
    assert inside.nobody_waits(limiter)


def test_threads_and_tasks_stand_in_one_line(clock):
    ended = []

    async def main():
        store = MemoryStore()
        blocking = Limiter(ONE_A_SECOND, store, clock=clock)
        awaited = AsyncLimiter(ONE_A_SECOND, store, clock=clock)
        blocking.hit("k")

        async def wait(name):
            await awaited.wait("k")
            ended.append((name, seconds(clock)))

        def block(name):
            blocking.wait("k")
            ended.append((name, seconds(clock)))

        waiting = []
        for position in range(6):
            if position % 2:
                waiting.append(asyncio.create_task(wait(f"task {position}")))
            else:
                waiting.append(Call(block, f"thread {position}"))
            await until_async(lambda position=position: in_queue(awaited) == position + 1, "one more in line")
        for count in range(1, 7):
            clock.advance(1)
            await until_async(lambda count=count: len(ended) == count, f"{count} ends")
        return blocking

    limiter = asyncio.run(main())
    assert ended == [("thread 0", 1), ("task 1", 2), ("thread 2", 3), ("task 3", 4), ("thread 4", 5), ("task 5", 6)]
    assert inside.nobody_waits(limiter)


def test_a_waiter_that_would_fit_does_not_overtake_one_that_does_not(clock):
    limiter = Limiter(TokenBucket(capacity=5, refill_rate=1), clock=clock)
    limiter.hit("k", 3)
    waits = Waits(limiter, clock)
    waits.start("large", cost=5)
    waits.start("small", cost=1)
    waits.advance(1)
    assert waits.ended == []
    waits.advance(2, ends=1)
    waits.advance(1, ends=1)
    assert waits.ended == [("large", 3), ("small", 4)]


def test_a_task_that_comes_again_at_once_stands_behind_those_who_wait(clock):
    """Between the end of one wait and the next task's turn no caller has claimed the key, but there is a queue."""
    ended = []

    async def main():
        limiter = AsyncLimiter(TokenBucket(capacity=2, refill_rate=1), clock=clock)
        await limiter.hit("k", 2)

        async def wait(name, times):
            for _ in range(times):
                await limiter.wait("k")
                ended.append(name)

        tasks = [asyncio.create_task(wait("a", 2)), asyncio.create_task(wait("b", 1))]
        await until_async(lambda: in_queue(limiter) == 2, "two in the queue")
        clock.advance(2)
        await until_async(lambda: len(ended) == 2, "two ends")
        clock.advance(1)
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert ended == ["a", "b", "a"]


def test_waiters_on_different_keys_do_not_hold_each_other_up(clock):
    limiter = Limiter(TokenBucket(capacity=5, refill_rate=1), clock=clock)
    limiter.hit("slow", 5)
    limiter.hit("quick", 5)
    waits = Waits(limiter, clock)
    waits.start("slow", key="slow", cost=5)
    waits.start("quick", key="quick", cost=1)
    waits.advance(1, ends=1)
    waits.advance(4, ends=1)
    assert waits.ended == [("quick", 1), ("slow", 5)]


def test_a_wait_on_a_free_key_returns_while_another_key_is_exhausted(clock):
    limiter = Limiter(ONE_A_SECOND, clock=clock)
    limiter.hit("k")
    waits = Waits(limiter, clock)
    waits.start("a")
    assert limiter.wait("free").allowed
    waits.advance(1, ends=1)


def test_a_plain_hit_may_overtake_waiters(clock):
    limiter = Limiter(TokenBucket(capacity=5, refill_rate=1), clock=clock)
    limiter.hit("k", 4)
    waits = Waits(limiter, clock)
    waits.start("a", cost=3)
    assert limiter.hit("k").allowed
    waits.advance(2)
    assert waits.ended == []
    waits.advance(1, ends=1)


# timeouts


def test_a_timeout_shorter_than_the_wait_is_refused_at_once(clock):
    limiter = Limiter(ONE_A_SECOND, clock=clock)
    limiter.hit("k")
    with pytest.raises(RateLimited) as raised:
        Call(limiter.wait, "k", timeout=0.999999).outcome()
    assert (raised.value.decision.allowed, raised.value.decision.retry_after) == (False, 1.0)
    assert inside.nobody_waits(limiter)


def test_a_timeout_just_as_long_as_the_wait_is_met(clock):
    limiter = Limiter(ONE_A_SECOND, clock=clock)
    limiter.hit("k")
    waits = Waits(limiter, clock)
    waits.start("a", timeout=1)
    waits.advance(1, ends=1)
    assert waits.ended == [("a", 1)]


@pytest.mark.parametrize("timeout", [None, 0, 5, math.inf])
def test_a_cost_that_never_fits_is_refused_at_once(clock, timeout):
    limiter = Limiter(ONE_A_SECOND, clock=clock)
    with pytest.raises(RateLimited) as raised:
        Call(limiter.wait, "k", cost=2, timeout=timeout).outcome()
    assert raised.value.decision.retry_after == math.inf
    assert inside.nobody_waits(limiter)
    assert limiter.peek("k").remaining == 1


@pytest.mark.parametrize("timeout", [None, 5])
def test_a_cost_that_never_fits_is_refused_at_once_behind_others(clock, timeout):
    limiter = Limiter(ONE_A_SECOND, clock=clock)
    limiter.hit("k")
    waits = Waits(limiter, clock)
    waits.start("a")
    with pytest.raises(RateLimited) as raised:
        Call(limiter.wait, "k", cost=2, timeout=timeout).outcome()
    assert raised.value.decision.retry_after == math.inf
    waits.advance(1, ends=1)


def test_a_timeout_that_those_ahead_make_impossible_is_refused_at_once(clock):
    limiter = Limiter(ONE_A_SECOND, clock=clock)
    limiter.hit("k")
    waits = Waits(limiter, clock)
    waits.start("a")
    with pytest.raises(RateLimited) as raised:
        Call(limiter.wait, "k", timeout=1.5).outcome()
    assert (raised.value.decision.allowed, raised.value.decision.retry_after) == (False, 2.0)
    waits.advance(1, ends=1)
    assert inside.nobody_waits(limiter)


def test_a_timeout_that_those_ahead_leave_just_possible_is_met(clock):
    limiter = Limiter(ONE_A_SECOND, clock=clock)
    limiter.hit("k")
    waits = Waits(limiter, clock)
    waits.start("a")
    waits.start("b", timeout=2)
    waits.advance(1, ends=1)
    waits.advance(1, ends=1)
    assert waits.ended == [("a", 1), ("b", 2)]


def test_the_costs_of_those_ahead_count(clock):
    limiter = Limiter(TokenBucket(capacity=5, refill_rate=1), clock=clock)
    limiter.hit("k", 5)
    waits = Waits(limiter, clock)
    waits.start("a", cost=4)
    waits.start("b", cost=3, timeout=7)
    with pytest.raises(RateLimited) as raised:
        Call(limiter.wait, "k", timeout=7.9).outcome()
    assert raised.value.decision.retry_after == 8.0
    waits.start("c", timeout=8)
    for ends in (0, 0, 0, 1, 0, 0, 1, 1):
        waits.advance(1, ends=ends)
    assert waits.ended == [("a", 4), ("b", 7), ("c", 8)]


def test_a_refused_timeout_takes_nothing_from_those_who_come_later(clock):
    limiter = Limiter(ONE_A_SECOND, clock=clock)
    limiter.hit("k")
    waits = Waits(limiter, clock)
    waits.start("a")
    for _ in range(3):
        with pytest.raises(RateLimited):
            Call(limiter.wait, "k", timeout=1.5).outcome()
    waits.start("b", timeout=2)
    waits.advance(1, ends=1)
    waits.advance(1, ends=1)
    assert waits.ended == [("a", 1), ("b", 2)]


def test_time_that_has_passed_counts_for_those_who_come_later(clock):
    limiter = Limiter(ONE_A_SECOND, clock=clock)
    limiter.hit("k")
    waits = Waits(limiter, clock)
    waits.start("a")
    waits.start("b", timeout=2)
    waits.advance(Fraction(1, 2))
    with pytest.raises(RateLimited) as raised:
        Call(limiter.wait, "k", timeout=2.4).outcome()
    assert raised.value.decision.retry_after == 2.5
    waits.start("c", timeout=2.5)
    for ends in (1, 0, 1, 0, 1):
        waits.advance(Fraction(1, 2), ends=ends)
    assert waits.ended == [("a", 1), ("b", 2), ("c", 3)]


def test_a_timeout_passes_while_waiting_when_a_plain_hit_overtakes_the_first_in_line(clock):
    store = RecordingStore()
    limiter = Limiter(ONE_A_SECOND, store, clock=clock)
    limiter.hit("k")
    waits = Waits(limiter, clock)
    waits.start("a", timeout=1)
    until(lambda: store.hits == 1, "the first hit")
    limiter.charge("k")
    waits.advance(1, ends=1)
    assert waits.ended == [("a refused", 1)]
    assert inside.nobody_waits(limiter)


def test_a_timeout_passes_while_waiting_behind_others(clock):
    store = RecordingStore()
    limiter = Limiter(ONE_A_SECOND, store, clock=clock)
    limiter.hit("k")
    waits = Waits(limiter, clock)
    waits.start("a")
    until(lambda: store.hits == 1, "the first hit")
    waits.start("b", timeout=2)
    until(lambda: "snapshot" in store.operations, "b reckons")
    limiter.charge("k", 2)
    waits.advance(2, ends=1)
    assert waits.ended == [("b refused", 2)]
    waits.advance(1, ends=1)
    assert waits.ended == [("b refused", 2), ("a", 3)]
    assert inside.nobody_waits(limiter)


def test_a_shaping_delay_longer_than_the_timeout_is_refused_at_once_and_consumes_nothing(clock):
    limiter = Limiter(SHAPING, clock=clock)
    limiter.hit("k", 3)
    with pytest.raises(RateLimited) as raised:
        Call(limiter.wait, "k", timeout=2.5).outcome()
    assert (raised.value.decision.allowed, raised.value.decision.retry_after) == (False, 0.5)
    assert limiter.peek("k").remaining == 2
    assert inside.nobody_waits(limiter)


def test_a_shaping_delay_just_as_long_as_the_timeout_is_met(clock):
    limiter = Limiter(SHAPING, clock=clock)
    limiter.hit("k", 3)
    waiter = Call(limiter.wait, "k", timeout=3)
    until(lambda: in_queue(limiter, "departure") == 1, "one to depart")
    clock.advance(3)
    assert waiter.outcome().delay == 3.0


def test_a_shaping_delay_that_another_request_made_too_long_meanwhile_is_given_back(clock):
    class Overtaken(MemoryStore):
        """A store in which another caller is faster, once, between a peek and the hit after it."""

        quicker = 1

        def execute(self, demands, ends_ns=None):
            outcome = super().execute(demands, ends_ns)
            if demands[0].operation == "peek" and self.quicker:
                self.quicker -= 1
                super().execute([demand._replace(operation="hit") for demand in demands])
            return outcome

    limiter = Limiter(SHAPING, Overtaken(), clock=clock)
    limiter.hit("k", 2)
    with pytest.raises(RateLimited) as raised:
        Call(limiter.wait, "k", timeout=2).outcome()
    assert (raised.value.decision.allowed, raised.value.decision.retry_after) == (False, 1.0)
    assert limiter.peek("k").remaining == 2
    assert inside.nobody_waits(limiter)


def test_the_retry_after_of_a_refused_shaping_delay_is_true(clock):
    limiter = Limiter(SHAPING, clock=clock)
    limiter.hit("k", 3)
    with pytest.raises(RateLimited) as raised:
        Call(limiter.wait, "k", timeout=2.5).outcome()
    clock.advance(raised.value.decision.retry_after)
    waiter = Call(limiter.wait, "k", timeout=2.5)
    until(lambda: in_queue(limiter, "departure") == 1, "one to depart")
    clock.advance(2.5)
    assert waiter.outcome().allowed


def test_a_shaping_queue_that_is_full_counts_for_the_timeout(clock):
    limiter = Limiter(SHAPING, clock=clock)
    limiter.hit("k", 5)
    with pytest.raises(RateLimited) as raised:
        Call(limiter.wait, "k", timeout=0.5).outcome()
    assert raised.value.decision.retry_after == 1.0
    # room for one is there after 1 s, and that one departs 4 s later
    with pytest.raises(RateLimited):
        Call(waited_with_steps, limiter, clock, timeout=4.5).outcome()
    assert inside.nobody_waits(limiter)


def waited_with_steps(limiter, clock, timeout):
    waiter = Call(limiter.wait, "k", timeout=timeout)
    until(lambda: in_queue(limiter) == 1, "one in the queue")
    clock.advance(1)
    return waiter.outcome()


def test_many_waiters_with_timeouts_cost_work_in_proportion_to_their_number(clock, monkeypatch):
    steps = []
    decide = Bucket.decide
    monkeypatch.setattr(Bucket, "decide", lambda *args: steps.append(1) or decide(*args))

    async def steps_of(count):
        limiter = AsyncLimiter(TokenBucket(capacity=1, refill_rate=1), clock=clock)
        await limiter.hit("k")
        steps.clear()
        tasks = [asyncio.create_task(limiter.wait("k", timeout=10_000)) for _ in range(count)]
        await until_async(lambda: in_queue(limiter) == count, "all in the queue")
        for _ in range(5):
            await asyncio.sleep(0)
        total = len(steps)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return total

    few, many = asyncio.run(steps_of(100)), asyncio.run(steps_of(1000))
    assert few >= 100
    assert many < 12 * few


def test_waits_that_are_refused_at_once_cost_no_more_behind_a_long_line(clock, monkeypatch):
    steps = []
    decide = Bucket.decide
    monkeypatch.setattr(Bucket, "decide", lambda *args: steps.append(1) or decide(*args))

    async def steps_of_a_refusal_behind(count):
        limiter = AsyncLimiter(TokenBucket(capacity=1, refill_rate=1), clock=clock)
        await limiter.hit("k")
        tasks = [asyncio.create_task(limiter.wait("k", timeout=10_000)) for _ in range(count)]
        await until_async(lambda: in_queue(limiter) == count, "all in the queue")
        steps.clear()
        for _ in range(10):
            with pytest.raises(RateLimited):
                await limiter.wait("k", timeout=1)
        total = len(steps)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return total

    assert asyncio.run(steps_of_a_refusal_behind(1000)) < 2 * asyncio.run(steps_of_a_refusal_behind(10))


# cancelled waiters


def test_a_cancelled_task_gives_its_place_back_and_the_next_moves_up(clock):
    async def main():
        limiter = AsyncLimiter(ONE_A_SECOND, clock=clock)
        await limiter.hit("k")
        first, second = (asyncio.create_task(limiter.wait("k")) for _ in range(2))
        await until_async(lambda: in_queue(limiter) == 2, "two in the queue")
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert first.cancelled()
        clock.advance(1)
        assert (await second).allowed
        return limiter

    assert inside.nobody_waits(asyncio.run(main()))


def test_a_task_cancelled_in_the_middle_of_the_line_lets_those_behind_move_up(clock):
    async def main():
        limiter = AsyncLimiter(ONE_A_SECOND, clock=clock)
        await limiter.hit("k")
        tasks = [asyncio.create_task(limiter.wait("k")) for _ in range(3)]
        await until_async(lambda: in_queue(limiter) == 3, "three in line")
        tasks[1].cancel()
        await asyncio.gather(tasks[1], return_exceptions=True)
        clock.advance(1)
        await tasks[0]
        clock.advance(1)
        await tasks[2]
        return limiter

    assert inside.nobody_waits(asyncio.run(main()))
    assert seconds(clock) == 2


def test_a_place_given_back_counts_for_the_timeouts_of_those_who_come_later(clock):
    async def main():
        limiter = AsyncLimiter(ONE_A_SECOND, clock=clock)
        await limiter.hit("k")
        tasks = [asyncio.create_task(limiter.wait("k", timeout=60)) for _ in range(3)]
        await until_async(lambda: in_queue(limiter) == 3, "three in line")
        with pytest.raises(RateLimited):
            await asyncio.wait_for(limiter.wait("k", timeout=3.5), PATIENCE)
        tasks[1].cancel()
        await asyncio.gather(tasks[1], return_exceptions=True)
        later = asyncio.create_task(limiter.wait("k", timeout=3.5))
        await until_async(lambda: in_queue(limiter) == 3, "three in line again")
        for left in (2, 1, 0):
            clock.advance(1)
            await until_async(lambda left=left: in_queue(limiter) == left, f"{left} in line")
        return (await later).allowed

    assert asyncio.run(main())


def test_a_cancelled_wait_with_wait_for_leaves_nobody_behind(clock):
    async def main():
        limiter = AsyncLimiter(ONE_A_SECOND, clock=clock)
        await limiter.hit("k")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(limiter.wait("k"), 0.001)
        return limiter

    assert inside.nobody_waits(asyncio.run(main()))


def test_a_task_that_dies_with_its_event_loop_leaves_nobody_behind(clock):
    limiter = AsyncLimiter(ONE_A_SECOND, clock=clock)

    async def main():
        await limiter.hit("k")
        forgotten.append(asyncio.create_task(limiter.wait("k")))
        await until_async(lambda: in_queue(limiter) == 1, "one in the queue")

    forgotten = []
    asyncio.run(main())
    assert inside.nobody_waits(limiter)
    clock.advance(1)  # there is no caller to wake


needs_signals = pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no signals to threads here")


def interrupted(function, when):
    """Call a function in the main thread, and interrupt it there once a condition holds."""
    main = threading.main_thread().ident
    arrived = threading.Event()

    def interrupt():
        try:
            until(when, "the moment to interrupt")
        finally:
            while not arrived.wait(0.05):  # a signal just before the thread blocks does not wake it: the next one does
                signal.pthread_kill(main, signal.SIGINT)

    def raise_once(*_):
        if not arrived.is_set():
            arrived.set()
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, raise_once)
    helper = Call(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt), untraced():
            function()
    finally:
        helper.outcome()
        signal.signal(signal.SIGINT, before)


def test_what_ends_a_sleep_early_gives_the_place_and_the_reservation_back(clock, monkeypatch):
    class Startled(queues.Waiter):
        def sleep(self, seconds):
            raise KeyboardInterrupt

    monkeypatch.setattr(queues, "Waiter", Startled)
    limiter = Limiter(SHAPING, clock=clock)
    limiter.hit("k", 2)
    with pytest.raises(KeyboardInterrupt):
        limiter.wait("k", 3)
    assert limiter.peek("k").remaining == 3
    with pytest.raises(KeyboardInterrupt):
        limiter.wait("k", 4)
    assert limiter.peek("k").remaining == 3
    assert inside.nobody_waits(limiter)


@needs_signals
def test_an_interrupted_thread_gives_its_place_back_and_the_next_moves_up(clock):
    store = RecordingStore()
    limiter = Limiter(ONE_A_SECOND, store, clock=clock)
    limiter.hit("k")
    behind = []

    def two_in_line():
        if in_queue(limiter) == 1 and not behind:
            behind.append(Call(limiter.wait, "k"))
        return in_queue(limiter) == 2

    interrupted(functools.partial(limiter.wait, "k"), two_in_line)
    clock.advance(1)
    assert behind[0].outcome().allowed
    assert inside.nobody_waits(limiter)


@needs_signals
def test_an_interrupted_departure_gives_its_reservation_back(clock):
    limiter = Limiter(SHAPING, clock=clock)
    limiter.hit("k", 2)
    interrupted(functools.partial(limiter.wait, "k"), lambda: in_queue(limiter, "departure") == 1)
    assert limiter.peek("k").remaining == 3
    assert inside.nobody_waits(limiter)


def test_a_reservation_is_given_back_when_it_is_the_last_in_line(clock):
    async def main():
        limiter = AsyncLimiter(SHAPING, clock=clock)
        await limiter.hit("k")
        tasks = [asyncio.create_task(limiter.wait("k")) for _ in range(3)]
        await until_async(lambda: in_queue(limiter, "departure") == 3, "three to depart")
        assert (await limiter.peek("k")).remaining == 1
        tasks[2].cancel()
        await asyncio.gather(tasks[2], return_exceptions=True)
        assert (await limiter.peek("k")).remaining == 2
        clock.advance(2)
        await asyncio.gather(*tasks[:2])
        return limiter

    assert inside.nobody_waits(asyncio.run(main()))


def test_a_reservation_in_the_middle_stays_empty_and_the_others_depart_when_they_would_have(clock):
    ended = []

    async def main():
        limiter = AsyncLimiter(SHAPING, clock=clock)
        await limiter.hit("k")

        async def wait(name):
            await limiter.wait("k")
            ended.append((name, seconds(clock)))

        tasks = [asyncio.create_task(wait(name)) for name in "abc"]
        await until_async(lambda: in_queue(limiter, "departure") == 3, "three to depart")
        tasks[1].cancel()
        await asyncio.gather(tasks[1], return_exceptions=True)
        assert (await limiter.peek("k")).remaining == 1
        for second in range(1, 4):
            clock.advance(1)
            expected = {1: 1, 2: 1, 3: 2}[second]
            await until_async(lambda expected=expected: len(ended) >= expected, f"{expected} ends")
        return limiter

    assert inside.nobody_waits(asyncio.run(main()))
    assert ended == [("a", 1), ("c", 3)]


def test_a_reservation_that_is_given_back_lets_the_first_of_those_who_wait_in(clock):
    async def main():
        limiter = AsyncLimiter(LeakyBucket(capacity=2, leak_rate=1, mode="shaping"), clock=clock)
        await limiter.hit("k")
        departing = asyncio.create_task(limiter.wait("k"))
        await until_async(lambda: in_queue(limiter, "departure") == 1, "one to depart")
        waiting = asyncio.create_task(limiter.wait("k"))
        await until_async(lambda: in_queue(limiter, "turn") == 1, "one in the queue")
        departing.cancel()
        await asyncio.gather(departing, return_exceptions=True)
        await until_async(lambda: in_queue(limiter, "departure") == 1, "the next to depart")
        clock.advance(1)
        return await waiting

    assert asyncio.run(main()).delay == 1.0


# woken by others


@pytest.mark.parametrize("give", [lambda limiter: limiter.refund("k"), lambda limiter: limiter.reset("k")])
def test_what_is_given_back_wakes_the_first_in_line(clock, give):
    store = RecordingStore()
    limiter = Limiter(ONE_A_SECOND, store, clock=clock)
    limiter.hit("k")
    waits = Waits(limiter, clock)
    waits.start("a")
    until(lambda: store.hits == 1, "the first hit")
    waits.start("b")
    give(limiter)
    until(lambda: waits.ended == [("a", 0)], "the end of a")
    waits.advance(1, ends=1)
    assert waits.ended == [("a", 0), ("b", 1)]


def test_a_refund_wakes_a_waiter_of_another_limiter_on_the_same_store(clock):
    store = RecordingStore()

    async def main():
        awaited = AsyncLimiter(ONE_A_SECOND, store, clock=clock)
        await awaited.hit("k")
        waiter = asyncio.create_task(awaited.wait("k"))
        await until_async(lambda: store.hits == 1, "the first hit")
        Call(Limiter(ONE_A_SECOND, store, clock=clock).refund, "k").outcome()
        return (await waiter).allowed

    assert asyncio.run(main())


def test_an_async_refund_and_reset_wake_the_first_in_line(clock):
    async def main():
        limiter = AsyncLimiter(ONE_A_SECOND, clock=clock)
        await limiter.hit("k")
        for give in (limiter.refund, limiter.reset):
            waiter = asyncio.create_task(limiter.wait("k"))
            await until_async(lambda: in_queue(limiter) == 1, "one in the queue")
            await give("k")
            assert (await waiter).allowed
        return limiter

    assert inside.nobody_waits(asyncio.run(main()))


def test_a_refund_that_is_too_small_lets_nobody_in(clock):
    store = RecordingStore()
    limiter = Limiter(TokenBucket(capacity=5, refill_rate=1), store, clock=clock)
    limiter.hit("k", 5)
    waits = Waits(limiter, clock)
    waits.start("a", cost=3)
    until(lambda: store.hits == 1, "the first hit")
    limiter.refund("k")
    until(lambda: store.hits == 2, "the second hit")
    waits.advance(1)
    assert waits.ended == []
    waits.advance(1, ends=1)
    assert waits.ended == [("a", 2)]


def test_a_refund_of_another_key_wakes_nobody(clock):
    store = RecordingStore()
    limiter = Limiter(ONE_A_SECOND, store, clock=clock)
    limiter.hit("k")
    waits = Waits(limiter, clock)
    waits.start("a")
    until(lambda: store.hits == 1, "the first hit")
    limiter.refund("other")
    waits.advance(1, ends=1)
    assert store.hits == 2


def test_a_refund_counts_for_the_timeouts_of_those_who_come_later(clock):
    store = RecordingStore()
    limiter = Limiter(TokenBucket(capacity=5, refill_rate=1), store, clock=clock)
    limiter.hit("k", 5)
    waits = Waits(limiter, clock)
    waits.start("a", cost=5)
    waits.start("b", cost=1, timeout=60)
    limiter.refund("k", 2)
    until(lambda: store.hits == 2, "the second hit")
    waits.start("c", timeout=5)
    for ends in (0, 0, 1, 1, 1):
        waits.advance(1, ends=ends)
    assert waits.ended == [("a", 3), ("b", 4), ("c", 5)]


# shaping


def test_threads_are_released_at_their_departure_times_in_order(clock):
    limiter = Limiter(LeakyBucket(capacity=5, leak_rate=2, mode="shaping"), clock=clock)
    waits = Waits(limiter, clock)
    limiter.wait("k")  # departs at once
    for name in "abcd":
        waits.start(name)
    assert in_queue(limiter, "departure") == 4
    for _ in range(4):
        waits.advance(Fraction(1, 2), ends=1)
    assert waits.ended == [("a", 0.5), ("b", 1.0), ("c", 1.5), ("d", 2.0)]
    assert inside.nobody_waits(limiter)


def test_a_thread_that_is_slow_to_wake_up_still_departs_first(clock, monkeypatch):
    awake = threading.Event()

    class Sleepyhead(RecordingWaiter):
        def sleep(self, seconds):
            super().sleep(seconds)
            awake.wait(PATIENCE)

    limiter = Limiter(SHAPING, clock=clock)
    limiter.hit("k")
    waits = Waits(limiter, clock)
    monkeypatch.setattr(queues, "Waiter", Sleepyhead)
    waits.start("a")
    monkeypatch.setattr(queues, "Waiter", RecordingWaiter)
    waits.start("b")
    second = waiters(limiter, "departure")[1]
    clock.advance(10)
    until(lambda: second.sleeps > 1 or waits.ended, "b awake")
    assert waits.ended == []
    awake.set()
    until(lambda: len(waits.ended) == 2, "both ends")


def test_who_comes_when_the_queue_has_drained_does_not_overtake_a_task_that_is_slow_to_wake_up(clock):
    async def scenario():
        limiter = AsyncLimiter(SHAPING, clock=clock)
        departed = []

        async def depart(name):
            await limiter.wait("k")
            departed.append(name)

        await limiter.hit("k")
        first = asyncio.create_task(depart("first"))
        await until_async(lambda: in_queue(limiter, "departure") == 1, "one to depart")
        clock.advance(2)  # the first is due, and has not run yet
        await depart("second")
        await first
        return departed

    assert asyncio.run(scenario()) == ["first", "second"]


def test_a_shaped_request_is_not_released_a_microsecond_early(clock):
    limiter = Limiter(LeakyBucket(capacity=5, leak_rate=3, mode="shaping"), clock=clock)
    limiter.hit("k")
    waits = Waits(limiter, clock)
    waits.start("a")
    assert in_queue(limiter, "departure") == 1
    clock.advance(Fraction(333_333, 1_000_000))
    assert waits.ended == []
    waits.advance(Fraction(1, 1_000_000), ends=1)
    assert limiter.peek("k").reset_after == pytest.approx(1 / 3, abs=2e-6)


def test_the_decision_of_a_shaped_wait_tells_the_delay_that_was_slept(clock):
    limiter = Limiter(SHAPING, clock=clock)
    limiter.hit("k", 2)
    waiter = Call(limiter.wait, "k")
    until(lambda: in_queue(limiter, "departure") == 1, "one to depart")
    clock.advance(2)
    decision = waiter.outcome()
    assert (decision.allowed, decision.delay, decision.remaining) == (True, 2.0, 2)


def test_a_full_shaping_queue_lets_waiters_in_one_by_one(clock):
    ended = []

    async def main():
        limiter = AsyncLimiter(LeakyBucket(capacity=2, leak_rate=1, mode="shaping"), clock=clock)

        async def wait(name):
            await limiter.wait("k")
            ended.append((name, seconds(clock)))

        tasks = [asyncio.create_task(wait(name)) for name in "abcdef"]
        await until_async(lambda: len(ended) == 1, "the first end")
        for count in range(2, 7):
            clock.advance(1)
            await until_async(lambda count=count: len(ended) == count, f"{count} ends")
        await asyncio.gather(*tasks)
        return limiter

    assert inside.nobody_waits(asyncio.run(main()))
    assert ended == [("a", 0), ("b", 1), ("c", 2), ("d", 3), ("e", 4), ("f", 5)]


def test_a_thousand_shaped_tasks_depart_in_order(clock):
    ended = []

    async def main():
        limiter = AsyncLimiter(LeakyBucket(capacity=1000, leak_rate=100, mode="shaping"), clock=clock)

        async def wait(number):
            await limiter.wait("k")
            ended.append((number, seconds(clock)))

        tasks = [asyncio.create_task(wait(number)) for number in range(1000)]
        await until_async(lambda: in_queue(limiter, "departure") == 999, "999 to depart")
        for count in range(101, 1001, 100):
            clock.advance(1)
            await until_async(lambda count=count: len(ended) == min(count, 1000), f"{count} ends")
        clock.advance(1)
        await asyncio.gather(*tasks)
        return limiter

    assert inside.nobody_waits(asyncio.run(main()))
    # 100 a second: number n departs n / 100 s after the start, seen at the next whole second
    assert ended == [(number, math.ceil(number / 100)) for number in range(1000)]


def test_a_hundred_shaped_tasks_depart_at_exactly_their_times(clock):
    ended = []

    async def main():
        limiter = AsyncLimiter(LeakyBucket(capacity=100, leak_rate=8, mode="shaping"), clock=clock)

        async def wait(number):
            await limiter.wait("k")
            ended.append((number, seconds(clock)))

        tasks = [asyncio.create_task(wait(number)) for number in range(100)]
        await until_async(lambda: in_queue(limiter, "departure") == 99, "99 to depart")
        for count in range(2, 101):
            clock.advance(Fraction(1, 8))
            await until_async(lambda count=count: len(ended) == count, f"{count} ends")
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert ended == [(number, number / 8) for number in range(100)]


# several rules


def test_a_layered_wait_waits_for_every_rule(clock):
    limiter = Limiter({"a": TokenBucket(1, 1), "b": TokenBucket(1, Fraction(1, 3))}, clock=clock)
    limiter.hit("k")
    waits = Waits(limiter, clock)
    waits.start("x")
    waits.advance(1)
    assert waits.ended == []
    waits.advance(2, ends=1)
    assert waits.ended == [("x", 3)]
    layers = limiter.peek("k").layers
    assert {name: layer.remaining for name, layer in layers.items()} == {"a": 0, "b": 0}


def test_a_layered_wait_for_different_users_of_one_tenant(clock):
    limiter = Limiter({"user": TokenBucket(1, 1), "tenant": TokenBucket(2, 2)}, clock=clock)
    keys = [{"user": user, "tenant": "acme"} for user in ("ada", "bob")]
    for key in keys:
        limiter.hit(key)
    waits = Waits(limiter, clock)
    for key in keys:
        waits.start(key["user"], key=key)
    waits.advance(1, ends=2)
    assert sorted(waits.ended) == [("ada", 1), ("bob", 1)]


def test_an_exhausted_user_does_not_hold_up_the_other_users_of_a_tenant(clock):
    limiter = Limiter({"user": TokenBucket(5, 1), "tenant": TokenBucket(10, 10)}, clock=clock)
    ada, bob = ({"user": user, "tenant": "acme"} for user in ("ada", "bob"))
    limiter.charge(ada, {"user": 5})
    waits = Waits(limiter, clock)
    waits.start("ada", key=ada, cost=5)
    assert limiter.wait(bob).allowed
    waits.advance(5, ends=1)


SHARED = {"user": TokenBucket(100, 100), "tenant": TokenBucket(10, 1)}
ADA, BOB, EVE = ({"user": user, "tenant": "acme"} for user in ("ada", "bob", "eve"))


def exhausted(clock, rules=SHARED):
    """A limiter whose tenant has used up its limit."""
    limiter = Limiter(rules, clock=clock)
    limiter.charge(ADA, {"user": 0, "tenant": 10})
    return limiter


def test_a_key_that_several_share_serves_them_in_the_order_of_arrival_whatever_the_costs(clock):
    waits = Waits(exhausted(clock), clock)
    waits.start("ada", key=ADA, cost=10)
    waits.start("bob", key=BOB)
    waits.start("eve", key=EVE, cost=2)
    waits.advance(1)
    waits.advance(8)
    assert waits.ended == []
    waits.advance(1, ends=1)
    waits.advance(1, ends=1)
    waits.advance(1)
    waits.advance(1, ends=1)
    assert waits.ended == [("ada", 10), ("bob", 11), ("eve", 13)]
    assert inside.nobody_waits(waits.limiter)


def test_who_waits_for_a_shared_key_after_its_own_goes_before_those_who_came_later(clock):
    limiter = exhausted(clock, {"user": TokenBucket(6, 1), "tenant": TokenBucket(10, 2)})
    limiter.charge(ADA, {"user": 6, "tenant": 0})
    waits = Waits(limiter, clock)
    waits.start("ada", key=ADA, cost=6)
    waits.start("bob", key=BOB, cost={"tenant": 10})
    waits.advance(5, ends=1)
    waits.advance(1)
    until(lambda: any(key == "acme" for _, key in inside.queues(limiter).claims), "ada waits for the tenant's limit")
    waits.start("eve", key=EVE)
    waits.advance(1)
    assert waits.ended == [("bob", 5)]
    waits.advance(1, ends=1)
    waits.advance(0.5, ends=1)
    assert waits.ended == [("bob", 5), ("ada", 8), ("eve", 8.5)]


def test_limiters_of_different_rules_serve_a_key_that_they_share_in_the_order_of_arrival(clock):
    both = exhausted(clock)
    tenant = Limiter({"tenant": SHARED["tenant"]}, both.store, clock=clock)
    first, second = Waits(both, clock), Waits(tenant, clock)
    second.ended, second.calls = first.ended, first.calls
    first.start("ada", key=ADA, cost=10)
    first.advance(8)
    second.start("bob", key="acme")  # though eight units are free
    first.advance(1)
    assert first.ended == []
    first.advance(1, ends=1)
    first.advance(1, ends=1)
    assert first.ended == [("ada", 10), ("bob", 11)]


def test_a_timeout_passes_while_others_wait_for_a_shared_key(clock):
    waits = Waits(exhausted(clock), clock)
    waits.start("ada", key=ADA, cost=10)
    waits.start("bob", key=BOB, timeout=2)
    waits.advance(1)
    waits.advance(1, ends=1)
    assert waits.ended == [("bob refused", 2)]
    waits.advance(8, ends=1)


def test_a_timeout_that_a_shared_key_makes_impossible_is_refused_at_once(clock):
    waits = Waits(exhausted(clock), clock)
    waits.start("ada", key=ADA, cost=10)
    with pytest.raises(RateLimited) as raised:
        Call(waits.limiter.wait, BOB, 3, 2.5).outcome()
    assert (raised.value.decision.rule, raised.value.decision.retry_after) == ("tenant", 3.0)
    waits.advance(10, ends=1)


def test_a_claim_is_made_in_the_moment_in_which_it_is_found_to_be_needed(clock):
    waiting = Queues()
    limiter = exhausted(clock)
    ada, bob = (
        Place(waiting, name, RecordingWaiter(clock), inside.demands(limiter, key))
        for name, key in (("ada", ADA), ("bob", BOB))
    )
    ada.claim(ada.demands[1])
    assert bob.must_yield()
    ada.leave()
    bob.waiter.sleep(0.0)
    woken = bob.waiter._woken  # noqa: SLF001 - a second sleep would show it only in time
    assert not woken.acquire(blocking=False)  # it had been woken, which the sleep has used up
    assert not bob.must_yield()


def test_a_cancelled_wait_for_a_shared_key_lets_the_next_move_up(clock):
    async def scenario():
        limiter = AsyncLimiter(SHARED, clock=clock)
        await limiter.charge(ADA, {"user": 0, "tenant": 10})
        ada = asyncio.create_task(limiter.wait(ADA, 10))
        await until_async(lambda: in_queue(limiter) == 1, "one in the queue")
        bob = asyncio.create_task(limiter.wait(BOB))
        await until_async(lambda: in_queue(limiter) == 2, "two in the queue")
        clock.advance(5)
        await asyncio.sleep(0)
        ada.cancel()
        decision = await asyncio.wait_for(bob, PATIENCE)
        assert (decision.layers["tenant"].remaining, inside.nobody_waits(limiter)) == (4, True)

    asyncio.run(scenario())


def test_a_layered_wait_is_refused_when_one_rule_cannot_be_in_time(clock):
    limiter = Limiter({"a": TokenBucket(1, 1), "b": TokenBucket(1, Fraction(1, 3))}, clock=clock)
    limiter.hit("k")
    with pytest.raises(RateLimited) as raised:
        Call(limiter.wait, "k", timeout=2).outcome()
    assert (raised.value.decision.rule, raised.value.decision.retry_after) == ("b", 3.0)


def test_a_layered_wait_behind_others_is_refused_when_its_turn_would_come_too_late(clock):
    limiter = Limiter({"a": TokenBucket(1, 1), "b": TokenBucket(1, Fraction(1, 3))}, clock=clock)
    limiter.hit("k")
    waits = Waits(limiter, clock)
    waits.start("x")
    with pytest.raises(RateLimited) as raised:
        Call(limiter.wait, "k", timeout=5.5).outcome()
    assert raised.value.decision.retry_after == 6.0
    waits.start("y", timeout=6)
    waits.advance(3, ends=1)
    waits.advance(3, ends=1)
    assert waits.ended == [("x", 3), ("y", 6)]


def test_a_layered_wait_departs_when_its_longest_delay_is_over(clock):
    limiter = Limiter({"slow": LeakyBucket(5, 1, "shaping"), "quick": LeakyBucket(5, 4, "shaping")}, clock=clock)
    limiter.hit("k")
    waits = Waits(limiter, clock)
    waits.start("x")
    assert in_queue(limiter, "departure") == 1
    waits.advance(Fraction(1, 4))
    assert waits.ended == []
    waits.advance(Fraction(3, 4), ends=1)
    assert inside.nobody_waits(limiter)


def test_a_cancelled_layered_departure_gives_back_what_every_rule_took(clock):
    async def main():
        limiter = AsyncLimiter({"shaped": SHAPING, "counted": FixedWindow(10, 60)}, clock=clock)
        await limiter.hit("k")
        task = asyncio.create_task(limiter.wait("k", 2))
        await until_async(lambda: in_queue(limiter, "departure") == 1, "one to depart")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return {name: layer.remaining for name, layer in (await limiter.peek("k")).layers.items()}

    assert asyncio.run(main()) == {"shaped": 4, "counted": 9}


# other clocks


def test_wait_admits_with_the_real_clock():
    limiter = Limiter(TokenBucket(capacity=1, refill_rate=1000))
    assert [limiter.wait("k", timeout=60).allowed for _ in range(5)] == [True] * 5
    assert inside.nobody_waits(limiter)


def test_async_wait_admits_with_the_real_clock():
    async def main():
        limiter = AsyncLimiter(TokenBucket(capacity=1, refill_rate=1000))
        decisions = await asyncio.gather(*(limiter.wait("k", timeout=60) for _ in range(5)))
        return [decision.allowed for decision in decisions], limiter

    allowed, limiter = asyncio.run(main())
    assert allowed == [True] * 5
    assert inside.nobody_waits(limiter)


def test_shaping_releases_with_the_real_clock():
    limiter = Limiter(LeakyBucket(capacity=5, leak_rate=1000, mode="shaping"))
    assert [limiter.wait("k", timeout=60).allowed for _ in range(5)] == [True] * 5


def test_wait_admits_with_an_injected_clock_that_nobody_steers():
    limiter = Limiter(TokenBucket(capacity=1, refill_rate=1000), clock=lambda: time.time_ns() + 10**18)
    assert [limiter.wait("k", timeout=60).allowed for _ in range(3)] == [True] * 3


def test_a_clock_set_back_by_less_than_a_drain_delays_a_waiter_by_as_much(clock):
    limiter = Limiter(ONE_A_SECOND, clock=clock)
    limiter.hit("k")
    waits = Waits(limiter, clock)
    waits.start("a")
    waits.advance(-0.5)
    assert waits.ended == []
    waits.advance(1.4)
    assert waits.ended == []
    waits.advance(0.1, ends=1)
    assert waits.ended == [("a", 1)]
    assert inside.nobody_waits(limiter)


@pytest.mark.parametrize("timeout", [None, 150])
def test_a_clock_set_back_by_an_hour_delays_no_waiter_by_an_hour(clock, timeout):
    """If the state of a key is more than a window ahead, the key counts as untouched."""
    limiter = Limiter(FixedWindow(1, 60), clock=clock)
    limiter.hit("k")
    waits = Waits(limiter, clock)
    waits.start("a", timeout=timeout)
    waits.start("b", timeout=timeout)
    waits.advance(-3600, ends=1)
    waits.advance(60, ends=1)
    assert waits.ended == [("a", -3600), ("b", -3540)]
    assert inside.nobody_waits(limiter)


def test_a_clock_that_was_set_back_keeps_nobody_beyond_the_timeout(clock):
    limiter = Limiter(TokenBucket(1, Fraction(1, 100)), clock=clock)
    limiter.hit("k")
    waits = Waits(limiter, clock)
    waits.start("a")
    waits.start("b", timeout=260)
    waits.advance(-50)
    limiter.charge("k", 3)
    waits.advance(259)
    assert waits.ended == []
    waits.advance(1, ends=1)
    assert waits.ended == [("b refused", 210)]
    waits.advance(190, ends=1)


def test_a_forecast_that_was_made_before_the_clock_was_set_back_refuses_nobody(clock):
    limiter = Limiter(FixedWindow(1, 60), clock=clock)
    limiter.hit("k")
    waits = Waits(limiter, clock)
    for name in "abc":
        waits.start(name, timeout=600)
    waits.advance(-3600, ends=1)
    waits.start("d", timeout=180)
    for _ in range(3):
        waits.advance(60, ends=1)
    assert waits.ended == [("a", -3600), ("b", -3540), ("c", -3480), ("d", -3420)]


def test_a_clock_set_back_by_an_hour_lets_shaped_requests_depart_after_their_delay(clock):
    limiter = Limiter(SHAPING, clock=clock)
    limiter.hit("k")
    waits = Waits(limiter, clock)
    waits.start("a")
    waits.start("b")
    waits.advance(0.5)
    waits.advance(-3600)
    waits.advance(0.5, ends=1)
    waits.advance(1, ends=1)
    assert waits.ended == [("a", -3599), ("b", -3598)]


def test_a_clock_of_ones_own_that_is_set_back_delays_no_waiter_by_as_much():
    ahead_ns = [0]
    limiter = Limiter(TokenBucket(capacity=1, refill_rate=5), clock=lambda: time.time_ns() + ahead_ns[0])
    limiter.hit("k")
    waiting = [Call(limiter.wait, "k", timeout=20) for _ in range(3)]
    until(lambda: in_queue(limiter) == 3, "three in line")
    ahead_ns[0] -= 3600 * 10**9
    assert all(waiter.outcome().allowed for waiter in waiting)


# a store that answers later


def test_an_error_of_the_store_reaches_the_waiter_and_the_next_moves_up(clock):
    class Broken(MemoryStore):
        broken = False

        def execute(self, demands, ends_ns=None):
            if self.broken:
                raise ConnectionError
            return super().execute(demands, ends_ns)

    store = Broken()
    limiter = Limiter(ONE_A_SECOND, store, clock=clock)
    limiter.hit("k")
    waiter = Call(limiter.wait, "k")
    until(lambda: in_queue(limiter) == 1, "one in the queue")
    store.broken = True
    clock.advance(1)
    with pytest.raises(ConnectionError):
        waiter.outcome()
    assert inside.nobody_waits(limiter)
