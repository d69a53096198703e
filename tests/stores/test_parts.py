"""A full memory store divides its room: no rule's keys crowd out those of a rule that has no more than its part."""

import gc
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekeeper import FixedWindow, LeakyBucket, Limiter, SlidingWindowCounter, SlidingWindowLog, TokenBucket
from ratekeeper.algorithms import EMPTY
from ratekeeper.ruleset import from_answer
from ratekeeper.stores import MemoryStore
from ratekeeper.testing import ManualClock
from tests import inside

YEAR = "365d"
SIX_RULES = [
    FixedWindow(10, 3600),
    SlidingWindowLog(10, 3600),
    SlidingWindowCounter(10, 3600),
    TokenBucket(10, "10/hour"),
    LeakyBucket(10, "10/hour"),
    LeakyBucket(10, "10/hour", "shaping"),
]
every_rule = pytest.mark.parametrize("rule", SIX_RULES, ids=lambda rule: rule.text)


def admitted(limiter, key, hits):
    return sum(limiter.hit(key).allowed for _ in range(hits))


@every_rule
def test_made_up_keys_on_another_rule_forget_no_victim_and_let_every_newcomer_be_counted(rule):
    clock, store = ManualClock(), MemoryStore(1_000)
    limiter = Limiter(rule, store, clock=clock)
    assert admitted(limiter, "victim", 9) == 9
    flooded = Limiter(FixedWindow(1, YEAR), store, clock=clock)
    for number in range(3_000):
        flooded.hit(f"made up {number}")
    assert admitted(limiter, "victim", 200) == 1
    assert [admitted(limiter, f"newcomer {number}", 200) for number in range(300)] == [10] * 300
    assert store.size == 1_000


@every_rule
def test_made_up_rules_of_one_group_forget_no_victim_and_let_every_newcomer_be_counted(rule):
    clock, store = ManualClock(), MemoryStore(1_000)
    limiter = Limiter(rule, store, clock=clock)
    assert admitted(limiter, "victim", 9) == 9
    for number in range(1_000):
        limits = [f"fixed-window 1/{8 * number + each + 1_000}h" for each in range(8)]
        assert Limiter(limits, store, clock=clock, group="made up").hit("anybody")
    gc.collect()
    assert admitted(limiter, "victim", 200) == 1
    assert [admitted(limiter, f"newcomer {number}", 200) for number in range(300)] == [10] * 300


def filled(max_keys, **limits):
    """A store, and limiters on it by name; the first has filled the store with keys that have used up their limit."""
    clock, store = ManualClock(), MemoryStore(max_keys)
    limiters = [
        Limiter({name: FixedWindow(1, YEAR)}, store, clock=clock, group=group) for name, group in limits.items()
    ]
    for number in range(max_keys):
        limiters[0].hit(number)
    return store, limiters


def held(limiter, keys):
    """How many of these keys the store holds."""
    return sum(not limiter.peek(key).allowed for key in range(keys))


@pytest.mark.parametrize(("rules", "parts"), [(2, 50), (3, 33), (4, 25), (100, 1)])
def test_each_rule_gets_an_equal_part_of_a_store_that_another_has_filled(rules, parts):
    store, limiters = filled(100, **{f"rule {number}": None for number in range(rules)})
    for number in range(200):
        for limiter in limiters:
            limiter.hit(1_000 + number)
    assert store.size == 100
    assert [sum(not limiter.peek(1_000 + number) for number in range(200)) >= parts for limiter in limiters[1:]] == [
        True
    ] * (rules - 1)


def test_the_rules_of_one_group_have_one_part():
    _, (filler, *others, last) = filled(90, filler=None, a="g", b="g", c="g", d="g", last=None)
    for number in range(200):
        for limiter in others:
            limiter.hit(number)
    assert sum(held(limiter, 200) for limiter in others) == 45
    for number in range(200):
        last.hit(number)
    assert held(last, 200) == 30
    assert (held(filler, 90), sum(held(limiter, 200) for limiter in others)) == (30, 30)


