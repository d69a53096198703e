"""What only AsyncLimiter does; what it shares with Limiter is in test_limiter.py."""

import asyncio
import inspect
import uuid

import pytest
import redis

from ratekeeper import AsyncLimiter, Decision, FixedWindow, InvalidRule, RateLimited, TokenBucket
from ratekeeper.testing import ManualClock
from tests import servers

BUCKET = TokenBucket(capacity=10, refill_rate=1)


@pytest.fixture
def clock():
    return ManualClock(start=1_700_000_040)  # the start of a minute


@pytest.mark.parametrize("method", ["hit", "peek", "charge", "refund", "reset", "inspect", "wait", "close"])
def test_every_method_is_awaited(method):
    assert inspect.iscoroutinefunction(getattr(AsyncLimiter, method))


def test_a_limiter_can_be_made_outside_of_any_event_loop(clock):
    limiter = AsyncLimiter(BUCKET, clock=clock)
    assert asyncio.run(limiter.hit("a")).remaining == 9


def test_a_limiter_works_in_one_event_loop_after_another(clock):
    limiter = AsyncLimiter(BUCKET, clock=clock)
    assert [asyncio.run(limiter.hit("a")).remaining for _ in range(3)] == [9, 8, 7]
    assert asyncio.run(limiter.wait("a")).remaining == 6


def test_hits_that_are_started_in_a_row_go_to_redis_together(clock):
    async def main():
        async with AsyncLimiter(BUCKET, servers.shared(servers.newest()).url, prefix=str(uuid.uuid4())) as limiter:
            await limiter.peek("a")
            client = redis.from_url(servers.shared(servers.newest()).url)
            before = _scripts_run_by(client)
            coming = [limiter.start_hit("a") for _ in range(12)]
            decisions = await asyncio.gather(*coming)
            return [decision.remaining for decision in decisions], _scripts_run_by(client) - before

    assert asyncio.run(main()) == ([9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0, 0], 1)


def _scripts_run_by(client):
    return client.info("commandstats")["cmdstat_evalsha"]["calls"]


def test_a_hit_that_is_started_in_memory_is_decided_at_once(clock):
    told = []
    limiter = AsyncLimiter(BUCKET, clock=clock, on_decision=lambda key, decision: told.append((key, decision)))
    decision = limiter.start_hit("a", 4)
    assert (decision.allowed, decision.remaining, told) == (True, 6, [("a", decision)])
    assert AsyncLimiter(BUCKET, clock=clock).start_hit("a").remaining == 9
    assert AsyncLimiter(BUCKET, clock=clock, enabled=False).start_hit("a", 99).allowed


def test_leaving_an_async_with_block_closes_the_limiter(clock):
    async def main():
        async with AsyncLimiter(BUCKET, clock=clock) as limiter:
            await limiter.hit("a")
            assert limiter.store.size == 1
        return limiter.store.size

    assert asyncio.run(main()) == 0


def test_slot_waits_and_gives_the_decision(clock):
    async def main():
        async with AsyncLimiter(BUCKET, clock=clock).slot("a", cost=3, timeout=1) as decision:
            return decision.remaining

    assert asyncio.run(main()) == 7


def test_slot_raises_rate_limited_before_the_block(clock):
    entered = []

    async def main():
        limiter = AsyncLimiter(BUCKET, clock=clock)
        await limiter.hit("a", 10)
        async with limiter.slot("a", timeout=0.5):
            entered.append(True)

    with pytest.raises(RateLimited):
        asyncio.run(main())
    assert entered == []


def test_slot_lets_an_error_of_the_block_through_and_keeps_what_it_took(clock):
    limiter = AsyncLimiter(BUCKET, clock=clock)

    async def main():
        async with limiter.slot("a"):
            raise LookupError

    with pytest.raises(LookupError):
        asyncio.run(main())
    assert asyncio.run(limiter.peek("a")).remaining == 9


def test_limited_awaits_the_function_when_admitted(clock):
    @AsyncLimiter(BUCKET, clock=clock).limited(key="k")
    async def add(a, b=2):
        return a + b

    assert asyncio.run(add(1, b=5)) == 6


def test_limited_raises_rate_limited_instead_of_calling(clock):
    calls = []

    @AsyncLimiter(FixedWindow(1, 60), clock=clock).limited(key="k")
    async def call():
        calls.append(True)

    asyncio.run(call())
    with pytest.raises(RateLimited) as raised:
        asyncio.run(call())
    assert calls == [True]
    assert raised.value.decision == Decision(False, 1, 0, 60.0, 60.0, 0.0, "fixed-window 1/minute", {}, False)


@pytest.mark.parametrize("timeout", [30, None])
def test_limited_with_a_timeout_waits(timeout):
    limiter = AsyncLimiter("token-bucket 100/s burst 1")

    @limiter.limited(key="k", timeout=timeout)
    async def call():
        return "called"

    async def main():
        return [await call() for _ in range(3)]  # without waiting, the second one would be denied

    assert asyncio.run(main()) == ["called"] * 3


def test_limited_makes_the_key_and_the_cost_of_the_arguments(clock):
    limiter = AsyncLimiter(BUCKET, clock=clock)

    @limiter.limited(key=lambda user, items: user, cost=lambda user, items: len(items))
    async def send(user, items):
        return items

    asyncio.run(send("ada", [1, 2, 3]))
    assert asyncio.run(limiter.peek("ada")).remaining == 7


def test_limited_stays_a_coroutine_function_with_its_name_and_docstring(clock):
    async def original(a: int) -> int:
        """Describe it."""
        return a

    limited = AsyncLimiter(BUCKET, clock=clock).limited(key="k")(original)
    assert inspect.iscoroutinefunction(limited)
    assert (limited.__name__, limited.__doc__, limited.__wrapped__) == ("original", "Describe it.", original)


def test_limited_refuses_a_function_that_is_not_a_coroutine_function():
    def call():
        pass

    with pytest.raises(TypeError, match="call is not a coroutine function; limit it with a Limiter"):
        AsyncLimiter(BUCKET).limited(key="k")(call)


def test_limited_refuses_a_callable_object_that_has_no_name():
    class Call:
        def __call__(self):
            pass

    with pytest.raises(TypeError, match="is not a coroutine function; limit it with a Limiter"):
        AsyncLimiter(BUCKET).limited(key="k")(Call())


def test_limited_refuses_a_bad_key_before_the_call(clock):
    calls = []

    @AsyncLimiter(BUCKET, clock=clock).limited(key=lambda user: user)
    async def call(user):
        calls.append(user)

    with pytest.raises(InvalidRule, match="key must not be empty: ''"):
        asyncio.run(call(""))
    assert calls == []


def test_a_subclass_decides_like_its_parent(clock):
    class Double(AsyncLimiter):
        async def hit(self, key, cost=1):
            return await super().hit(key, cost * 2)

    limiter = Double(BUCKET, clock=clock)
    assert asyncio.run(limiter.hit("a")).remaining == 8
    assert repr(limiter).startswith("Double(")
