"""Leases: what is spent ahead is bounded, and what is left is given back."""

import asyncio
import os
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratekeeper import (
    AsyncLimiter,
    FixedWindow,
    InvalidRule,
    LeakyBucket,
    Limiter,
    SlidingWindowCounter,
    SlidingWindowLog,
    StoreUnavailable,
    TokenBucket,
)
from ratekeeper.http import Answer, Gate
from ratekeeper.stores import SqliteStore, from_url
from ratekeeper.testing import ManualClock
from tests import inside, servers
from tests.waiters import untraced

STRICT = {"on_error": "raise", "deadline": 30}


@pytest.fixture(scope="module")
def redis():
    server = servers.RedisServer(servers.programs()[servers.newest()])
    yield server.url
    server.stop()


@pytest.fixture(scope="module", params=["Redis", "SQLite"])
def url(request, redis, tmp_path_factory):
    """The URL of a store that may be away: leases are for those."""
    return redis if request.param == "Redis" else f"sqlite:///{tmp_path_factory.mktemp('leases')}/limits.db"


def counted(url):
    """Return a store that counts in `asked` how often a server or a file is asked."""
    store = from_url(url)
    # On Redis what is remembered does not come as far as the batches.
    layer = store if isinstance(store, SqliteStore) else inside.batches(store)
    execute = layer.execute

    def counting(*args):
        store.asked += 1
        return execute(*args)

    layer.execute = counting
    store.asked = 0
    return store


@pytest.fixture
def clock():
    return ManualClock(1_700_000_000)


@pytest.fixture
def make(url, clock, request):
    """Return what makes limiters on one clock, under a prefix of this test's own."""

    limiters = []

    def made(rule, lease=0.1, store=None, **options):
        options |= {"lease": lease, "clock": clock, "prefix": request.node.name, **STRICT}
        limiters.append(Limiter(rule, store or url, **options))
        return limiters[-1]

    yield made
    for limiter in limiters:
        limiter.close()


def used(make, rule, key="hot"):
    return rule.limit - make(rule, lease=None).peek(key).remaining


def test_a_hot_key_is_asked_for_once_for_many_hits(make, url):
    store = counted(url)
    limiter = make(FixedWindow(10_000, 3_600), store=store)
    assert [limiter.hit("hot").remaining for _ in range(400)] == list(range(9_999, 9_599, -1))
    assert store.asked < 20


def test_a_key_that_is_hit_now_and_then_is_never_taken_ahead(make, clock):
    rule = FixedWindow(1_000, 3_600)
    limiter = make(rule)
    for number in range(20):
        limiter.hit("cold")
        clock.advance(1)
        assert used(make, rule, "cold") == number + 1


@pytest.mark.parametrize("rule", [FixedWindow(100, 3_600), SlidingWindowLog(100, 3_600)])
def test_what_a_request_took_of_a_slice_is_given_back_when_it_is_settled(make, clock, rule):
    limiter = make(rule, lease=60)
    gate = Gate(limiter, key=lambda request: "hot", settle=lambda *_: 0)
    for _ in range(5):
        clock.advance(1)
        admission = gate.admit(None)
    assert inside.lease(limiter, "hot").left  # the last was spent of it
    before = used(make, rule)
    gate.settle(None, admission, Answer(200, 0))
    assert used(make, rule) == before - 1


def test_what_is_left_is_given_back_when_the_lease_is_over_and_another_key_is_asked_for(make, clock):
    rule = FixedWindow(1_000, 3_600)
    limiter = make(rule)
    for _ in range(50):
        limiter.hit("hot")
    assert used(make, rule) > 50
    clock.advance(0.1)
    limiter.hit("another")
    assert used(make, rule) == 50


@pytest.mark.parametrize("end", ["close", "refund", "charge", "reset"])
def test_what_is_left_is_given_back_at_the_end_and_before_a_change(make, end):
    rule = FixedWindow(1_000, 3_600)
    limiter = make(rule)
    for _ in range(50):
        limiter.hit("hot")
    if end == "close":
        limiter.close()
    else:
        getattr(limiter, end)("hot")
    assert used(make, rule) == {"close": 50, "refund": 49, "charge": 51, "reset": 0}[end]


