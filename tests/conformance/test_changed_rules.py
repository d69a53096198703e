"""A rule that changes in flight, under the same name on the same store, takes over the usage where that makes sense."""

import copy
from fractions import Fraction

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tests.conformance import strategies
from tests.conformance.kit import DRIVERS, rule_of
from tests.conformance.model import Answer, model_of
from tests.conformance.strategies import ALGORITHMS, DAY_US, START_US, limit_of, span_us

DRIVER = st.sampled_from(DRIVERS)
HITS = st.sampled_from(["hit", "hit", "hit", "charge"])


@st.composite
def changes(draw, algorithm, *kept):
    """Draw a trace, and another rule of the same algorithm that keeps some of the first one's numbers."""
    rule, start, steps = draw(strategies.traces(algorithm, back=False, operations=HITS, max_size=12))
    other = draw(strategies.rules(algorithm)) | {name: rule[name] for name in kept if name in rule}
    assume(span_us(other) <= 60 * DAY_US)
    return rule, start, steps, other


def play_and_change(driver, rule, start, steps, other):
    """Play a trace on a rule and on its model; return a subject with the other rule in place, the model, and when."""
    model = model_of(rule)
    old = driver.subject({"user": rule_of(rule)})
    clock = start
    for step in steps:
        clock += step.wait if isinstance(step.wait, int) else 0
        getattr(old, step.operation)(clock, step.cost)
        getattr(model, step.operation)(clock, step.cost)
    forgetful = copy.copy(model)
    forgetful.expire(clock)
    assume(vars(forgetful) == vars(model))  # a store may have forgotten what expired under the old rule, or not yet
    return old.beside({"user": rule_of(other)}), model, clock


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_another_limit_takes_over_exactly_what_is_in_use(algorithm):
    @given(DRIVER, changes(algorithm, "window_us", "rate"), st.data())
    def check(driver, change, data):
        *_, other = change
        new, model, clock = play_and_change(driver, *change)
        model.limit = limit_of(other)
        for _ in range(3):
            cost = data.draw(strategies.costs(model.limit))
            assert new.hit(clock, cost) == model.hit(clock, cost)
            clock += data.draw(st.integers(0, span_us(other)))

    check()


@given(DRIVER, changes("sliding-window-log"), st.data())
def test_another_window_of_a_log_counts_the_units_that_are_younger_than_it(driver, change, data):
    *_, other = change
    new, model, clock = play_and_change(driver, *change)
    model.limit, model.window = other["limit"], other["window_us"]
    for _ in range(3):
        cost = data.draw(strategies.costs(model.limit))
        assert new.hit(clock, cost) == model.hit(clock, cost)
        clock += data.draw(st.integers(0, span_us(other)))


# The most that a bucket remembers, so that Lua's numbers stay exact: docs/decisions.md.
MAX_UNITS = 2**42
LONGEST_DRAIN_US = 2**52


@pytest.mark.parametrize("algorithm", strategies.BUCKETS)
def test_another_rate_of_a_bucket_takes_over_its_level_rounded_up_as_far_as_a_bucket_remembers(algorithm):
    @given(DRIVER, changes(algorithm))
    @example(DRIVERS[0], beyond_the_ceiling(algorithm))
    @example(DRIVERS[-1], beyond_the_ceiling(algorithm))
    def check(driver, change):
        *_, other = change
        new, model, clock = play_and_change(driver, *change)
        model.limit, model.rate = other["capacity"], Fraction(*other["rate"]) / 1_000_000
        model.level = min(model.level, MAX_UNITS, LONGEST_DRAIN_US * model.rate)
        exact = model.peek(clock, 1)
        model.level += Fraction(1, model.rate.denominator)  # less than this is what rounding may add
        assert model.peek(clock, 1).remaining <= new.peek(clock).remaining <= exact.remaining
        assert exact.reset_after_us <= new.peek(clock).reset_after_us <= model.peek(clock, 1).reset_after_us

    check()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_changed_rule_keeps_its_promises_and_gives_no_more_than_its_own_capacity(algorithm):
    @given(DRIVER, changes(algorithm), st.data())
    def check(driver, change, data):
        *_, other = change
        limit = limit_of(other)
        new, _, clock = play_and_change(driver, *change)
        standing = new.peek(clock)
        assert 0 <= standing.remaining <= limit
        assume(standing.reset_after_us < 2**51)  # up to here, a float of seconds distinguishes microseconds
        cost = data.draw(strategies.costs(limit, most=limit))
        answer = new.hit(clock, cost)
        if not answer.allowed:
            assert not new.hit(clock + answer.retry_after_us - 1, cost).allowed
            clock += answer.retry_after_us
            answer = new.hit(clock, cost)
            assert answer.allowed
        assert answer.remaining <= limit - cost
        assert not new.hit(clock, answer.remaining + 1).allowed
        assert new.peek(clock + answer.reset_after_us - 1).reset_after_us == 1
        assert new.peek(clock + answer.reset_after_us).reset_after_us == 0
        assert new.hit(clock + answer.reset_after_us, limit).remaining == 0

    check()


