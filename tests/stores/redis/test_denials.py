"""Denials that are remembered: what does not reach Redis, and what has to."""

import asyncio
import gc

import pytest

from ratekeeper import AsyncLimiter, FixedWindow, LeakyBucket, Limiter, SlidingWindowLog, StoreUnavailable, TokenBucket
from ratekeeper.clock import stopwatch
from ratekeeper.stores import AsyncRedisStore, RedisStore
from ratekeeper.stores.protocol import Binding, Demand, Outcome
from ratekeeper.stores.redis.denials import Denials
from ratekeeper.testing import ManualClock
from tests import inside
from tests.proxy import Proxy

STRICT = {"on_error": "raise", "deadline": 30}
RULE = TokenBucket(5, 1)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store(server, client):
    store = RedisStore(server.url)
    yield store
    store.close()


@pytest.fixture
def limiter(store, clock):
    return Limiter({"r": RULE}, store, clock=clock, **STRICT)


def calls(client):
    stats = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha"))


def asks(client, action):
    """How many times this calls Redis."""
    before = calls(client)
    action()
    return calls(client) - before


def test_a_flood_of_denied_hits_does_not_reach_redis(client, limiter):
    limiter.hit("k", 5)
    assert asks(client, lambda: [limiter.hit("k") for _ in range(100)]) == 1


def test_a_flood_of_denied_async_hits_does_not_reach_redis(server, client, clock):
    async def scenario():
        store = AsyncRedisStore(server.url)
        limiter = AsyncLimiter({"r": RULE}, store, clock=clock, **STRICT)
        await limiter.hit("k", 5)
        before = calls(client)
        decisions = [await limiter.hit("k") for _ in range(100)]
        await store.close()
        return calls(client) - before, {decision.allowed for decision in decisions}

    assert asyncio.run(scenario()) == (1, {False})


def test_a_remembered_denial_counts_down(limiter, clock):
    limiter.hit("k", 5)
    limiter.hit("k")
    clock.advance(0.25)
    decision = limiter.hit("k")
    assert (decision.allowed, decision.retry_after, decision.reset_after) == (False, 0.75, 4.75)


def test_a_remembered_denial_counts_whole_microseconds_of_the_clock_as_redis_does(store):
    times_ns = [1_700_000_000_000_000_900]
    limiters = [Limiter({"r": RULE}, place, clock=lambda: times_ns[0], **STRICT) for place in (store, "memory://")]
    for limiter in limiters:
        limiter.hit("k", 5)
    for later_ns in (0, 200, 300, 999, 1_100):
        times_ns[0] += later_ns
        assert limiters[0].hit("k") == limiters[1].hit("k")


@pytest.mark.parametrize("rule", ["fixed-window 3/minute", "sliding-window-log 3/minute", "3/minute", "1/s burst 3"])
def test_the_quick_way_to_a_remembered_denial_answers_as_the_layers_do(store, clock, rule):
    answers = []
    for on_decision in (None, lambda *_: None):  # with a hook, only the layers decide
        limiter = Limiter({"r": rule}, store, clock=clock, on_decision=on_decision, **STRICT)
        clock.set(1_700_000_040)
        limiter.reset("k")
        limiter.hit("k", 3)
        decided = []
        for at in range(4):
            clock.set(1_700_000_040 + at / 4)
            decided += [limiter.hit("k", cost) for cost in (1, 2, 4)]
        answers.append(decided)
    assert answers[0] == answers[1]
    assert not any(answers[0])


def test_the_quick_way_checks_its_arguments(limiter):
    limiter.hit("k", 6)  # denied for ever
    assert not limiter.hit("k", 6)
    with pytest.raises(TypeError, match=r"cost must be an int of at least 1, not 6\.0"):
        limiter.hit("k", 6.0)


def test_at_its_retry_after_redis_is_asked_again(client, limiter, clock):
    limiter.hit("k", 5)
    limiter.hit("k")
    clock.advance(0.999999)
    assert asks(client, lambda: limiter.hit("k")) == 0
    clock.advance(0.000001)
    assert asks(client, lambda: limiter.hit("k")) == 1
    assert limiter.peek("k").remaining == 0