def test_a_group_that_has_its_part_competes_with_its_own_keys():
    _, (filler, other) = filled(10, filler=None, other=None)
    for number in range(5):
        other.hit(number)
    other.hit("one more")
    assert (held(filler, 10), held(other, 5)) == (5, 4)
    assert not other.peek("one more")


def test_above_their_parts_the_share_that_was_used_decides():
    clock, store = ManualClock(), MemoryStore(90)
    light, heavy, idle = (Limiter({name: FixedWindow(10, YEAR)}, store, clock=clock) for name in ("l", "h", "i"))
    idle.hit("one")
    for number in range(89):
        light.hit(number)
    for number in range(80):
        heavy.hit(number, cost=9)
    assert store.size == 90
    assert sum(light.peek(number).remaining == 9 for number in range(89)) == 30  # its part
    assert sum(heavy.peek(number).remaining == 1 for number in range(80)) == 59
    assert idle.peek("one").remaining == 9


def test_a_rule_that_has_a_limiter_of_its_own_leaves_the_group_of_others_that_use_it():
    clock, store = ManualClock(), MemoryStore(90)
    rule = {"user": FixedWindow(1, YEAR)}
    grouped = Limiter(rule, store, clock=clock, group="made up")
    for number in range(20):
        grouped.hit(number)
    own = Limiter(rule, store, clock=clock)
    made_up = [Limiter({name: FixedWindow(1, YEAR)}, store, clock=clock, group="made up") for name in ("a", "b", "c")]
    for number in range(200):
        for limiter in made_up:
            limiter.hit(number)
    assert held(own, 20) == 20
    for number in range(200):
        own.hit(number)
    assert held(own, 200) == 45


def test_a_closed_store_has_all_its_room_again_also_that_of_rules_that_are_gone():
    clock, store = ManualClock(), MemoryStore(20)
    kept = Limiter("10/day", store, clock=clock)
    for limit in (1, 2, 3):
        Limiter(FixedWindow(limit, YEAR), store, clock=clock).hit("k")
    gc.collect()
    Limiter("1/s", store, clock=clock)
    store.close()
    for number in range(20):
        kept.hit(number)
    assert (store.size, store.evictions) == (20, 0)


def test_limiters_of_one_rule_share_usage_whatever_their_groups():
    clock, store = ManualClock(), MemoryStore()
    limiters = [Limiter("fixed-window 3/day", store, clock=clock, group=group) for group in ("a", None, "b")]
    assert [limiter.hit("k").allowed for limiter in limiters * 2] == [True] * 3 + [False] * 3


# The promise, as a property.


