"""Observers are told of every decision once, however it was made, and stores tell of their calls."""

import asyncio
import logging

import pytest

from ratekeeper import AsyncLimiter, FixedWindow, Limiter, RateLimited
from ratekeeper.clock import stopwatch
from ratekeeper.policies import Policies
from ratekeeper.queues import queues_of
from ratekeeper.stores import MemoryStore, RedisStore, SqliteStore
from ratekeeper.stores.protocol import Observable, StoreFigures
from ratekeeper.testing import ManualClock
from tests import servers
from tests.faces import FACES
from tests.waiters import Call, in_queue, until

RULES = {"user": FixedWindow(1, 60), "all": FixedWindow(5, 60)}


class Told:
    """What an observer was told, in order."""

    def __init__(self):
        self.calls = []

    def decided(self, operation, demands, decision, began_ns, ended_ns):
        assert 0 < began_ns <= ended_ns <= stopwatch()
        keys = [(demand.binding.name, demand.key, demand.cost) for demand in demands]
        self.calls.append((operation, keys, decision.allowed, decision.rule))


@pytest.fixture
def told():
    return Told()


@pytest.fixture(params=FACES.values(), ids=FACES)
def make(request):
    return request.param


@pytest.fixture(params=["memory", "Redis"])
def url(request, tmp_path):
    return "memory://" if request.param == "memory" else servers.shared(servers.newest()).url


def test_an_observer_is_told_of_each_hit_and_wait_and_of_nothing_else(make, told, url, tmp_path):
    name = FixedWindow(2, 600).text
    limiter = make(FixedWindow(2, 600), url, prefix=tmp_path.name)
    limiter.observe(told)
    limiter.reset("a")
    limiter.hit("a")
    limiter.wait("a")
    limiter.peek("a")
    limiter.hit("a")
    limiter.hit("a")  # on Redis, a denial that is remembered
    limiter.refund("a", 2)
    limiter.charge("a")
    limiter.take("a")
    with pytest.raises(RateLimited):
        limiter.wait("a", timeout=0)
    limiter.close()
    admitted, denied = [("hit", [(name, "a", 1)], allowed, name) for allowed in (True, False)]
    waits = [("wait", *admitted[1:]), ("wait", *denied[1:])]
    assert told.calls == [admitted, waits[0], denied, denied, admitted, waits[1]]


def test_an_observer_gets_the_key_and_the_cost_of_each_rule(make, told):
    limiter = make(RULES)
    limiter.observe(told)
    limiter.hit({"user": "ada", "all": "everybody"}, cost={"user": 1, "all": 3})
    limiter.hit({"user": "ada", "all": "everybody"}, cost={"all": 2})
    assert told.calls == [
        ("hit", [("user", "ada", 1), ("all", "everybody", 3)], True, "user"),
        ("hit", [("user", "ada", 1), ("all", "everybody", 2)], False, "user"),
    ]


def test_hits_that_were_only_started_are_told_when_they_end(told, tmp_path):
    async def main(url):
        async with AsyncLimiter("1/day", url, prefix=tmp_path.name) as limiter:
            limiter.observe(told)
            await limiter.reset("a")
            started = [limiter.start_hit("a") for _ in range(2)]
            return [bool(each if hasattr(each, "allowed") else await each) for each in started]

    assert asyncio.run(main("memory://")) == [True, False]
    assert asyncio.run(main(servers.shared(servers.newest()).url)) == [True, False]
    assert [(operation, allowed) for operation, _, allowed, _ in told.calls] == 2 * [("hit", True), ("hit", False)]


def test_a_limiter_that_is_switched_off_tells_that_nothing_limits_the_request(make, told):
    limiter = make(RULES, enabled=False)
    limiter.observe(told)
    limiter.hit("a")
    limiter.wait("a")
    assert [(allowed, rule) for _, _, allowed, rule in told.calls] == [(True, ""), (True, "")]


def test_several_observers_are_told_and_the_hook_too(make, told):
    seen = []
    limiter = make("9/s", on_decision=lambda key, decision: seen.append((key, decision.allowed)))
    others = [Told(), Told()]
    for observer in (told, *others):
        limiter.observe(observer)
    limiter.hit("a")
    assert told.calls == others[0].calls == others[1].calls
    assert (len(told.calls), seen) == (1, [("a", True)])