def test_it_is_remembered_for_a_second_at_most(client, store, clock):
    limiter = Limiter({"r": FixedWindow(1, 86_400)}, store, clock=clock, **STRICT)
    limiter.hit("k")
    limiter.hit("k")
    clock.advance(0.999999)
    assert asks(client, lambda: limiter.hit("k")) == 0
    clock.advance(0.000001)
    assert asks(client, lambda: limiter.hit("k")) == 1


def test_a_cost_above_what_any_rule_can_use_is_not_remembered_as_such_costs_may_hash_alike(client, limiter):
    limiter.hit("k")
    assert asks(client, lambda: [limiter.hit("k", 2**42) for _ in range(3)]) == 1
    assert asks(client, lambda: [limiter.hit("k", 2**42 + 1) for _ in range(3)]) == 3


def test_a_cost_that_never_fits_is_remembered_as_well(client, limiter):
    limiter.hit("k", 6)
    assert asks(client, lambda: [limiter.hit("k", 6) for _ in range(10)]) == 0


@pytest.mark.parametrize("rule", [RULE, LeakyBucket(5, 1), SlidingWindowLog(5, 5)], ids=lambda rule: rule.text)
def test_what_remains_stays_true_while_a_larger_cost_is_denied(store, clock, rule):
    limiter = Limiter({"r": rule}, store, clock=clock, **STRICT)
    memory = Limiter({"r": rule}, clock=clock)
    for _ in range(5):
        assert limiter.hit("k") == memory.hit("k")
        clock.advance(0.1)
    for _ in range(60):
        assert limiter.hit("k", 4) == memory.hit("k", 4)
        clock.advance(0.07)


@pytest.mark.parametrize(
    "give",
    [
        lambda limiter: limiter.refund("k", 2),
        lambda limiter: limiter.reset("k"),
        lambda limiter: limiter.charge("k", 1),
    ],
    ids=["refund", "reset", "charge"],
)
def test_what_this_process_gives_back_or_charges_drops_it(client, limiter, give):
    limiter.hit("k", 5)
    limiter.hit("k")
    give(limiter)
    assert asks(client, lambda: limiter.hit("k")) == 1


def test_a_refund_by_another_limiter_on_the_same_store_drops_it(client, store, limiter, clock):
    limiter.hit("k", 5)
    limiter.hit("k")
    Limiter({"r": RULE}, store, clock=clock, **STRICT).refund("k", 1)
    assert limiter.hit("k").allowed


@pytest.mark.parametrize("give", [lambda limiter: limiter.refund("k"), lambda limiter: limiter.reset("k")])
def test_a_refund_through_another_store_of_the_same_process_drops_it(server, limiter, clock, give):
    """Whichever URL of the server it was made with, and whether it is for threads or for tasks."""

    async def scenario():
        async with AsyncLimiter({"r": RULE}, f"redis://localhost:{server.port}", clock=clock, **STRICT) as other:
            limiter.hit("k", 5)
            assert not limiter.hit("k")
            assert not await other.hit("k")
            await give(other)
            assert limiter.hit("k")
            limiter.charge("k", 5)
            assert not await other.hit("k", 5)
            limiter.reset("k")
            assert await other.hit("k", 5)

    asyncio.run(scenario())


def test_another_cost_another_key_and_another_rule_are_asked_for(client, store, limiter, clock):
    limiter.hit("k", 5)
    limiter.hit("k", 2)
    larger = Limiter({"r": TokenBucket(10, 1)}, store, clock=clock, **STRICT)
    assert asks(client, lambda: (limiter.hit("k", 1), limiter.hit("other"), larger.hit("k", 2))) == 3


def test_a_smaller_cost_that_is_admitted_drops_it(client, limiter):
    limiter.hit("k", 3)
    assert limiter.hit("k", 3).remaining == 2
    limiter.hit("k", 1)
    assert limiter.hit("k", 3).remaining == 1


def test_a_denial_of_several_rules_is_remembered_and_dropped_by_each_of_its_keys(client, store, clock):
    limiter = Limiter({"a": FixedWindow(1, 86_400), "b": FixedWindow(1, 86_400)}, store, clock=clock, **STRICT)
    key = {"a": "x", "b": "y"}
    limiter.hit(key)
    first = limiter.hit(key)
    assert asks(client, lambda: limiter.hit(key)) == 0
    assert limiter.hit(key).layers == first.layers
    limiter.refund(key, {"a": 1, "b": 0})
    assert (limiter.hit(key).rule, limiter.hit(key).layers["a"].remaining) == ("b", 1)