def test_a_peek_sees_the_slice_and_takes_nothing(make):
    limiter = make(FixedWindow(10, 3_600))
    for _ in range(10):
        limiter.hit("hot")
    assert (limiter.peek("hot").allowed, limiter.peek("hot").remaining) == (False, 0)
    other = make(FixedWindow(1_000, 3_600))
    for _ in range(50):
        other.hit("hot")
    assert [other.peek("hot").remaining for _ in range(2)] == [950, 950]


def test_what_remains_counts_what_went_past_the_slice(make):
    limiter = make(FixedWindow(100, 3_600), lease=60)
    used = 0
    for cost in (1, 1, 1, 1, 1, 1, 20, 1, 20, 2, 20, 1):
        assert limiter.hit("hot", cost).allowed
        used += cost
        assert limiter.peek("hot").remaining == 100 - used


@pytest.mark.parametrize(("ends", "spare"), [(0, 3), (0.1, 0)])
def test_nothing_is_denied_that_this_process_itself_holds_back(make, clock, ends, spare):
    rule = FixedWindow(100, 3_600)
    limiter = make(rule)
    for _ in range(9):
        limiter.hit("hot")
    held = used(make, rule) - 9
    assert held > 0
    make(rule, lease=None).hit("hot", 100 - 9 - held - spare)
    clock.advance(ends)
    peeked = limiter.peek("hot", held + spare)
    assert (peeked.allowed, peeked.remaining) == (True, held + spare)
    decision = limiter.hit("hot", held + spare)
    assert (decision.allowed, decision.remaining) == (True, 0)


def test_a_change_gives_back_what_is_held_of_its_own_key_only(make, url):
    rule = FixedWindow(1_000, 3_600)
    store = counted(url)
    limiter = make(rule, store=store)
    for number in range(200):
        limiter.hit(f"hot {number % 20}")
    over = inside.give_up_leases(limiter)
    asked, ended = store.asked, len(over)
    limiter.refund("hot 0")
    assert used(make, rule, "hot 0") == 9
    assert (ended, len(over)) == (20, 17)  # and two at a time, as any call does
    assert store.asked - asked == 4
    limiter.close()
    assert {used(make, rule, f"hot {number}") for number in range(1, 20)} == {10}


def test_a_change_comes_first_if_a_give_back_would_take_its_time(make, url):
    rule = FixedWindow(1_000, 3_600)
    store = counted(url)
    limiter = make(rule, store=store)
    for _ in range(9):
        limiter.hit("hot")
    assert used(make, rule) > 9
    inside.answers_took(limiter, STRICT["deadline"] / 2)
    asked = store.asked
    assert limiter.charge("hot").remaining == 990
    assert store.asked - asked == 1
    limiter.close()
    assert used(make, rule) == 10


def test_a_reset_ends_the_lease_and_gives_nothing_back(make):
    rule = FixedWindow(1_000, 3_600)
    limiter = make(rule)
    for _ in range(9):
        limiter.hit("hot")
    inside.answers_took(limiter, STRICT["deadline"] / 2)
    limiter.reset("hot")
    assert [limiter.hit("hot").remaining for _ in range(2)] == [999, 998]
    limiter.close()
    assert used(make, rule) == 2


def test_no_slice_is_taken_that_would_not_do_for_another_hit(make, url):
    store = counted(url)
    limiter = make(TokenBucket(100, 1_000_000), store=store)
    assert [limiter.hit("hot", 11).remaining for _ in range(9)] == list(range(89, 0, -11))
    assert store.asked == 9


def test_all_that_the_rule_admits_is_admitted_in_the_end(make):
    limiter = make(FixedWindow(97, 3_600))
    assert sum(limiter.hit("hot").allowed for _ in range(200)) == 97


def test_a_rule_that_does_not_bind_is_charged_what_it_admits(make):
    rule = FixedWindow(97, 3_600)
    limiter = make(rule, shadow=True)
    assert all(limiter.hit("hot") for _ in range(200))
    taken = limiter.take("hot")
    taken.give_back()
    limiter.close()
    assert used(make, rule) == 97


