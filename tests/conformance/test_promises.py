"""What an answer promises, and the bounds of each algorithm's definition, checked against what happens afterwards."""

import itertools
import math
from fractions import Fraction
from typing import NamedTuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.conformance import strategies
from tests.conformance.kit import DRIVERS, rule_of
from tests.conformance.strategies import ALGORITHMS, START_US, limit_of, span_us
from tests.waiters import untraced

DRIVER = st.sampled_from(DRIVERS)
CHANGES = st.sampled_from(["hit"] * 8 + ["charge", "refund"])

every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)


class Played(NamedTuple):
    """What has happened in a trace."""

    clock: int  # at the end
    latest: int  # the clock may have been set back since then
    admitted: list  # hits, as (when, cost, answer)


def play(subject, start, steps):
    clock, latest, admitted, answer = start, start, [], None
    for step in steps:
        clock += _wait(step.wait, answer)
        latest = max(latest, clock)
        answer = getattr(subject, step.operation)(clock, step.cost)
        if step.operation == "hit" and answer.allowed:
            admitted.append((clock, step.cost, answer))
    return Played(clock, latest, admitted)


def _wait(wait, answer):
    if isinstance(wait, int):
        return wait
    name, _, early = wait.partition(" - ")
    moment = 0 if answer is None else answer.retry_after_us if name == "retry" else answer.reset_after_us
    return max(0, (moment or 0) - bool(early))


def played(driver, trace):
    rule, start, steps = trace
    subject = driver.subject(rule_of(rule))
    return subject, play(subject, start, steps).clock


def histories(algorithm, *, back=True):
    """Draw the history before the time in question."""
    return strategies.traces(algorithm, back=back, operations=CHANGES, max_size=12)


def hits_only(algorithm):
    return strategies.traces(algorithm, back=False, operations=st.just("hit"), min_size=10, max_size=40)


# The answer.


@every_algorithm
def test_a_denied_hit_is_denied_one_microsecond_before_retry_after_and_admitted_at_it(algorithm):
    @given(DRIVER, histories(algorithm), st.data())
    def check(driver, trace, data):
        subject, clock = played(driver, trace)
        limit = limit_of(trace[0])
        subject.charge(clock, data.draw(strategies.costs(limit)))
        cost = data.draw(st.integers(max(1, limit - 3), limit) | strategies.costs(limit, most=limit))
        denied = subject.hit(clock, cost)
        assume(not denied.allowed)
        assert not subject.hit(clock + denied.retry_after_us - 1, cost).allowed
        assert subject.hit(clock + denied.retry_after_us, cost).allowed

    check()


@every_algorithm
def test_a_cost_above_the_limit_is_denied_for_ever_and_takes_nothing(algorithm):
    @given(DRIVER, histories(algorithm), st.integers(1, 10**12), st.integers(0, 10**15))
    def check(driver, trace, excess, later):
        subject, clock = played(driver, trace)
        cost = limit_of(trace[0]) + excess
        stored = subject.stored(clock)
        assert subject.hit(clock, cost).retry_after_us is None
        assert subject.stored(clock) == stored
        assert not subject.hit(clock + later, cost).allowed

    check()


@every_algorithm
def test_exactly_remaining_further_hits_of_one_are_admitted_at_the_same_instant(algorithm):
    @given(DRIVER, histories(algorithm), st.sampled_from(["hit", "peek"]))
    def check(driver, trace, operation):
        subject, clock = played(driver, trace)
        remaining = getattr(subject, operation)(clock, 1).remaining
        if remaining > 20:  # all but the last twenty as one
            assert subject.hit(clock, remaining - 20).remaining == 20
            remaining = 20
        assert [subject.hit(clock).remaining for _ in range(remaining)] == list(range(remaining))[::-1]
        assert not subject.hit(clock).allowed

    check()