def bucket(algorithm, capacity, *rate):
    name, _, mode = algorithm.partition(" ")
    return {"algorithm": name, "capacity": capacity, "rate": list(rate)} | ({"mode": mode} if mode else {})


def beyond_the_ceiling(algorithm):
    """Return a change to a rate by which the units in use would take 5,399,913,600,000,000 us to drain."""
    steps = [strategies.Step(0, "hit", 62_499)]
    return bucket(algorithm, 999_983, 1_000_000, 1), START_US, steps, bucket(algorithm, 10, 1, 86_400)


@pytest.mark.parametrize("algorithm", strategies.BUCKETS)
def test_what_would_take_longer_to_drain_by_another_rate_than_a_bucket_remembers_is_forgotten(driver, algorithm):
    rule, _, (step,), other = beyond_the_ceiling(algorithm)
    old = driver.subject({"user": rule_of(rule)})
    old.hit(START_US, step.cost)
    new = old.beside({"user": rule_of(other)})
    assert new.hit(START_US) == Answer(False, 0, LONGEST_DRAIN_US - 9 * DAY_US, LONGEST_DRAIN_US, 0)
    assert new.charge(START_US, 1).reset_after_us == LONGEST_DRAIN_US
    assert new.peek(START_US + DAY_US).reset_after_us == LONGEST_DRAIN_US - DAY_US


def window(algorithm, limit, window_us):
    return {"user": rule_of({"algorithm": algorithm, "limit": limit, "window_us": window_us})}


@pytest.mark.parametrize("algorithm", ["fixed-window", "sliding-window-counter"])
def test_a_longer_window_takes_over_the_count_of_the_window_within_it(driver, algorithm):
    old = driver.subject(window(algorithm, 10, 60_000_000))
    old.hit(START_US, 4)  # 1,700,000,000 s is 800 s into an hour
    new = old.beside(window(algorithm, 10, 3_600_000_000))
    assert new.peek(START_US + 2_799_999_999).remaining == 6
    assert new.peek(START_US).reset_after_us == (1 if algorithm == "fixed-window" else 2) * 3_600_000_000 - 800_000_000


def test_a_shorter_fixed_window_forgets_a_count_whose_window_began_before_it(driver):
    old = driver.subject(window("fixed-window", 10, 3_600_000_000))
    old.hit(START_US, 4)
    new = old.beside(window("fixed-window", 10, 60_000_000))
    assert new.peek(START_US).remaining == 10
    assert new.peek(START_US - 800_000_000).remaining == 6


def test_a_shorter_window_of_a_counter_takes_the_count_for_the_window_before_where_that_is_when_it_began(driver):
    old = driver.subject(window("sliding-window-counter", 10, 120))
    hour_us = 1_699_999_200_000_000  # a multiple of both windows
    old.hit(hour_us + 70, 4)
    new = old.beside(window("sliding-window-counter", 10, 60))
    assert [new.peek(hour_us + clock).remaining for clock in (59, 60, 90, 105, 119, 120)] == [6, 6, 8, 9, 10, 10]


def test_after_a_step_back_a_changed_window_still_finds_the_stored_one(driver):
    hour_us = 1_699_999_200_000_000
    for algorithm, reset_after_us in (("fixed-window", 61), ("sliding-window-counter", 121)):
        old = driver.subject(window(algorithm, 10, 20))
        old.hit(hour_us + 20, 4)
        new = old.beside(window(algorithm, 10, 60))
        assert new.peek(hour_us - 1).remaining == 6
        assert new.peek(hour_us - 1).reset_after_us == reset_after_us
        assert new.peek(hour_us - 61).remaining == 10