def test_a_clock_that_steps_back_asks_again(client, limiter, clock):
    limiter.hit("k", 5)
    limiter.hit("k")
    clock.advance(-0.000001)
    assert asks(client, lambda: limiter.hit("k")) == 1


def test_a_clock_that_goes_on_and_steps_back_recalls_nothing_from_before_a_hit_was_admitted(limiter, clock):
    limiter.hit("k", 5)
    assert not limiter.hit("k").allowed
    clock.advance(4)
    assert limiter.hit("k").remaining == 3
    clock.advance(-3.5)
    assert limiter.hit("k").remaining == 2  # decided at the time of the last one


def test_a_clock_that_steps_back_and_goes_on_recalls_nothing_from_before(server, store, limiter, clock):
    limiter.hit("k", 5)
    assert not limiter.hit("k").allowed
    clock.advance(-3)
    limiter.hit("other")
    with Limiter({"r": RULE}, server.url, clock=clock, **STRICT) as another:
        another.refund("k", 3)
    clock.advance(3)
    assert limiter.hit("k").remaining == 2


def test_a_store_whose_limiters_had_a_clock_counts_real_time_once_they_are_gone(store):
    limiter = Limiter({"r": RULE}, store, clock=lambda: 1_000)
    del limiter
    gc.collect()
    Limiter({"r": RULE}, store)
    assert store.denials.timer is stopwatch


@pytest.mark.parametrize("change", ["refund", "reset"])
def test_a_change_that_nobody_heard_of_drops_it(server, client, clock, change):
    with Proxy(server.port) as proxy:
        limiter = Limiter({"r": RULE}, proxy.url, clock=clock, **STRICT)
        limiter.hit("k", 5)
        assert not limiter.hit("k").allowed
        proxy.mode = "lose"
        with pytest.raises(StoreUnavailable):
            getattr(limiter, change)("k")
        proxy.mode = "pass"
        inside.second_passed(limiter.store)
        assert limiter.hit("k").allowed
        limiter.close()


def test_it_can_be_turned_off(server, client, clock):
    store = RedisStore(server.url, remember_denials=False)
    limiter = Limiter({"r": RULE}, store, clock=clock, **STRICT)
    limiter.hit("k", 5)
    assert asks(client, lambda: [limiter.hit("k") for _ in range(10)]) == 10
    store.close()


BINDING = Binding("r", RULE, ("p", RULE.algorithm, "r"))
DENIED = Outcome(0, [(False, 0, 500_000, 0, 0)], steady_us=500_000)


def demands(key, operation="hit"):
    return [Demand(BINDING, key, 1, operation)]


def test_only_so_many_are_remembered_the_latest_ones():
    denials = Denials(most=3)
    denials.timer = lambda: 0
    for key in "abcd":
        denials.note(demands(key), DENIED, 0)
    assert [denials.recall(demands(key)) is not None for key in "abcd"] == [False, True, True, True]
    by_key = denials._by_key  # noqa: SLF001 - what it keeps besides must be bounded, too
    assert (len(denials.held), len(by_key)) == (3, 3)


def test_a_denial_that_was_on_its_way_while_something_was_given_back_is_not_held():
    denials = Denials()
    denials.timer = lambda: 100
    denials.note(demands("a", "refund"), Outcome(0, [(True, 1, 0, 0, 0)]), 50)
    denials.note(demands("a"), DENIED, 60)
    denials.note(demands("b"), DENIED, 60)
    assert (denials.recall(demands("a")), denials.recall(demands("b")) is not None) == (None, True)
    denials.note(demands("a"), DENIED, 101)
    assert denials.recall(demands("a")) is not None


def test_when_too_much_was_given_back_to_list_only_later_denials_are_held():
    denials = Denials(most=2)
    denials.timer = lambda: 100
    for key in "abc":
        denials.note(demands(key, "refund"), Outcome(0, [(True, 1, 0, 0, 0)]), 50)
    denials.note(demands("x"), DENIED, 99)
    assert denials.recall(demands("x")) is None
    denials.note(demands("x"), DENIED, 101)
    assert denials.recall(demands("x")) is not None