@every_algorithm
def test_a_key_answers_as_a_fresh_one_at_reset_after_and_not_one_microsecond_before(algorithm):
    @given(DRIVER, histories(algorithm), st.data())
    def check(driver, trace, data):
        rule, start, steps = trace
        limit = limit_of(rule)
        subject = driver.subject(rule_of(rule))
        clock, latest, _ = play(subject, start, steps)
        reset_after = subject.peek(clock).reset_after_us
        # Far before its state, a key only counts as untouched: once the clock is nearer, the state counts again.
        assume(clock + reset_after >= latest)
        if reset_after > 1:
            early = subject.peek(clock + reset_after - 1)
            assert early.reset_after_us == 1
            if algorithm != "sliding-window-counter":  # the last fraction of a unit no longer counts
                assert early.remaining < limit
        clock += reset_after
        fresh = driver.subject(rule_of(rule))
        assert subject.peek(clock).remaining == limit
        for _ in range(5):
            cost = data.draw(strategies.costs(limit))
            assert subject.peek(clock, cost) == fresh.peek(clock, cost)
            assert subject.hit(clock, cost) == fresh.hit(clock, cost)
            clock += data.draw(st.integers(0, span_us(rule)))

    check()


@pytest.mark.parametrize("driver", DRIVERS, ids=lambda driver: driver.name)
def test_far_before_its_state_a_key_counts_as_untouched_until_the_clock_is_nearer(driver):
    subject = driver.subject(rule_of({"algorithm": "sliding-window-log", "limit": 1, "window_us": 470}))
    assert subject.hit(START_US).allowed
    assert subject.peek(START_US - 471).remaining == 1
    assert subject.peek(START_US - 470).remaining == 0


# The bound of each definition.


@given(DRIVER, hits_only("fixed-window"))
def test_a_fixed_window_never_admits_more_than_the_limit_in_one_window_of_the_clock(driver, trace):
    rule, start, steps = trace
    admitted = play(driver.subject(rule_of(rule)), start, steps).admitted
    for number in {clock // rule["window_us"] for clock, _, _ in admitted}:
        assert sum(cost for clock, cost, _ in admitted if clock // rule["window_us"] == number) <= rule["limit"]


@given(DRIVER, hits_only("sliding-window-log"))
def test_a_sliding_log_never_admits_more_than_the_limit_in_any_window(driver, trace):
    rule, start, steps = trace
    admitted = play(driver.subject(rule_of(rule)), start, steps).admitted
    for begin, _, _ in admitted:
        in_window = [cost for clock, cost, _ in admitted if begin <= clock < begin + rule["window_us"]]
        assert sum(in_window) <= rule["limit"]


@given(DRIVER, hits_only("sliding-window-counter"))
def test_a_sliding_counter_admits_within_its_estimate_and_never_more_than_the_limit_in_one_window(driver, trace):
    rule, start, steps = trace
    limit, window = rule["limit"], rule["window_us"]
    admitted = play(driver.subject(rule_of(rule)), start, steps).admitted
    taken = {}
    for clock, cost, _ in admitted:
        number, elapsed = divmod(clock, window)
        taken[number] = taken.get(number, 0) + cost
        assert math.floor(taken[number] + taken.get(number - 1, 0) * Fraction(window - elapsed, window)) <= limit
    assert all(units <= limit for units in taken.values())


@pytest.mark.parametrize("algorithm", strategies.BUCKETS)
def test_a_bucket_never_admits_more_than_its_capacity_and_what_drains_in_any_interval(algorithm):
    @given(DRIVER, hits_only(algorithm))
    def check(driver, trace):
        rule, start, steps = trace
        rate = Fraction(*rule["rate"]) / 1_000_000
        admitted = play(driver.subject(rule_of(rule)), start, steps).admitted
        for first, (begin, _, _) in enumerate(admitted):
            units = 0
            for clock, cost, _ in admitted[first:]:
                units += cost
                assert units <= rule["capacity"] + rate * (clock - begin)

    check()


@given(DRIVER, hits_only("leaky-bucket shaping"))
def test_shaped_departures_keep_the_rate_over_any_run_of_them_to_the_microsecond(driver, trace):
    rule, start, steps = trace
    microseconds_a_unit = 1_000_000 / Fraction(*rule["rate"])
    admitted = play(driver.subject(rule_of(rule)), start, steps).admitted
    departures = [(clock + answer.delay_us, cost) for clock, cost, answer in admitted]
    assert departures == sorted(departures, key=lambda departure: departure[0])
    for first, (begin, _) in enumerate(departures):
        units = 0
        for (_, cost), (departure, _) in itertools.pairwise(departures[first:]):
            units += cost
            # each departure is rounded up to a microsecond, and rounding never adds up
            assert departure - begin > units * microseconds_a_unit - 1


@given(
    DRIVER,
    st.integers(1, 30),
    st.integers(1, 10**7),
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 31)), max_size=60),
)
def test_shaped_departures_are_never_closer_than_the_rate_where_a_unit_takes_whole_microseconds(
    driver, capacity, unit_us, arrivals
):
    rule = {"algorithm": "leaky-bucket", "capacity": capacity, "rate": [1_000_000, unit_us], "mode": "shaping"}
    subject = driver.subject(rule_of(rule))
    clock, open_at = START_US, 0
    for wait, cost in arrivals:
        clock += wait * unit_us // 10
        answer = subject.hit(clock, cost)
        if answer.allowed:
            assert clock + answer.delay_us >= open_at
            open_at = clock + answer.delay_us + cost * unit_us


