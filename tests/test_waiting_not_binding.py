"""A rule that does not bind keeps no caller waiting: it has no queue, no forecast and no delay."""

import asyncio
from fractions import Fraction

import pytest

from ratekeeper import AsyncLimiter, LeakyBucket, Limiter, RateLimited, TokenBucket
from ratekeeper.testing import ManualClock
from tests import inside
from tests.waiters import Call, in_queue, until, until_async

USER, TENANT = TokenBucket(5, 1), TokenBucket(5, Fraction(1, 100))  # the tenant's limit does not bind
ADA, BOB = ({"user": user, "tenant": "acme"} for user in ("ada", "bob"))


@pytest.fixture
def clock():
    return ManualClock()


def make(clock, kind=Limiter, tenant=TENANT, used=None):
    """A limiter whose tenant has used up its limit, and of whose users ada has."""
    limiter = kind({"user": USER, "tenant": tenant}, clock=clock, shadow=["tenant"])
    asked = [("charge", "user", "ada", 5, True), ("charge", "tenant", "acme", 5 if used is None else used, True)]
    inside.below(limiter).execute(inside.mixed(limiter, asked))
    return limiter


def used(limiter, name, key):
    (answer,) = inside.below(limiter).execute(inside.mixed(limiter, [("peek", name, key, 1, False)])).answers
    return 5 - answer[1]


@pytest.mark.parametrize("timeout", [None, 100])
def test_a_cost_that_never_fits_it_is_admitted(clock, timeout):
    limiter = make(clock)
    assert limiter.wait(BOB, {"user": 1, "tenant": 6}, timeout).allowed


@pytest.mark.parametrize("timeout", [None, 2])
def test_a_wait_lasts_as_long_as_the_rules_that_bind_want_it(clock, timeout):
    limiter = make(clock)
    call = Call(limiter.wait, ADA, 2, timeout)
    until(lambda: in_queue(limiter) == 1, "ada waits")
    clock.advance(2)
    assert call.outcome().allowed
    assert (used(limiter, "user", "ada"), used(limiter, "tenant", "acme")) == (5, 5)


def test_who_waits_holds_nobody_up_at_its_key(clock):
    limiter = make(clock)
    call = Call(limiter.wait, ADA)
    until(lambda: inside.queues(limiter).claims, "ada waits for the user's limit")
    assert {key for _, key in inside.queues(limiter).claims} == {"ada"}
    assert Call(limiter.wait, BOB).outcome().allowed
    clock.advance(1)
    assert call.outcome().allowed


def test_a_timeout_is_judged_by_the_rules_that_bind(clock):
    limiter = make(clock)
    calls = [Call(limiter.wait, ADA)]
    until(lambda: in_queue(limiter) == 1, "the first waits")
    calls.append(Call(limiter.wait, ADA, 1, 2))  # in time, behind the first
    until(lambda: in_queue(limiter) == 2, "the second waits")
    with pytest.raises(RateLimited) as raised:
        limiter.wait(ADA, 1, 2)
    assert (raised.value.decision.rule, raised.value.decision.retry_after) == ("user", 3.0)
    clock.advance(1)
    until(lambda: in_queue(limiter) == 1, "the second is first")
    clock.advance(1)
    assert all(call.outcome().allowed for call in calls)


def test_requests_that_no_rule_binds_wait_for_nobody(clock):
    limiter = Limiter({"user": USER, "tenant": TENANT}, clock=clock, shadow=True)
    assert all(limiter.wait(ADA, 3).allowed for _ in range(4))
    assert (used(limiter, "user", "ada"), used(limiter, "tenant", "acme")) == (3, 3)
    taken = limiter.wait_and_take(ADA, 2)
    assert used(limiter, "user", "ada") == 5
    taken.give_back()
    assert used(limiter, "user", "ada") == 3


def test_a_shaping_rule_delays_nobody(clock):
    limiter = make(clock, tenant=LeakyBucket(5, 1, mode="shaping"), used=2)
    decisions = [limiter.wait(BOB, timeout=1) for _ in range(5)]
    assert [decision.delay for decision in decisions] == [0] * 5
    assert used(limiter, "tenant", "acme") == 5


@pytest.mark.parametrize("spent", [5, 2])
def test_an_interrupted_departure_gives_back_what_was_charged(clock, spent):
    """Of a shaping rule that binds, beside a rule that does not and has room for the request or not."""

    async def main():
        rules = {"user": LeakyBucket(5, 1, mode="shaping"), "tenant": TENANT}
        limiter = AsyncLimiter(rules, clock=clock, shadow=["tenant"])
        asked = [("charge", "user", "ada", 1, True), ("charge", "tenant", "acme", spent, True)]
        inside.below(limiter).execute(inside.mixed(limiter, asked))
        waiting = asyncio.create_task(limiter.wait(ADA, 2))
        await until_async(lambda: in_queue(limiter, "departure") == 1, "ada departs")
        assert (used(limiter, "user", "ada"), used(limiter, "tenant", "acme")) == (3, 5 if spent == 5 else 4)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert (used(limiter, "user", "ada"), used(limiter, "tenant", "acme")) == (1, spent)

    asyncio.run(main())
