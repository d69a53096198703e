"""Long queues: the cost of joining and leaving them, which callers drop out, and that nothing is left behind."""

import asyncio
import gc
import itertools
import random
from contextlib import suppress

import pytest

from ratekeeper import (
    AsyncLimiter,
    FixedWindow,
    LeakyBucket,
    Limiter,
    RateLimited,
    SlidingWindowLog,
    TokenBucket,
    queues,
)
from ratekeeper.algorithms.bucket import Bucket
from ratekeeper.queues import Place
from ratekeeper.stores import MemoryStore
from ratekeeper.testing import ManualClock
from tests import inside, points
from tests.waiters import Call, RecordingWaiter, in_queue, until, until_async, untraced, waiters

ONE_A_SECOND = TokenBucket(capacity=1, refill_rate=1)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def steps(monkeypatch):
    """A list that grows with every step of a rule."""
    steps = []
    decide = Bucket.decide
    monkeypatch.setattr(Bucket, "decide", lambda *args: steps.append(1) or decide(*args))
    return steps


async def line_of(limiter, count, timeout=100_000):
    """Let tasks wait for an exhausted key."""
    await limiter.hit("k")
    tasks = [asyncio.create_task(limiter.wait("k", timeout=timeout)) for _ in range(count)]
    await until_async(lambda: in_queue(limiter) == count, "all in the queue")
    return tasks


async def cancelled(*tasks):
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# what it costs