def test_ten_million_hits_on_one_bucket_end_on_the_exact_rational_count():
    capacity, rate = 1_000, Fraction(70_003, 13)  # units a second
    rule = rule_of({"algorithm": "token-bucket", "capacity": capacity, "rate": [70_003, 13]})
    decide, state, admitted = rule.decide, None, 0
    with untraced():
        for now in range(START_US, START_US + 10_000_000):  # one hit each microsecond, for ten seconds
            step = decide(state, now, 1, True)
            state = step[0]
            admitted += step[1]
    tokens = capacity + rate * Fraction(9_999_999, 1_000_000)
    assert admitted == math.floor(tokens) == 54_848
    missing = 1 - (tokens - admitted)
    assert decide(state, now, 1, False)[3] == math.ceil(missing / rate * 1_000_000)
    level = rule._usage_at(state, now)[0]  # noqa: SLF001 - a decision shows it rounded
    assert Fraction(level, rule.period_us) == capacity - (tokens - admitted)


# Operations that leave no trace.


@every_algorithm
def test_a_denied_hit_and_a_peek_leave_no_trace(algorithm):
    @given(DRIVER, histories(algorithm), st.integers(1, 5))
    def check(driver, trace, excess):
        subject, clock = played(driver, trace)
        remaining = subject.peek(clock).remaining
        stored, size = subject.stored(clock), subject.size()
        for _ in range(3):
            assert not subject.hit(clock, remaining + excess).allowed
            subject.peek(clock, excess)
        assert subject.stored(clock) == stored
        assert subject.size() == size
        assert subject.peek(clock).remaining == remaining

    check()


@every_algorithm
def test_a_key_that_was_only_peeked_at_denied_or_refunded_is_not_stored(algorithm):
    @given(DRIVER, strategies.rules(algorithm))
    def check(driver, rule):
        subject = driver.subject(rule_of(rule))
        subject.peek(START_US)
        subject.hit(START_US, limit_of(rule) + 1)
        subject.refund(START_US, 1)
        subject.give_back(START_US, 1, START_US, START_US)
        subject.reset(START_US)
        assert subject.size() in (0, None)
        assert subject.stored(START_US) == {rule_of(rule).text: None}

    check()


# Operations that give back.


