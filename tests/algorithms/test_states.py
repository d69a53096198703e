"""A state that was written to a file is the same when it is read again."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ratekeeper.algorithms import ALGORITHMS, SlidingWindowLog, TokenBucket, all_of
from ratekeeper.rates import MAX_USAGE

NOW_US = 1_700_000_000_000_000
RULES = all_of(10, 60_000_000)
OF_NUMBERS = [rule for rule in RULES if type(rule) is not SlidingWindowLog]
ODD = st.one_of(st.sampled_from([0, -1, 1 << 53, 1 << 63, -(1 << 63), 10**40, 10**400]), st.integers())
STEPS = st.lists(
    st.tuples(st.integers(0, 70_000_000), st.sampled_from(["hit", "charge"]), st.integers(1, 9)), min_size=1
)


def played(rule, steps):
    """Return the state after these steps, and when that is."""
    state, now = None, NOW_US
    for wait, operation, cost in steps:
        now += wait
        state = rule.decide(state, now, cost, True)[0] if operation == "hit" else rule.charge(state, now, cost)
    return state, now


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.text)
def test_what_is_restored_goes_on_as_what_was_dumped(rule):
    @given(STEPS, STEPS)
    @example([(0, "charge", MAX_USAGE)], [(0, "hit", 1)])
    @example([(10_000_000, "hit", 1)] * 9, [(10_000_000, "hit", 1)] * 9)  # a log that begins to forget
    def check(steps, more):
        state, now = played(rule, steps)
        again = rule.restore(rule.dump(state))
        assert type(again) is type(state)
        assert rule.dump(again) == rule.dump(state)
        for wait, _, cost in more:
            now += wait
            assert rule.expires_at(again) == rule.expires_at(state)
            assert rule.words(again, now) == rule.words(state, now)
            state, *answer = rule.decide(state, now, cost, True)
            again, *same = rule.decide(again, now, cost, True)
            assert same == answer

    check()


@pytest.mark.parametrize("rule", OF_NUMBERS, ids=lambda rule: rule.text)
def test_a_state_of_numbers_is_restored_as_it_was(rule):
    state, _ = played(rule, [(0, "hit", 3), (7, "charge", 50)])
    assert rule.restore(rule.dump(state)) == state


def test_an_expired_unit_of_a_log_is_not_written():
    rule = SlidingWindowLog(1000, 60)
    state, now = played(rule, [(100_000, "hit", 1)] * 700)
    assert len(rule.dump(state)) == 8 * (3 + 2 * 600) < 8 * len(state)
    assert rule.words(rule.restore(rule.dump(state)), now) == rule.words(state, now)


@pytest.mark.parametrize("value", ["", "1 2", "1 2 x", "1 2 3 4", b"", b"12345678", 7, None])
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda it: it.algorithm)
def test_what_is_no_state_is_refused(algorithm, value):
    with pytest.raises((ValueError, TypeError, AttributeError)):
        algorithm.of(10, 60_000_000).restore(value)


@pytest.mark.parametrize("rule", OF_NUMBERS, ids=lambda rule: rule.text)
def test_a_state_with_another_number_in_it_is_refused_or_answers(rule):
    @given(STEPS, st.integers(0, 2), ODD)
    @example([(0, "hit", 1)], 2, 0)  # the unit in which a level was counted
    def check(steps, at, number):
        state, now = played(rule, steps)
        numbers = rule.dump(state).split()
        numbers[at] = str(number)
        try:
            state = rule.restore(" ".join(numbers))
        except ValueError:
            return
        for consume in (False, True):
            _, allowed, _, retry_after, reset_after, delay = rule.decide(state, now, 1, consume)
            assert isinstance(allowed, bool)
            assert all(time is None or time / 1e6 < math.inf for time in (retry_after, reset_after, delay))
        for after in (rule.charge(state, now, 1), rule.refund(state, now, 1), rule.give_back(state, now, 1, now, now)):
            assert not after or isinstance(rule.dump(after), str)
        assert rule.expires_at(state) / 1e6 < math.inf
        assert rule.share(state, now) < math.inf
        assert rule.words(state, now)

    check()


def test_a_state_reads_as_the_numbers_that_it_has():
    rule = TokenBucket(10, "1/s")
    assert rule.dump(rule.decide(None, NOW_US, 3, True)[0]) == f"3000000 {NOW_US} 1000000"
