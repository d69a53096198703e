import gc
import math
import random
import tracemalloc
from collections import Counter
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekeeper import (
    FixedWindow,
    InvalidRule,
    LeakyBucket,
    Limiter,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
)
from ratekeeper.algorithms import EMPTY
from ratekeeper.ruleset import from_answer
from ratekeeper.stores import MemoryStore
from ratekeeper.stores.protocol import Binding, Demand, Receipt
from ratekeeper.testing import ManualClock
from tests import inside

SIX_RULES = [
    FixedWindow(10, 60),
    SlidingWindowLog(10, 60),
    SlidingWindowCounter(10, 60),
    TokenBucket(10, "10/minute"),
    LeakyBucket(10, "10/minute"),
    LeakyBucket(10, "10/minute", "shaping"),
]
every_rule = pytest.mark.parametrize("rule", SIX_RULES, ids=lambda rule: rule.text)


def limiter_of(rule, max_keys=1_000_000, clock=None):
    """A limiter of one rule on a store of its own; its clock shows the start of a window."""
    return Limiter(rule, MemoryStore(max_keys), clock=clock or ManualClock(1_699_999_200))


def is_stored(limiter, key):
    return all(seen.raw is not None for seen in limiter.inspect(key).values())


@contextmanager
def traced():
    """Return a function that returns how many more bytes are allocated than at the start."""
    tracemalloc.start()
    try:
        start = tracemalloc.get_traced_memory()[0]
        yield lambda: tracemalloc.get_traced_memory()[0] - start
    finally:
        tracemalloc.stop()


# Construction and counters


def test_a_store_holds_a_million_keys_unless_told_otherwise():
    assert MemoryStore().max_keys == 1_000_000
    assert MemoryStore(max_keys=5).max_keys == 5


@pytest.mark.parametrize("max_keys", [0, -1, -(10**30)])
def test_max_keys_is_at_least_1(max_keys):
    with pytest.raises(InvalidRule, match=f"max_keys must be at least 1, not {max_keys}"):
        MemoryStore(max_keys)


@pytest.mark.parametrize("max_keys", [True, False, None, 1.0, math.inf, "10"])
def test_max_keys_is_an_int(max_keys):
    with pytest.raises(TypeError, match="max_keys must be an int of at least 1, not "):
        MemoryStore(max_keys)


def test_the_repr_shows_the_counters():
    limiter = limiter_of(FixedWindow(10, 60), max_keys=1)
    limiter.hit("a")
    limiter.hit("b", cost=2)
    assert repr(limiter.store) == "MemoryStore(max_keys=1, size=1, evictions=1)"


@every_rule
def test_size_counts_the_keys_in_use(rule):
    limiter = limiter_of(rule)
    assert limiter.store.size == 0
    for key in ("a", "b", "a", b"a", 1, ("a", 1)):
        limiter.hit(key)
    assert limiter.store.size == 5
    assert limiter.store.evictions == 0


@every_rule
def test_a_peek_a_refund_a_reset_and_a_denied_hit_store_nothing(rule):
    limiter = limiter_of(rule)
    limiter.peek("a")
    limiter.refund("a")
    limiter.reset("a")
    limiter.inspect("a")
    assert not limiter.hit("a", cost=11)
    assert limiter.store.size == 0


def test_a_key_counts_once_for_each_rule_of_a_limiter():
    limiter = Limiter({"user": "10/s", "tenant": "100/minute"}, MemoryStore())
    limiter.hit("a")
    assert limiter.store.size == 2
    limiter.hit({"user": "b", "tenant": "a"})
    assert limiter.store.size == 3
    limiter.hit("c", cost={"user": 1, "tenant": 0})
    assert limiter.store.size == 4


@every_rule
def test_a_reset_key_leaves_the_size_at_once(rule):
    limiter = limiter_of(rule)
    limiter.hit("a")
    limiter.hit("b")
    limiter.reset("a")
    assert limiter.store.size == 1
    limiter.reset("a")
    assert limiter.store.size == 1


@every_rule
def test_a_key_refunded_to_empty_leaves_the_size_at_once(rule):
    limiter = limiter_of(rule)
    limiter.hit("a", cost=3)
    limiter.refund("a", 2)
    assert limiter.store.size == 1
    limiter.refund("a", 1)
    assert limiter.store.size == 0