@every_algorithm
def test_a_refund_never_goes_below_empty(algorithm):
    @given(DRIVER, histories(algorithm), st.integers(0, 10**12))
    def check(driver, trace, excess):
        limit = limit_of(trace[0])
        subject, clock = played(driver, trace)
        subject.refund(clock, 100 * limit + excess)
        remaining = subject.peek(clock).remaining
        if algorithm == "sliding-window-counter":  # the window before cannot be refunded
            assert remaining <= limit
        else:
            assert remaining == limit
            assert subject.stored(clock) == {rule_of(trace[0]).text: None}
        assert not subject.hit(clock, remaining + 1).allowed

    check()


@every_algorithm
def test_a_refund_gives_back_as_much_as_it_says_where_that_is_in_use(algorithm):
    @given(DRIVER, strategies.rules(algorithm), st.data())
    def check(driver, rule, data):
        limit = limit_of(rule)
        taken = data.draw(st.integers(1, limit))
        refunded = data.draw(st.integers(1, taken))
        subject = driver.subject(rule_of(rule))
        subject.hit(START_US, taken)
        assert subject.refund(START_US, refunded).remaining == limit - taken + refunded

    check()


@every_algorithm
def test_a_give_back_never_admits_more_than_if_the_charge_had_not_been_and_never_less_than_without_it(algorithm):
    steps = strategies.traces(algorithm, back=False, operations=st.just("hit"), min_size=2, max_size=12)

    @given(DRIVER, steps, st.integers(0, 11), st.data())
    def check(driver, trace, chosen, data):
        rule, start, steps = trace
        given_back, never, kept = (driver.subject(rule_of(rule)) for _ in range(3))
        clock, _, admitted = play(given_back, start, steps)
        assume(admitted)
        chosen %= len(admitted)
        for number, (when, cost, _) in enumerate(admitted):
            kept.hit(when, cost)
            if number != chosen:
                assert never.hit(when, cost).allowed
        when, cost, answer = admitted[chosen]
        clock += data.draw(st.integers(0, 2) | st.integers(0, span_us(rule)))
        given_back.give_back(clock, cost, when, when + answer.reset_after_us)
        for wait in (0, 1, data.draw(st.integers(0, span_us(rule))), span_us(rule)):
            clock += wait
            most, least = never.peek(clock), kept.peek(clock)
            found = given_back.peek(clock)
            assert least.remaining <= found.remaining <= most.remaining
            assert least.reset_after_us >= found.reset_after_us >= most.reset_after_us

    check()


@every_algorithm
def test_a_hit_given_back_at_the_same_instant_leaves_the_key_as_it_was(algorithm):
    @given(DRIVER, histories(algorithm, back=False), st.data())
    def check(driver, trace, data):
        subject, clock = played(driver, trace)
        before = subject.peek(clock)
        cost = data.draw(strategies.costs(limit_of(trace[0])))
        answer = subject.hit(clock, cost)
        assume(answer.allowed)
        subject.give_back(clock, cost, clock, clock + answer.reset_after_us)
        assert subject.peek(clock) == before

    check()


BUCKET_OF_TEN = {"capacity": 10, "rate": [1_000_000, 1]}  # drains one unit a microsecond


@pytest.mark.parametrize("algorithm", [("token-bucket", None), ("leaky-bucket", "policing")])
def test_a_give_back_after_a_step_back_counts_what_had_drained_when_the_state_was_written(driver, algorithm):
    name, mode = algorithm
    subject = driver.subject(rule_of({"algorithm": name, "mode": mode, **BUCKET_OF_TEN}))
    subject.hit(START_US, 4)
    subject.hit(START_US + 3, 5)  # one of the four is left beside these five
    subject.give_back(START_US + 1, 4, START_US, START_US + 4)
    assert subject.peek(START_US + 3).remaining == 5


@pytest.mark.parametrize(
    "algorithm", [("token-bucket", None), ("leaky-bucket", "policing"), ("leaky-bucket", "shaping")]
)
def test_a_give_back_of_a_charge_later_than_the_state_returns_nothing(driver, algorithm):
    name, mode = algorithm
    subject = driver.subject(rule_of({"algorithm": name, "mode": mode, **BUCKET_OF_TEN}))
    subject.hit(START_US + 1_000, 4)
    subject.hit(START_US, 5)  # the clock stepped back so far that the four are forgotten
    subject.give_back(START_US, 4, START_US + 1_000, START_US + 1_004)
    assert subject.peek(START_US).remaining == 5