@st.composite
def floods(draw):
    """The store's room; quiet rules; rules that are flooded, of one group or each of its own; and what is done."""
    quiet = draw(st.lists(st.sampled_from(SIX_RULES), min_size=1, max_size=3, unique=True))
    flooded = draw(st.lists(st.sampled_from([1, 5, 1_000]), min_size=1, max_size=3))
    are_grouped = draw(st.booleans())
    groups = len(quiet) + (1 if are_grouped else len(flooded))
    max_keys = draw(st.integers(groups, 40))
    operation = st.tuples(
        st.integers(0, len(quiet) - 1),
        st.integers(0, max_keys // groups - 1),  # as many keys as the rule's part has
        st.sampled_from(["hit", "hit", "hit", "hit", "peek", "charge", "refund", "reset"]),
        st.integers(1, 11),  # cost
        st.integers(0, 30),  # fresh keys that hit the flooded rules
        st.sampled_from([0, 0, 0, 1, 400_000_000, 3_600_000_000]),  # microseconds that pass
    )
    return max_keys, quiet, flooded, are_grouped, draw(st.lists(operation, min_size=5, max_size=40))


@given(floods())
def test_a_rule_that_needs_no_more_than_its_part_is_counted_exactly_whatever_floods_the_others(scenario):
    max_keys, quiet, flooded, are_grouped, operations = scenario
    clock, store = ManualClock(1_699_999_200), MemoryStore(max_keys)
    limiters = [Limiter(rule, store, clock=clock) for rule in quiet]
    floods = [
        Limiter({f"flooded {number}": FixedWindow(limit, YEAR)}, store, clock=clock, group="g" if are_grouped else None)
        for number, limit in enumerate(flooded)
    ]
    never_forgotten = {}
    fresh = 0

    def flood(times):
        nonlocal fresh
        for fresh in range(fresh, fresh + times):  # noqa: B020 - goes on where the last flood ended
            floods[fresh % len(floods)].hit(fresh, cost=1 + fresh % flooded[fresh % len(floods)])

    flood(2 * max_keys)
    for position, key, operation, cost, times, pause_us in operations:
        rule, limiter = quiet[position], limiters[position]
        now, state = clock() // 1000, never_forgotten.get((position, key), EMPTY)
        if operation in ("hit", "peek"):
            state, *answer = rule.decide(state, now, cost, operation == "hit")
            assert getattr(limiter, operation)(key, cost) == from_answer(rule.text, rule.limit, answer)
        elif operation == "reset":
            state = EMPTY
            limiter.reset(key)
        else:
            state = getattr(rule, operation)(state, now, cost)
            answer = rule.decide(state, now, 1, False)[1:]
            assert getattr(limiter, operation)(key, cost) == from_answer(rule.text, rule.limit, answer)
        never_forgotten[position, key] = state
        flood(times)
        clock.advance(pause_us / 1_000_000)
        assert store.size <= max_keys


# Bytes


def bytes_for(make):
    """The bytes that a thousand times this adds to what was there after some."""
    for number in range(200):
        make(number)
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(200, 1_200):
            make(number)
        gc.collect()
        return tracemalloc.get_traced_memory()[0] / 1_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("rule", "most"),
    [
        (FixedWindow(10, YEAR), 190),
        (SlidingWindowLog(10, YEAR), 250),
        (SlidingWindowCounter(10, YEAR), 190),
        (TokenBucket(10, "1/day"), 180),
        (LeakyBucket(10, "1/day"), 180),
    ],
    ids=lambda value: getattr(value, "algorithm", value),
)
def test_the_bytes_of_a_key(rule, most):
    limiter = Limiter(rule, clock=ManualClock())
    for number in range(400):
        limiter.hit(f"before: {number:06}")
    assert bytes_for(lambda number: limiter.hit(f"user: {number:06}")) < most


@pytest.mark.parametrize(
    "make",
    [
        lambda number: FixedWindow(1 + number, YEAR),
        lambda number: SlidingWindowLog(1 + number, YEAR),
        lambda number: SlidingWindowCounter(1 + number, YEAR),
        lambda number: TokenBucket(1 + number, "1/day"),
        lambda number: LeakyBucket(1 + number, "1/day"),
    ],
    ids=lambda make: make(0).algorithm,
)
def test_the_bytes_of_a_rule_that_was_used_once_with_its_key(make):
    clock, store = ManualClock(), MemoryStore()
    assert bytes_for(lambda number: Limiter(make(number), store, clock=clock, group="g").hit("somebody")) < 1_600


def test_made_up_rules_take_no_more_memory_than_as_many_keys_as_there_is_room_for():
    clock, store = ManualClock(), MemoryStore(900)

    def make(number):
        limits = {f"{number} a": FixedWindow(1, YEAR), f"{number} b": TokenBucket(1, "1/day")}
        Limiter(limits, store, clock=clock, group="g").hit(f"key {number}")

    tracemalloc.start()
    try:
        held = []
        for number in range(3_000):
            make(number)
            if number % 500 == 499:
                gc.collect()
                held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert len(inside.tables(store)) <= store.size <= 105
    assert max(held) < 900 * 250