@every_rule
def test_a_key_that_was_emptied_can_be_used_again(rule):
    limiter = limiter_of(rule)
    limiter.hit("a", cost=10)
    limiter.reset("a")
    assert limiter.hit("a", cost=10).allowed
    assert limiter.store.size == 1
    limiter.refund("a", 10)
    limiter.charge("a", 10)
    assert limiter.store.size == 1
    assert not limiter.hit("a")


@every_rule
def test_size_stays_true_after_emptied_keys_have_left(rule):
    clock = ManualClock(1_699_999_200)
    limiter = limiter_of(rule, clock=clock)
    limiter.hit("a")
    limiter.reset("a")
    limiter.hit("b")
    limiter.refund("b")
    clock.advance(600)
    limiter.hit("c")
    assert limiter.store.size == 1
    limiter.reset("c")
    assert limiter.store.size == 0


@every_rule
def test_closing_a_store_forgets_everything(rule):
    limiter = limiter_of(rule)
    for key in ("a", "b", "c"):
        limiter.hit(key, cost=10)
    limiter.reset("c")
    limiter.store.close()
    assert limiter.store.size == 0
    assert limiter.hit("a", cost=10).allowed
    assert limiter.store.size == 1


def test_a_limiter_closes_only_a_store_that_it_made():
    store = MemoryStore()
    shared, own = Limiter("10/s", store), Limiter("10/s")
    shared.hit("a")
    own.hit("a")
    shared.close()
    own.close()
    assert (store.size, own.store.size) == (1, 0)


def test_a_failing_clock_leaves_the_store_as_it_was():
    time = iter([10**18, ZeroDivisionError(), 10**18])

    def clock():
        reading = next(time)
        if isinstance(reading, Exception):
            raise reading
        return reading

    limiter = limiter_of(FixedWindow(2, 60), clock=clock)
    limiter.hit("a")
    with pytest.raises(ZeroDivisionError):
        limiter.hit("a")
    assert limiter.hit("a").remaining == 0


def test_limiters_of_one_store_share_one_clock():
    store = MemoryStore()
    clock = ManualClock()
    Limiter("10/s", store, clock=clock)
    Limiter("20/s", store, clock=clock)
    with pytest.raises(
        InvalidRule, match=r"clock .* differs from this store's, ManualClock\(.*; use one clock per store"
    ):
        Limiter("30/s", store)


def test_limiters_share_usage_when_they_mean_the_same():
    store = MemoryStore()
    clock = ManualClock()
    one, same, other, elsewhere = (
        Limiter(FixedWindow(10, 60), store, clock=clock),
        Limiter("fixed-window 10/m", store, clock=clock),
        Limiter(SlidingWindowLog(10, 60), store, clock=clock),
        Limiter(FixedWindow(10, 60), store, clock=clock, prefix="elsewhere"),
    )
    one.hit("a", cost=4)
    assert [limiter.peek("a").remaining for limiter in (one, same, other, elsewhere)] == [6, 6, 10, 10]


def test_a_snapshot_is_a_copy():
    clock = ManualClock(1_699_999_200)
    store = MemoryStore()
    rule = SlidingWindowLog(10, 60)
    limiter = Limiter(rule, store, clock=clock)
    limiter.hit("a", cost=4)
    demand = Demand(Binding(rule.text, rule, ("ratekeeper", rule.algorithm, rule.text)), "a", 1)
    now, (decides,), (state,), degraded = store.snapshot([demand])
    assert (decides, degraded) == (rule, False)
    limiter.hit("a", cost=6)
    assert now == 1_699_999_200_000_000
    assert rule.words(state, now)["count"] == 4