def test_in_shaping_only_the_last_in_line_is_given_back(driver):
    subject = driver.subject(rule_of({"algorithm": "leaky-bucket", "mode": "shaping", **BUCKET_OF_TEN}))
    first = subject.hit(START_US, 3)
    second = subject.hit(START_US, 2)
    subject.give_back(START_US, 3, START_US, START_US + first.reset_after_us)
    assert subject.peek(START_US).delay_us == 5
    subject.give_back(START_US, 2, START_US, START_US + second.reset_after_us)
    assert subject.peek(START_US).delay_us == 3
    subject.give_back(START_US, 3, START_US, START_US + first.reset_after_us)
    assert subject.peek(START_US).delay_us == 0


def test_a_window_gives_back_only_in_the_window_of_the_charge(driver):
    for algorithm, left in (("fixed-window", 7), ("sliding-window-counter", 3)):
        subject = driver.subject(rule_of({"algorithm": algorithm, "limit": 10, "window_us": 100}))
        subject.hit(START_US, 4)
        subject.hit(START_US + 100, 3)
        subject.give_back(START_US + 100, 4, START_US, START_US + 100)
        assert subject.peek(START_US + 100).remaining == left
        subject.give_back(START_US + 100, 2, START_US + 199, START_US + 200)
        assert subject.peek(START_US + 100).remaining == left + 2


def test_a_log_gives_back_only_units_of_the_time_of_the_charge(driver):
    subject = driver.subject(rule_of({"algorithm": "sliding-window-log", "limit": 20, "window_us": 100}))
    for clock, cost in ((0, 1), (10, 2), (20, 3), (30, 4)):
        subject.hit(START_US + clock, cost)
    for clock in (9, 11, 31):
        subject.give_back(START_US + 40, 9, START_US + clock, START_US + 130)
        assert subject.peek(START_US + 40).remaining == 10
    subject.give_back(START_US + 40, 1, START_US + 20, START_US + 120)
    assert subject.peek(START_US + 40).remaining == 11
    subject.give_back(START_US + 40, 9, START_US + 20, START_US + 120)
    assert subject.peek(START_US + 40).remaining == 13
    assert [subject.peek(START_US + clock).remaining for clock in (99, 100, 109, 110, 129, 130)] == [
        13,
        14,
        14,
        16,
        16,
        20,
    ]


def test_a_log_tells_units_of_neighbouring_microseconds_apart(driver):
    subject = driver.subject(rule_of({"algorithm": "sliding-window-log", "limit": 20, "window_us": 100}))
    for clock, cost in ((0, 1), (1, 2), (2, 4)):
        subject.hit(START_US + clock, cost)
    subject.give_back(START_US + 2, 2, START_US + 1, START_US + 101)
    assert [subject.peek(START_US + clock).remaining for clock in (2, 99, 100, 101, 102)] == [15, 15, 16, 16, 20]
    subject.give_back(START_US + 2, 4, START_US + 2, START_US + 102)
    assert subject.peek(START_US + 2).reset_after_us == 98


def test_a_log_gives_back_in_a_queue_of_many_units_of_which_some_have_left(driver):
    subject = driver.subject(rule_of({"algorithm": "sliding-window-log", "limit": 100, "window_us": 50}))
    for clock in range(90):  # the first forty leave one by one
        subject.hit(START_US + clock)
    assert subject.peek(START_US + 89).remaining == 50
    for clock in (40, 60, 89):
        subject.give_back(START_US + 89, 3, START_US + clock, START_US + clock + 50)
    assert [subject.peek(START_US + clock).remaining for clock in (89, 90, 91, 109, 110, 111, 137, 138)] == [
        53, 53, 54, 72, 72, 73, 99, 100,
    ]  # fmt: skip