@pytest.mark.parametrize("timeout", [1, 100_000])
def test_joining_and_leaving_a_queue_costs_work_in_proportion_to_the_number_of_callers(clock, steps, timeout):
    """Repeatedly, one caller leaves in the middle of the queue and another joins at its end."""

    async def steps_of(count):
        limiter = AsyncLimiter(ONE_A_SECOND, clock=clock)
        tasks = await line_of(limiter, 2 * count)
        steps.clear()
        joined = []
        for leaves in tasks[count // 2 : count // 2 + count]:
            await cancelled(leaves)
            joined.append(asyncio.create_task(limiter.wait("k", timeout=timeout)))
            await asyncio.sleep(0)
        total = len(steps)
        await cancelled(*tasks, *joined)
        assert inside.nobody_waits(limiter)
        return total

    few, many = asyncio.run(steps_of(100)), asyncio.run(steps_of(800))
    assert many < 10 * few


def test_a_hopeless_wait_is_refused_at_once_however_much_the_queue_changes(clock):
    async def scenario():
        limiter = AsyncLimiter(ONE_A_SECOND, clock=clock)
        tasks = await line_of(limiter, 500)
        for leaves in tasks[100:200]:
            await cancelled(leaves)
            refused = asyncio.create_task(limiter.wait("k", timeout=300))
            await until_async(refused.done, "the refusal")
            with pytest.raises(RateLimited):
                await refused
        await cancelled(*tasks)

    asyncio.run(scenario())


def test_a_caller_that_is_in_time_because_others_left_is_not_refused(clock):
    async def scenario():
        limiter = AsyncLimiter(ONE_A_SECOND, clock=clock)
        tasks = await line_of(limiter, 500)
        for leaves in tasks[100:200]:
            await cancelled(leaves)
            joined = asyncio.create_task(limiter.wait("k", timeout=500))  # just enough
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not joined.done()
            await cancelled(joined)
        joined = asyncio.create_task(limiter.wait("k", timeout=401))
        await asyncio.sleep(0)
        await cancelled(*tasks)
        clock.advance(1)
        assert (await joined).allowed

    asyncio.run(scenario())


def test_a_forecast_for_a_long_queue_does_not_hold_up_the_event_loop(clock, steps):
    async def scenario():
        limiter = AsyncLimiter(ONE_A_SECOND, clock=clock)
        tasks = await line_of(limiter, 3000)
        await cancelled(tasks[10])
        steps.clear()
        newcomer = asyncio.create_task(limiter.wait("k", timeout=2999.5))
        seen = [0]
        while not newcomer.done():
            await asyncio.sleep(0)
            seen.append(len(steps))
        with pytest.raises(RateLimited) as raised:
            await newcomer
        await cancelled(*tasks)
        return raised.value.decision.retry_after, max(after - before for before, after in itertools.pairwise(seen))

    retry_after, at_once = asyncio.run(scenario())
    assert retry_after == 3000.0
    assert at_once < 1000


def test_usage_that_is_given_back_concerns_only_the_queues_of_its_key(clock, monkeypatch):
    looked_at = []
    first = queues.Queue.first
    monkeypatch.setattr(queues.Queue, "first", lambda queue: looked_at.append(1) or first(queue))

    async def looks_with(count):
        limiter = AsyncLimiter({"user": ONE_A_SECOND, "tenant": TokenBucket(1000, 1)}, clock=clock)
        keys = [{"user": f"user {number}", "tenant": f"tenant {number // 2}"} for number in range(count)]
        for key in keys:
            await limiter.hit(key)
        tasks = [asyncio.create_task(limiter.wait(key)) for key in keys]
        await until_async(lambda: in_queue(limiter) == count, "all in the queue")
        looked_at.clear()
        await limiter.refund({"user": "somebody", "tenant": "tenant 0"})
        total = len(looked_at)
        await cancelled(*tasks)
        assert inside.nobody_waits(limiter)
        return total

    assert asyncio.run(looks_with(20)) == asyncio.run(looks_with(200)) == 2


# who drops out


def test_a_task_in_line_that_nobody_holds_is_served_all_the_same():
    async def scenario():
        limiter = AsyncLimiter(TokenBucket(capacity=1, refill_rate=20))
        served = []

        async def wait(name):
            await limiter.wait("k")
            served.append(name)

        await limiter.hit("k")
        for name in "abc":
            asyncio.ensure_future(wait(name))  # noqa: RUF006 - no reference to it is the point
            await asyncio.sleep(0)
        gc.collect()
        await until_async(lambda: len(served) == 3, "three served")
        return served

    assert asyncio.run(scenario()) == ["a", "b", "c"]


@pytest.mark.parametrize("shaping", [False, True])
def test_a_task_whose_event_loop_was_closed_drops_out(clock, monkeypatch, shaping):
    monkeypatch.setattr("ratekeeper.queues.Waiter", RecordingWaiter)
    rule = LeakyBucket(5, 1, "shaping") if shaping else ONE_A_SECOND
    limiter = Limiter(rule, clock=clock)
    limiter.hit("k")
    waiting = AsyncLimiter(rule, limiter.store, clock=clock)
    loop = asyncio.new_event_loop()
    held = loop.create_task(waiting.wait("k"))
    loop.run_until_complete(asyncio.sleep(0))
    behind = Call(limiter.wait, "k")
    until(lambda: len(waiters(limiter, "departure" if shaping else "turn")) == 2, "two in the queue")
    loop.close()
    clock.advance(2)
    assert behind.outcome().allowed
    assert not held.done()  # it was not notified
    del held
    gc.collect()
    assert inside.nobody_waits(limiter)


def test_a_closed_event_loop_takes_nobody_of_another_one_along(clock):
    limiter = AsyncLimiter(ONE_A_SECOND, clock=clock)
    loops = [asyncio.new_event_loop() for _ in range(2)]
    loops[0].run_until_complete(limiter.hit("k"))
    tasks = [loop.create_task(limiter.wait("k")) for loop in loops for _ in range(2)]
    for loop in loops:
        loop.run_until_complete(asyncio.sleep(0))
    assert in_queue(limiter) == 4
    loops[0].close()
    assert in_queue(limiter) == 2
    for task in tasks[2:]:
        clock.advance(1)
        assert loops[1].run_until_complete(task).allowed
    loops[1].close()
    assert inside.nobody_waits(limiter)


def test_a_forecast_in_an_event_loop_that_was_closed_is_made_in_another_one(clock):
    class Slow(MemoryStore):
        """A store whose first snapshot never comes."""

        snapshots = 0

        def snapshot(self, demands, ends_ns=None):
            self.snapshots += 1
            return asyncio.Event().wait() if self.snapshots == 1 else super().snapshot(demands, ends_ns)

    store = Slow()
    limiter = AsyncLimiter(ONE_A_SECOND, store, clock=clock)
    closed, other = asyncio.new_event_loop(), asyncio.new_event_loop()
    other.run_until_complete(limiter.hit("k"))
    first = other.create_task(limiter.wait("k"))
    other.run_until_complete(asyncio.sleep(0))
    forecasts = closed.create_task(limiter.wait("k", timeout=60))
    closed.run_until_complete(asyncio.sleep(0))
    hopeless = other.create_task(limiter.wait("k", timeout=1.5))
    other.run_until_complete(asyncio.sleep(0))
    assert (store.snapshots, in_queue(limiter)) == (1, 3)
    closed.close()
    with pytest.raises(RateLimited):
        other.run_until_complete(hopeless)
    clock.advance(1)
    assert other.run_until_complete(first).allowed
    other.close()
    assert (store.snapshots, forecasts.done()) == (2, False)
    assert inside.nobody_waits(limiter)


def test_an_interruption_at_any_point_of_a_wait_leaves_the_queue_and_its_forecast_as_they_were(clock, monkeypatch):
    """Behind two others, one of which leaves before its time, so that the forecast is made once more."""
    monkeypatch.setattr("ratekeeper.queues.Waiter", RecordingWaiter)
    limiter = Limiter(ONE_A_SECOND, clock=clock)
    limiter.hit("k")
    first = Call(limiter.wait, "k")
    until(lambda: in_queue(limiter) == 1, "one in the queue")

    def refused():
        retry_after = None
        try:
            limiter.wait("k", timeout=1.5)
        except RateLimited as error:
            retry_after = error.decision.retry_after
        assert retry_after == 2.0

    def wait_behind_one_that_leaves():
        leaves = Place(inside.queues(limiter), "turn", RecordingWaiter(clock), inside.demands(limiter, "k"), 10**30)
        leaves.outlook(limiter.timer())
        refused_behind = Place(inside.queues(limiter), "turn", RecordingWaiter(clock), inside.demands(limiter, "k"))
        leaves.leave()
        refused_behind.leave()
        refused()

    interrupted = 0
    with untraced(), points.handled_by(points.interrupt), points.bounded():
        for call in (refused, wait_behind_one_that_leaves):
            for point in itertools.count():
                is_over = False
                with suppress(points.Interruption):
                    is_over = not points.at(point, call)
                interrupted += not is_over
                assert in_queue(limiter) == 1
                Call(refused).outcome()  # in another thread, so that a lock left behind would be noticed
                if is_over:
                    break
    assert interrupted > 500
    clock.advance(1)
    assert first.outcome().allowed
    assert inside.nobody_waits(limiter)


def test_cancelled_waits_take_nothing_and_leave_nothing_behind(clock):
    """Some are cancelled at once, some in the queue and some when they are about to be served."""

    async def scenario(rule, seed):
        chance = random.Random(seed)
        limiter = AsyncLimiter({"a": rule, "b": FixedWindow(10**6, "365d")}, clock=clock)
        ended = []

        async def wait(key):
            await limiter.wait(key, timeout=chance.choice([None, 50, 10**6]))
            ended.append(key)

        tasks = [asyncio.create_task(wait(chance.choice("xyz"))) for _ in range(60)]
        for _ in range(200):
            for task in chance.sample(tasks, 2):
                if chance.random() < 0.3:
                    task.cancel()
            if chance.random() < 0.5:
                clock.advance(chance.choice([0.5, 1, 3]))
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
        await cancelled(*tasks)
        assert inside.nobody_waits(limiter)
        used = {key: 10**6 - (await limiter.peek(key)).layers["b"].remaining for key in "xyz"}
        return used, {key: ended.count(key) for key in "xyz"}

    for seed in range(10):
        for rule in (TokenBucket(2, 1), SlidingWindowLog(3, 5), FixedWindow(3, 5)):
            used, served = asyncio.run(scenario(rule, seed))
            assert used == served
            clock.advance(400 * 86_400)


def test_an_interruption_at_any_point_of_leaving_wakes_the_next_caller(clock, monkeypatch):
    monkeypatch.setattr("ratekeeper.queues.Waiter", RecordingWaiter)
    limiter = Limiter(TokenBucket(10**6, 1), clock=clock)
    for point in itertools.count():
        first = Place(inside.queues(limiter), "turn", RecordingWaiter(clock), inside.demands(limiter, "k"))
        behind = Call(limiter.wait, "k", timeout=10)
        until(lambda: in_queue(limiter) == 1, "one sleeps behind the first")
        is_over = False
        with untraced(), points.handled_by(points.interrupt), points.bounded(), suppress(points.Interruption):
            is_over = not points.at(point, first.leave)
        first = None  # as the call's frame is gone
        assert behind.outcome().allowed
        assert inside.nobody_waits(limiter)
        if is_over:
            break
    assert point > 20