def test_of_a_counter_nothing_is_spent_beyond_its_window(make, clock):
    for rule in (FixedWindow(1_000, 1), SlidingWindowCounter(1_000, 1)):
        clock.set(1_700_000_000)
        limiter = make(rule, lease=60)
        clock.advance(0.99)
        for _ in range(50):
            limiter.hit("hot")
        held = used(make, rule) - 50
        assert held > 0
        clock.advance(0.01)
        limiter.hit("hot")
        limiter.close()
        assert make(rule, lease=None).inspect("hot")[rule.text].state["count"] == 1


@settings(max_examples=30)
@given(
    st.sampled_from(
        [
            SlidingWindowLog(40, 1),
            TokenBucket(40, 20),
            LeakyBucket(40, 20),
            FixedWindow(40, 1),
            SlidingWindowCounter(40, 1),
        ]
    ),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 2), st.integers(1, 6)), min_size=50, max_size=300),
)
def test_what_is_spent_in_an_interval_is_what_the_rule_admits_in_it_and_the_lease_before(url, rule, steps):
    """The limiters of three processes spend on one key; every interval is checked against the rule's own bound."""
    clock = ManualClock(1_700_000_000)
    prefix = f"bound {next(_number)}"
    limiters = [Limiter(rule, url, lease=0.1, clock=clock, prefix=prefix, **STRICT) for _ in range(3)]
    spent = []
    for wait_ms, who, cost in steps:
        clock.advance(wait_ms / 4_000)
        if limiters[who].hit("hot", cost).allowed:
            spent.append((clock() // 1_000, cost))
    for limiter in limiters:
        limiter.close()
    for first, (begins, _) in enumerate(spent):
        total = 0
        for ends, cost in spent[first:]:
            total += cost
            assert total <= admitted_in(rule, ends - begins + 100_000)


def admitted_in(rule, interval_us):
    """The most that a rule admits in an interval of this length, both ends included."""
    if isinstance(rule, TokenBucket | LeakyBucket):
        return rule.capacity + interval_us * rule.units // rule.period_us
    windows = interval_us // rule.window_us + 1
    return rule.limit * (windows if isinstance(rule, SlidingWindowLog) else windows + 1)


_number = iter(range(10**6))


def test_threads_share_one_slice_exactly(url):
    rule = FixedWindow(3_000, "365d")
    with Limiter(rule, url, lease=1, prefix="threads", **STRICT) as limiter:
        admitted = []

        def work():
            admitted.append(sum(limiter.hit("hot").allowed for _ in range(1_000)))

        with untraced():
            threads = [threading.Thread(target=work) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert sum(admitted) <= 3_000
    with Limiter(rule, url, prefix="threads", **STRICT) as plain:
        assert plain.peek("hot").remaining == 3_000 - sum(admitted)


def test_tasks_share_one_slice_and_close_gives_the_rest_back(url):
    rule = FixedWindow(5_000, "365d")

    async def scenario():
        async with AsyncLimiter(rule, url, lease=1, prefix="tasks", **STRICT) as limiter:
            for _ in range(20):
                await asyncio.gather(*(limiter.hit("hot") for _ in range(20)))

    asyncio.run(scenario())
    with Limiter(rule, url, prefix="tasks", **STRICT) as plain:
        assert plain.peek("hot").remaining == 5_000 - 400


def test_of_many_tasks_at_once_one_takes_a_slice_and_none_is_denied_for_it(url):
    rule = FixedWindow(100, "365d")

    async def scenario():
        async with AsyncLimiter(rule, url, lease=1, prefix="at once", **STRICT) as limiter:
            for _ in range(4):
                await limiter.hit("hot")
            return await asyncio.gather(*(limiter.hit("hot") for _ in range(64)))

    assert all(asyncio.run(scenario()))


def test_what_cancelled_tasks_have_taken_is_given_back_in_the_end(url):
    rule = FixedWindow(1_000, "365d")

    async def scenario():
        async with AsyncLimiter(rule, url, lease=5, prefix="cancelled", **STRICT) as limiter:
            ended = 0
            for number in range(60):
                hits = [asyncio.ensure_future(limiter.hit("hot")) for _ in range(4)]
                await asyncio.sleep(0.0005 * (number % 3))
                hits[0].cancel()
                ended += sum(
                    not isinstance(end, BaseException) for end in await asyncio.gather(*hits, return_exceptions=True)
                )
            return ended

    ended = asyncio.run(scenario())
    with Limiter(rule, url, prefix="cancelled", **STRICT) as plain:
        used = 1_000 - plain.peek("hot").remaining
    assert ended <= used <= ended + 60


def test_a_flood_on_an_exhausted_key_does_not_reach_redis(redis):
    store = counted(redis)
    with Limiter(FixedWindow(1_000, "365d"), store, lease=1, prefix="exhausted", **STRICT) as limiter:
        limiter.charge("hot", 1_000)
        asked = store.asked
        assert not any(limiter.hit("hot").allowed for _ in range(2_000))
        assert store.asked - asked < 50
    store.close()


def test_a_wait_can_have_what_this_process_holds(make):
    limiter = make(FixedWindow(1_000, 3_600))
    for _ in range(50):
        limiter.hit("hot")
    assert limiter.wait("hot", 950, timeout=0).allowed


def test_while_the_store_is_away_no_slice_is_taken(make, clock):
    limiter = Limiter(FixedWindow(100, 3_600), f"redis://127.0.0.1:{servers.free_port()}", lease=0.1, clock=clock)
    assert [limiter.hit("hot").allowed for _ in range(120)] == [True] * 100 + [False] * 20
    limiter.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_a_forked_child_does_not_spend_its_parents_slice(make):
    rule = FixedWindow(1_000, 3_600)
    limiter = make(rule)
    for _ in range(50):
        limiter.hit("hot")
    held = used(make, rule)
    with untraced():
        child = os.fork()
        if child == 0:
            limiter.hit("hot")
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    assert used(make, rule) == held + 1


def test_an_interrupted_hit_leaves_the_slice_to_the_next(make, monkeypatch):
    rule = FixedWindow(1_000, 3_600)
    limiter = make(rule)
    for _ in range(3):
        limiter.hit("hot")  # the next takes a slice

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(inside.below(limiter), "execute", interrupt)
        with pytest.raises(KeyboardInterrupt) as held:  # whose frames are not garbage
            limiter.hit("hot")
    limiter.hit("hot")
    assert used(make, rule) > 4, held


def test_a_flow_that_ends_as_garbage_does_not_wait_for_the_thread_that_collects_it(make, monkeypatch):
    limiter = make(FixedWindow(1_000, 3_600))
    for _ in range(3):
        limiter.hit("hot")  # the next takes a slice
    leases = inside.leases(limiter)

    def never_answered(*_):
        yield

    monkeypatch.setattr(leases, "_ask", never_answered)
    monkeypatch.setattr(leases, "_run", lambda flow: flow)
    flow = leases.execute(inside.demands(limiter, "hot"))
    next(flow)
    assert inside.lease(limiter, "hot").taking
    with inside.lock(leases):
        ending = threading.Thread(target=flow.close)
        ending.start()
        ending.join(10)
        assert not ending.is_alive()
    assert not inside.lease(limiter, "hot").taking


def test_a_store_that_goes_away_ends_nothing_but_the_lease(make, clock):
    server = servers.RedisServer(servers.programs()[servers.newest()])
    limiter = make(FixedWindow(1_000, 3_600), store=server.url)
    for _ in range(50):
        limiter.hit("hot")
    server.stop()
    assert limiter.hit("hot").allowed  # from the slice
    clock.advance(0.1)
    with pytest.raises(StoreUnavailable):
        limiter.hit("hot")


@pytest.mark.parametrize(
    ("lease", "complaint"),
    [(0, "above 0"), (-1, "above 0"), (61, "at most 60"), (float("nan"), "above 0")],
)
def test_a_lease_that_is_none_is_refused(lease, complaint):
    with pytest.raises(InvalidRule, match=complaint):
        Limiter("1/s", lease=lease)


@pytest.mark.parametrize("rules", ["1/s; 10/minute", "leaky-bucket 1/s shaping"])
def test_a_lease_needs_one_rule_that_does_not_shape(rules):
    with pytest.raises(InvalidRule, match="one rule that does not shape"):
        Limiter(rules, lease=0.1)


def test_in_memory_a_lease_changes_nothing():
    limiter = Limiter("fixed-window 5/day", lease=0.1)
    assert [limiter.hit("k").allowed for _ in range(6)] == [True] * 5 + [False]