@every_rule
def test_a_give_back_returns_what_a_hit_took(rule):
    clock = ManualClock(1_699_999_200)
    store = MemoryStore()
    limiter = Limiter(rule, store, clock=clock)
    limiter.hit("a", cost=2)
    binding = Binding(rule.text, rule, ("ratekeeper", rule.algorithm, rule.text))
    limiter.hit("a", cost=4)
    ends_us = round((clock() / 1e9 + limiter.peek("a").reset_after) * 1e6)
    receipt = Receipt(clock() // 1000, ends_us)
    outcome = store.execute([Demand(binding, "a", 4, "give_back", receipt=receipt)])
    assert outcome.answers[0][:2] == (True, 8)
    assert limiter.peek("a").remaining == 8


@every_rule
def test_inspect_shows_an_untouched_key_as_nothing(rule):
    limiter = limiter_of(rule)
    limiter.hit("b")
    seen = limiter.inspect("a")[rule.text]
    assert (seen.rule, seen.raw, seen.ttl, seen.bytes) == (rule.text, None, None, 0)


@every_rule
def test_inspect_shows_how_long_a_key_matters_and_what_it_takes(rule):
    clock = ManualClock(1_699_999_200)
    limiter = limiter_of(rule, clock=clock)
    limiter.hit("a", cost=10)
    clock.advance(20)
    seen = limiter.inspect("a")[rule.text]
    assert seen.ttl == (100 if isinstance(rule, SlidingWindowCounter) else 40)
    assert 80 < seen.bytes < 500
    assert seen.raw
    clock.advance(100)
    assert limiter.inspect("a")[rule.text].raw is None


# Keys that expire


@every_rule
def test_an_idle_key_leaves_once_its_time_has_passed_and_calls_go_on(rule):
    clock = ManualClock(1_699_999_200)
    limiter = limiter_of(rule, clock=clock)
    for number in range(100):
        limiter.hit(f"idle {number}", cost=10)
    clock.advance(600)
    for _ in range(20):
        limiter.peek("another")
    assert limiter.store.size == 0
    assert limiter.store.evictions == 0


@every_rule
def test_a_key_stays_as_long_as_it_matters(rule):
    clock = ManualClock(1_699_999_200)
    limiter = limiter_of(rule, clock=clock)
    for number in range(50):
        limiter.hit(number, cost=10)
    seconds = 119 if isinstance(rule, SlidingWindowCounter) else 59
    for _ in range(seconds):
        clock.advance(1)
        limiter.peek("another")
    assert limiter.store.size == 50
    assert all(is_stored(limiter, number) for number in range(50))


@every_rule
def test_a_key_in_use_stays_while_others_leave(rule):
    clock = ManualClock(1_699_999_200)
    limiter = limiter_of(rule, clock=clock)
    for number in range(50):
        limiter.hit(number)
    for _ in range(100):
        clock.advance(6)
        limiter.hit("busy")
    assert limiter.store.size == 1
    assert is_stored(limiter, "busy")


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["hit", "hit", "hit", "peek", "charge", "refund", "reset"]),
        st.integers(0, 30),  # key
        st.integers(1, 12),  # cost
        st.sampled_from([0, 0, 0, 1, 100_000, 999_999, 1_000_000, 7_000_001, 20_000_000, 60_000_000, 130_000_000]),
    ),
    max_size=120,
)