def test_a_decision_is_the_same_when_it_is_observed(make, told):
    clock = ManualClock()
    plain, observed = make("2/minute", clock=clock), make("2/minute", clock=clock)
    observed.observe(told)
    for cost in (1, 3, 1, 1):
        assert observed.hit("a", cost) == plain.hit("a", cost)


def test_an_observer_that_fails_is_logged_and_changes_no_decision(make, caplog):
    class Failing:
        def decided(self, *_):
            raise RuntimeError("broken")

    limiter = make("9/s")
    limiter.observe(Failing())
    assert limiter.hit("a").allowed
    assert [record.getMessage() for record in caplog.records] == [
        "an observer raised an exception; the decision is unaffected"
    ]


def test_a_limiter_says_which_policy_its_rules_are_from():
    policies = Policies.load('{"policies": {"api": {"rules": [{"name": "all", "limit": "9/s", "key": "all"}]}}}')
    assert policies.limiter("api").policy == "api"
    assert Limiter("9/s").policy == ""


def test_a_store_in_memory_says_how_many_keys_it_holds_and_has_evicted():
    store = MemoryStore(max_keys=2)
    limiter = Limiter("9/day", store)
    for key in "abc":
        limiter.hit(key)
    assert isinstance(store, Observable)
    assert store.figures() == StoreFigures(True, keys=2, evictions=1)


def test_a_store_on_redis_counts_the_denials_that_it_remembers(tmp_path):
    with Limiter(FixedWindow(1, 600), servers.shared(servers.newest()).url, prefix=tmp_path.name) as limiter:
        limiter.reset("a")
        for _ in range(5):
            limiter.hit("a")
        limiter.take("a")
        assert limiter.store.figures() == StoreFigures(True, remembered_denials=4)


def test_a_store_tells_of_each_call_that_decides(tmp_path):
    calls = []
    on_redis = RedisStore(servers.shared(servers.newest()).url)
    on_sqlite = SqliteStore(tmp_path / "limits.db")
    for store in (on_redis, on_sqlite):
        store.observe_calls(lambda requests, answered: calls.append((requests, answered)))
        limiter = Limiter("9/day", store, prefix=tmp_path.name)
        limiter.hit("a")
        limiter.peek("a")
        store.close()
    assert calls == 4 * [(1, True)]


def test_a_batch_is_one_call(tmp_path):
    calls = []

    async def main():
        async with AsyncLimiter("9/day", servers.shared(servers.newest()).url, prefix=tmp_path.name) as limiter:
            await limiter.hit("a")  # sets the connections up
            limiter.store.observe_calls(lambda requests, answered: calls.append((requests, answered)))
            await asyncio.gather(*(limiter.hit(f"key {number}") for number in range(10)))

    asyncio.run(main())
    assert calls == [(10, True)]


def test_a_store_that_is_away_tells_of_calls_without_an_answer(tmp_path):
    calls = []
    limiters = [
        Limiter("9/day", f"redis://127.0.0.1:{servers.free_port()}", deadline=1),
        Limiter("9/day", f"sqlite://{tmp_path}/missing/limits.db"),
    ]
    for limiter in limiters:
        assert limiter.store.figures().is_up
        limiter.store.observe_calls(lambda requests, answered: calls.append((requests, answered)))
        assert limiter.hit("a").degraded
        assert not limiter.store.figures().is_up
        limiter.close()
    assert calls == 2 * [(1, False)]


def test_an_observer_of_calls_that_fails_is_logged(tmp_path, caplog):
    store = SqliteStore(tmp_path / "limits.db")
    store.observe_calls(lambda *_: 1 / 0)
    limiter = Limiter("9/day", store)
    with caplog.at_level(logging.ERROR):
        assert not limiter.hit("a").degraded
    assert [record.getMessage() for record in caplog.records] == [
        "an observer raised an exception; the call is unaffected"
    ]
    store.close()


def test_a_store_knows_how_many_callers_wait():
    limiter = Limiter("fixed-window 1/day")
    limiter.hit("a")
    call = Call(limiter.wait, "a")
    until(lambda: queues_of(limiter.store).size == 1, "the caller waits")
    limiter.reset("a")
    call.outcome()
    assert queues_of(limiter.store).size == in_queue(limiter) == 0