@given(st.sampled_from(SIX_RULES), OPERATIONS)
def test_forgetting_keys_changes_no_answer(rule, operations):
    clock = ManualClock(1_699_999_200)
    limiter = limiter_of(rule, clock=clock)
    never_forgotten = {}
    for operation, key, cost, pause_us in operations:
        now = clock() // 1000
        state = never_forgotten.get(key, EMPTY)
        if operation in ("hit", "peek"):
            state, *answer = rule.decide(state, now, cost, operation == "hit")
            decision = getattr(limiter, operation)(key, cost)
            assert decision == from_answer(rule.text, rule.limit, answer)
        elif operation == "reset":
            state = EMPTY
            limiter.reset(key)
        else:
            state = getattr(rule, operation)(state, now, cost)
            decision = getattr(limiter, operation)(key, cost)
            assert decision == from_answer(rule.text, rule.limit, rule.decide(state, now, 1, False)[1:])
        never_forgotten[key] = state
        clock.set(clock() / 10**9)
        clock.advance(pause_us / 10**6)
    in_use = [state for state in never_forgotten.values() if state and rule.expires_at(state) > clock() // 1000]
    assert limiter.store.size >= len(in_use)


# Bounded work


def looks_of(base):
    """A rule of this kind that counts how often a state is looked at, apart from decisions."""

    class Counting(base):
        looks = 0

        def expires_at(self, state):
            Counting.looks += 1
            return base.expires_at(self, state)

        def share(self, state, now):
            Counting.looks += 1
            return base.share(self, state, now)

    return Counting


def most_looks_in_a_call(counting, calls):
    most = 0
    for call in calls:
        before = counting.looks
        call()
        most = max(most, counting.looks - before)
    return most


@pytest.mark.parametrize("base", [FixedWindow, SlidingWindowLog, SlidingWindowCounter, TokenBucket, LeakyBucket])
@pytest.mark.parametrize("keys", [10, 10_000])
def test_a_call_does_bounded_work_however_many_keys_are_due_at_once(base, keys):
    counting = looks_of(base)
    clock = ManualClock(1_699_999_200)
    limiter = limiter_of(counting(100, 60), clock=clock)
    assert most_looks_in_a_call(counting, [lambda key=key: limiter.hit(key) for key in range(keys)]) <= 4
    clock.advance(600)
    calls = [lambda: limiter.hit("another"), lambda: limiter.peek("another")] * (keys // 16 + 10)
    assert most_looks_in_a_call(counting, calls) <= 32
    assert limiter.store.size == 1


@pytest.mark.parametrize("base", [FixedWindow, SlidingWindowLog, SlidingWindowCounter, TokenBucket, LeakyBucket])
@pytest.mark.parametrize("max_keys", [10, 10_000])
def test_a_call_does_bounded_work_however_many_keys_a_full_store_holds(base, max_keys):
    counting = looks_of(base)
    clock = ManualClock(1_699_999_200)
    limiter = limiter_of(
        counting(100, 3600 if base in (FixedWindow, SlidingWindowLog, SlidingWindowCounter) else 0.1), max_keys, clock
    )
    for key in range(max_keys):
        limiter.hit(key, cost=1 + key % 100)
    clock.advance(0.5)
    calls = [lambda key=key: limiter.hit(("new", key), cost=1 + key * 37 % 100) for key in range(500)]
    assert most_looks_in_a_call(counting, calls) <= 128
    assert limiter.store.size == max_keys


def test_a_flood_of_requests_on_many_short_rules_leaves_no_more_keys_than_are_in_use():
    clock = ManualClock(1_699_999_200)
    store = MemoryStore()
    limiter = Limiter({f"{number}": FixedWindow(1, 0.001) for number in range(32)}, store, clock=clock)
    sizes = []
    for key in range(100):
        limiter.hit(key)
        sizes.append(store.size)
        clock.advance(0.001)
    assert max(sizes) == 32


def test_a_flood_of_made_up_rules_leaves_nothing_of_those_that_are_gone():
    clock = ManualClock(1_699_999_200)
    store = MemoryStore()
    for number in range(100):
        rules = {f"{each}": FixedWindow(1_000 * number + each + 1, 0.001) for each in range(32)}
        limiter = Limiter(rules, store, clock=clock, group="made up", stored_by="text")
        limiter.hit("mallory")
        del limiter
        clock.advance(0.001)
    assert store.size <= 64
    assert len(inside.tables(store)) <= 64


def test_a_decision_on_a_known_key_looks_at_no_other():
    counting = looks_of(TokenBucket)
    limiter = limiter_of(counting(1000, 1))
    limiter.hit("a")
    for number in range(100):
        limiter.hit(number)
    assert most_looks_in_a_call(counting, [lambda: limiter.hit("a")] * 500) == 0


# A full store


@every_rule
def test_there_are_never_more_than_max_keys(rule):
    clock = ManualClock(1_699_999_200)
    limiter = limiter_of(rule, 7, clock)
    for number in range(500):
        limiter.hit(number, cost=1 + number * 7 % 10)
        assert limiter.store.size <= 7
        clock.advance(0.1)
    assert limiter.store.size == 7


@every_rule
def test_a_store_of_one_key_works(rule):
    limiter = limiter_of(rule, 1)
    assert limiter.hit("a", cost=5).remaining == 5
    assert limiter.hit("a", cost=5).remaining == 0
    assert limiter.hit("b", cost=10).allowed
    assert limiter.store.size == 1


@every_rule
def test_what_has_expired_goes_first_and_is_no_eviction(rule):
    clock = ManualClock(1_699_999_200)
    limiter = limiter_of(rule, 3, clock)
    for key in ("expired 1", "expired 2"):
        limiter.hit(key, cost=10)
    clock.advance(120)
    limiter.hit("light")
    for key in ("new 1", "new 2"):
        limiter.hit(key, cost=5)
    assert [is_stored(limiter, key) for key in ("light", "new 1", "new 2")] == [True, True, True]
    assert limiter.store.evictions == 0


@every_rule
def test_what_was_emptied_goes_first_and_is_no_eviction(rule):
    limiter = limiter_of(rule, 3)
    limiter.hit("light")
    limiter.hit("heavy", cost=9)
    limiter.hit("emptied", cost=5)
    limiter.reset("emptied")
    limiter.hit("new", cost=5)
    assert [is_stored(limiter, key) for key in ("light", "heavy", "new")] == [True, True, True]
    assert limiter.store.evictions == 0


@every_rule
def test_emptied_keys_make_no_room_for_more_than_max_keys(rule):
    limiter = limiter_of(rule, 2)
    for round_ in range(5):
        for key in ("a", "b", "c", "d"):
            limiter.hit((round_, key), cost=5)
            assert limiter.store.size <= 2
            limiter.reset((round_, "a"))
            limiter.refund((round_, "c"), 5)
    assert limiter.store.size <= 2


@every_rule
def test_a_store_whose_keys_were_all_emptied_has_room_for_as_many(rule):
    limiter = limiter_of(rule, 2)
    for key in ("a", "b"):
        limiter.hit(key, cost=5)
    for key in ("a", "b"):
        limiter.reset(key)
    for key in ("c", "d"):
        limiter.hit(key, cost=5)
    assert limiter.store.size == 2
    assert limiter.store.evictions == 0


@every_rule
def test_emptying_and_using_a_key_again_takes_no_room_from_others(rule):
    limiter = limiter_of(rule, 3)
    for _ in range(10):
        limiter.hit("a", cost=5)
        limiter.reset("a")
    for key in ("a", "b", "c"):
        limiter.hit(key, cost=5)
    assert limiter.store.size == 3
    assert limiter.store.evictions == 0


@every_rule
def test_a_live_key_does_not_go_while_there_is_room_because_others_were_emptied(rule):
    limiter = limiter_of(rule, 3)
    limiter.hit("light")
    for key in ("a", "b", "c"):
        limiter.hit(key, cost=5)
        limiter.reset(key)
    limiter.hit("new", cost=5)
    assert [is_stored(limiter, key) for key in ("light", "new")] == [True, True]
    assert limiter.store.evictions == 0


def test_keys_that_are_used_once_and_emptied_are_bounded_too():
    limiter = limiter_of(FixedWindow(10, 3600), 100)
    for number in range(300):
        limiter.hit(number)
        limiter.reset(number)
    with traced() as grown:
        for number in range(300, 5_000):
            limiter.hit(number)
            limiter.reset(number)
        assert grown() < 30_000
    assert limiter.store.size == 0


@every_rule
def test_then_the_smallest_share_goes(rule):
    limiter = limiter_of(rule, 3)
    limiter.hit("eight", cost=8)
    limiter.hit("two", cost=2)
    limiter.hit("nine", cost=9)
    limiter.hit("five", cost=5)
    assert [is_stored(limiter, key) for key in ("eight", "two", "nine", "five")] == [True, False, True, True]
    assert limiter.store.evictions == 1


@every_rule
def test_a_newcomer_lighter_than_all_is_the_one_that_goes(rule):
    limiter = limiter_of(rule, 2)
    limiter.hit("eight", cost=8)
    limiter.hit("nine", cost=9)
    assert limiter.hit("one").allowed
    assert [is_stored(limiter, key) for key in ("eight", "nine", "one")] == [True, True, False]
    assert limiter.store.size == 2
    assert limiter.store.evictions == 1


def test_the_share_counts_and_not_the_units():
    clock = ManualClock(1_699_999_200)
    store = MemoryStore(2)
    wide, narrow = (Limiter(FixedWindow(limit, 60), store, clock=clock, group="all") for limit in (1000, 10))
    wide.hit("300 of 1000", cost=300)
    narrow.hit("5 of 10", cost=5)
    narrow.hit("6 of 10", cost=6)
    assert not is_stored(wide, "300 of 1000")
    assert is_stored(narrow, "5 of 10")


def test_a_bucket_that_has_drained_has_a_small_share():
    clock = ManualClock()
    limiter = limiter_of(TokenBucket(100, 1), 2, clock)
    limiter.hit("early", cost=90)
    clock.advance(80)
    limiter.hit("late", cost=50)
    limiter.hit("new", cost=20)
    assert [is_stored(limiter, key) for key in ("early", "late", "new")] == [False, True, True]


@every_rule
def test_where_all_are_exhausted_the_one_that_is_full_again_soonest_goes_and_is_counted(rule):
    clock = ManualClock(1_699_999_200)
    store = MemoryStore(3)
    slow = Limiter(rule, store, clock=clock, group="all")
    fast = Limiter(FixedWindow(10, 30), store, clock=clock, group="all")
    slow.hit("a", cost=10)
    fast.hit("soonest", cost=10)
    slow.hit("b", cost=10)
    slow.hit("c", cost=10)
    assert not is_stored(fast, "soonest")
    assert [is_stored(slow, key) for key in "abc"] == [True, True, True]
    assert store.evictions == 1


def test_charged_beyond_the_limit_is_no_more_than_exhausted():
    clock = ManualClock(1_699_999_200)
    store = MemoryStore(2)
    soon = Limiter(FixedWindow(10, 30), store, clock=clock, group="all")
    later = Limiter(FixedWindow(10, 3600), store, clock=clock, group="all")
    soon.charge("a", 1000)
    later.hit("b", cost=10)
    later.hit("c", cost=10)
    assert not is_stored(soon, "a")
    assert is_stored(later, "b")


@pytest.mark.parametrize("share", [0.01, 0.05, 0.3, 1.0])
@pytest.mark.parametrize(
    "kind",
    [FixedWindow, SlidingWindowLog, SlidingWindowCounter, TokenBucket, LeakyBucket],
    ids=lambda kind: kind.__name__,
)
def test_a_flood_of_fresh_keys_never_frees_a_key_that_used_a_larger_share(kind, share):
    limiter = limiter_of(kind(100, "100/hour" if kind in (TokenBucket, LeakyBucket) else "1h"), 200)
    costs = {number: 1 + number % 100 for number in range(200)}
    for key, cost in costs.items():
        limiter.hit(key, cost=cost)
    flood = int(100 * share)
    for number in range(2000):
        limiter.hit(("fresh", number), cost=flood)
    heavier = [key for key, cost in costs.items() if cost > flood]
    assert all(is_stored(limiter, key) for key in heavier)


def test_a_flood_frees_no_heavier_key_of_other_rules_while_time_passes_and_buckets_drain():
    clock = ManualClock(1_699_999_200)
    store = MemoryStore(60)
    rules = [*SIX_RULES, TokenBucket(1000, 0.5), FixedWindow(7, 3600), SlidingWindowLog(50, 600)]
    limiters = [Limiter(rule, store, clock=clock) for rule in rules]
    flooded = Limiter(TokenBucket(20, 0.01), store, clock=clock)
    chance = random.Random(7)
    used = {}
    for number in range(54):
        position = number % len(limiters)
        limiters[position].hit(number, cost=chance.randint(1, rules[position].limit))
        used[number] = position
    for number in range(600):
        heavier = []
        for key, position in used.items():
            state = limiters[position].inspect(key)[rules[position].text].raw
            if state is not None and rules[position].share(state, clock() // 1000) > 1 / 20:
                heavier.append((key, position))
        flooded.hit(("fresh", number))
        assert all(is_stored(limiters[position], key) for key, position in heavier)
        assert store.size <= 60
        clock.advance(chance.choice([0, 0, 0.05, 0.5]))


@every_rule
def test_an_evicted_key_starts_afresh(rule):
    limiter = limiter_of(rule, 1)
    limiter.hit("a", cost=3)
    limiter.hit("b", cost=8)
    assert limiter.peek("a").remaining == 10
    assert limiter.hit("a", cost=10).allowed
    assert limiter.peek("b").remaining == 10


def test_tables_that_share_a_store_share_its_room():
    clock = ManualClock(1_699_999_200)
    store = MemoryStore(10)
    limiters = [Limiter(rule, store, clock=clock) for rule in SIX_RULES]
    for number in range(300):
        limiters[number % 6].hit(number, cost=1 + number % 9)
        clock.advance(0.01)
        assert store.size == min(10, number + 1)
    store.close()
    assert store.size == 0
    for number in range(300):
        limiters[number % 6].hit(number)
    assert store.size == 10


def test_a_request_on_more_rules_than_there_is_room_for_is_still_decided():
    limiter = Limiter({"a": "10/s", "b": "10/m", "c": "10/h"}, MemoryStore(1), clock=ManualClock())
    assert limiter.hit("key", cost=4).allowed
    assert limiter.store.size == 1


SMALL_RULES = [
    FixedWindow(100, 300),
    FixedWindow(2, 30),
    SlidingWindowLog(5, 45),
    SlidingWindowCounter(8, 60),
    TokenBucket(10, 0.1),
    TokenBucket(100, 1),
    TokenBucket(1000, 1),
    LeakyBucket(3, 2),
]


@st.composite
def steps_on_a_small_store(draw):
    """The store's room, its rules, the group of each (None: its own), and what is done on them."""
    rules = draw(st.lists(st.sampled_from(SMALL_RULES), min_size=1, max_size=4, unique=True))
    groups = [draw(st.sampled_from([None, None, "a", "b"])) for _ in rules]
    step = st.tuples(
        st.sampled_from(["hit", "hit", "hit", "hit", "charge", "refund", "reset"]),
        st.integers(0, len(rules) - 1),
        st.integers(0, 12),  # key
        st.integers(1, 100),  # cost, in percent of the limit
        st.sampled_from([0, 0, 1, 1_000_000, 4_500_000, 20_000_000, 90_000_000]),
    )
    return draw(st.integers(1, 8)), rules, groups, draw(st.lists(step, min_size=12, max_size=40))


def candidates(max_keys, group_of, standings, newcomer):
    """The keys of which the one with the smallest share may go, as the promise is written."""
    held = Counter(group_of(position) for position, _ in standings)
    own = group_of(newcomer[0])
    part = max_keys // len({*held, own})
    above = {group for group, keys in held.items() if keys > part}
    return (
        {one for one in standings if group_of(one[0]) in above}
        if held[own] < part
        else {one for one in standings if group_of(one[0]) in {*above, own}} | {newcomer}
    )


@given(steps_on_a_small_store())
def test_who_leaves_a_small_store_has_the_smallest_share_of_those_whose_rules_hold_more_than_their_part(scenario):
    max_keys, rules, groups, steps = scenario
    clock = ManualClock(1_699_999_200)
    store = MemoryStore(max_keys)
    limiters = [Limiter(rule, store, clock=clock, group=group) for rule, group in zip(rules, groups, strict=True)]

    def group_of(position):
        return groups[position] or position

    def standing(rule, state):
        return min(1.0, rule.share(state, clock() // 1000)), rule.expires_at(state)

    def standings():
        return {
            (position, key): standing(rule, state)
            for position, rule in enumerate(rules)
            for key in range(13)
            if (state := limiters[position].inspect(key)[rule.text].raw) is not None
        }

    for operation, position, key, percent, pause_us in steps:
        rule, limiter, one = rules[position], limiters[position], (position, key)
        cost = max(1, rule.limit * percent // 100)
        before, size, evictions = standings(), store.size, store.evictions
        if operation == "hit":
            taken = limiter.hit(key, cost).allowed
        elif operation == "reset":
            taken = limiter.reset(key)
        else:
            getattr(limiter, operation)(key, cost)
            taken = operation == "charge"
        after = standings()
        if taken and one not in before and size == max_keys == len(before):
            known = before | {one: standing(rule, rule.charge(None, clock() // 1000, cost))}
            (gone,) = known.keys() - after.keys()
            may_go = candidates(max_keys, group_of, before, one)
            assert gone in may_go
            assert known[gone] == min(known[each] for each in may_go)
            assert store.evictions == evictions + 1
        else:
            emptied = {one} if operation in ("refund", "reset") else set()
            assert before.keys() - after.keys() <= emptied
            assert store.evictions == evictions
        assert len(after) <= store.size <= max_keys
        clock.advance(pause_us / 10**6)


def test_all_cohorts_of_a_small_store_are_looked_at():
    clock = ManualClock(1_700_000_000)
    store = MemoryStore(3)
    hourly, slow, fast = (
        Limiter(rule, store, clock=clock, group="all")
        for rule in (FixedWindow(100, 3600), TokenBucket(100, 1), TokenBucket(100, 100))
    )
    slow.hit("drained to 2 of 100", cost=100)
    clock.advance(98)
    hourly.hit("5 of 100", cost=5)
    fast.hit("90 of 100", cost=90)
    hourly.hit("new", cost=50)
    assert not is_stored(slow, "drained to 2 of 100")
    assert is_stored(hourly, "5 of 100")


def test_one_unit_of_a_small_limit_is_not_taken_for_the_smallest_share():
    clock = ManualClock(1_700_000_000)
    store = MemoryStore(2)
    narrow, wide = (
        Limiter(rule, store, clock=clock, group="all") for rule in (FixedWindow(2, 3600), TokenBucket(100, 1))
    )
    wide.hit("drained to 2 of 100", cost=100)
    clock.advance(98)
    narrow.hit("1 of 2")
    wide.hit("new", cost=70)
    assert is_stored(narrow, "1 of 2")
    assert not is_stored(wide, "drained to 2 of 100")


# Memory


def hit_and_reset(limiter):
    limiter.hit("a")
    limiter.reset("a")


def hit_and_refund(limiter):
    limiter.hit("a")
    limiter.refund("a")


def hit_twice_and_refund_one(limiter):
    limiter.hit("a", cost=2)
    limiter.refund("a", 1)
    limiter.refund("a", 1)


@pytest.mark.parametrize("cycle", [hit_and_reset, hit_and_refund, hit_twice_and_refund_one])
@pytest.mark.parametrize("rule", [FixedWindow(10, 60), SlidingWindowLog(10, 60)], ids=lambda rule: rule.algorithm)
def test_emptying_and_using_one_key_over_and_over_costs_no_memory(rule, cycle):
    limiter = limiter_of(rule)
    for _ in range(10):
        cycle(limiter)
    with traced() as grown:
        for _ in range(5_000):
            cycle(limiter)
        assert grown() < 8_000


def test_emptying_and_using_a_key_while_time_passes_costs_no_memory():
    clock = ManualClock()
    limiter = limiter_of(TokenBucket(10, 10), clock=clock)
    for _ in range(100):
        hit_and_reset(limiter)
        clock.advance(0.25)
    with traced() as grown:
        for _ in range(3_000):
            hit_and_reset(limiter)
            clock.advance(0.25)
        assert grown() < 25_000


def test_a_flood_of_distinct_keys_keeps_the_memory_of_a_full_store_flat():
    limiter = limiter_of(FixedWindow(100, 60), 2_000)
    with traced() as grown:
        for number in range(4_000):
            limiter.hit(f"key {number}")
        full = grown()
        for number in range(4_000, 20_000):
            limiter.hit(f"key {number}")
        assert limiter.store.size == 2_000
        assert grown() < 1.1 * full


def test_a_flood_through_all_shares_keeps_the_memory_of_a_full_store_flat():
    clock = ManualClock()
    limiter = limiter_of(TokenBucket(100, 1), 300, clock)
    chance = random.Random(1)
    with traced() as grown:
        for number in range(4_000):
            limiter.hit(f"key {number}", cost=chance.randint(1, 100))
            clock.advance(0.06)
            if number == 2_000:
                full = grown()
        assert grown() < 1.5 * full


def test_a_key_that_was_emptied_and_comes_back_takes_no_more_room_than_there_is():
    store = MemoryStore(max_keys=3)
    limiter = Limiter(FixedWindow(100, 300), store, clock=ManualClock())
    for key in ("a", "b", "c"):
        limiter.hit(key)
    limiter.refund("a")
    limiter.hit("d")
    limiter.hit("a")
    assert (store.size, store.evictions) == (3, 1)


# Rules that come and go


def test_a_store_forgets_rules_that_no_limiter_has_any_more():
    clock = ManualClock()
    store = MemoryStore()
    for limit in range(1, 200):
        Limiter(FixedWindow(limit, 60), store, clock=clock).hit("a")
        clock.advance(60)
    gc.collect()
    kept = Limiter("1/s", store, clock=clock)
    for _ in range(200):
        kept.hit("a")  # forgets what has expired
        Limiter("2/s", store, clock=clock)
    assert len(inside.tables(store)) <= 3


def test_usage_outlives_the_limiter_that_counted_it():
    clock = ManualClock()
    store = MemoryStore()
    Limiter("fixed-window 2/minute", store, clock=clock).hit("a")
    gc.collect()
    for limit in range(100):
        Limiter(FixedWindow(1000 + limit, 60), store, clock=clock)
    assert Limiter("fixed-window 2/minute", store, clock=clock).hit("a").remaining == 0


def test_a_rule_that_comes_back_in_time_keeps_its_keys():
    clock = ManualClock()
    store = MemoryStore()
    first = Limiter("fixed-window 9/minute", store, clock=clock)
    second = Limiter("fixed-window 9/minute", store, clock=clock)
    del first
    gc.collect()
    for _ in range(20):
        Limiter("1/s", store, clock=clock)
    second.hit("a")
    assert Limiter("fixed-window 9/minute", store, clock=clock).peek("a").remaining == 8
