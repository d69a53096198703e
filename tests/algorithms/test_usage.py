"""What a rule provides besides its decisions: its text, when a state ends, the share in use, the state in words."""

from fractions import Fraction

import pytest

from ratekeeper import FixedWindow, InvalidRule, LeakyBucket, SlidingWindowCounter, SlidingWindowLog, TokenBucket
from ratekeeper.algorithms import EMPTY

NOON_US = 1_700_049_600_000_000  # a multiple of every window here
NOON = 1_700_049_600

MINUTE_RULES = [FixedWindow(10, 60), SlidingWindowLog(10, 60), SlidingWindowCounter(10, 60)]
BUCKETS = [TokenBucket(10, 2), LeakyBucket(10, 2), LeakyBucket(10, 2, "shaping")]
RULES = [*MINUTE_RULES, *BUCKETS]

every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.text)
every_bucket = pytest.mark.parametrize("rule", BUCKETS, ids=lambda rule: rule.text)


def after(rule, *charges):
    """Return the state after these charges of (seconds past noon, units)."""
    state = None
    for seconds, units in charges:
        state = rule.charge(state, NOON_US + round(seconds * 1_000_000), units)
    return state


def at(seconds):
    return NOON_US + round(seconds * 1_000_000)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (FixedWindow(5, 60), "fixed-window 5/minute"),
        (SlidingWindowLog(5, 1.5), "sliding-window-log 5/1500ms"),
        (SlidingWindowCounter(5, 3600), "sliding-window-counter 5/hour"),
        (TokenBucket(20, 10), "token-bucket 10/s burst 20"),
        (TokenBucket(20, Fraction(7, 13)), "token-bucket 7/13s burst 20"),
        (LeakyBucket(20, 10), "leaky-bucket 10/s burst 20"),
        (LeakyBucket(20, 10, "shaping"), "leaky-bucket 10/s burst 20 shaping"),
    ],
)
def test_a_rule_has_a_text(rule, text):
    assert rule.text == text


@pytest.mark.parametrize(
    ("rule", "span_us"),
    [
        (FixedWindow(5, 60), 60_000_000),
        (SlidingWindowLog(5, 60), 60_000_000),
        (SlidingWindowCounter(5, 60), 120_000_000),
        (TokenBucket(20, 10), 2_000_000),
        (LeakyBucket(1, 3), 333_334),
    ],
)
def test_a_rule_knows_how_long_a_full_key_takes_to_be_untouched_again(rule, span_us):
    assert rule.span_us == span_us


def test_only_a_leaky_bucket_in_that_mode_shapes():
    assert [rule.shapes for rule in RULES] == [False, False, False, False, False, True]


def test_numbers_are_kept_as_they_were_meant():
    assert FixedWindow(5, "1m") == FixedWindow(limit=5, window=60)
    assert (FixedWindow(5, "1500ms").window, FixedWindow(5, "1500ms").window_us) == (1.5, 1_500_000)
    assert (SlidingWindowLog(5, "1m").window, SlidingWindowLog(5, "1m").window_us) == (60, 60_000_000)
    assert (SlidingWindowCounter(5, "1m").window, SlidingWindowCounter(5, "1m").window_us) == (60, 60_000_000)
    assert (TokenBucket(5, "10/minute").refill_rate, TokenBucket(5, "10/minute").limit) == (Fraction(1, 6), 5)
    assert (LeakyBucket(5, 0.1).leak_rate, LeakyBucket(5, 0.1).mode) == (Fraction(1, 10), "policing")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: FixedWindow(0, 60), "limit must be from 1 to"),
        (lambda: SlidingWindowLog(0, 60), "limit must be from 1 to"),
        (lambda: SlidingWindowCounter(0, 60), "limit must be from 1 to"),
        (lambda: TokenBucket(0, 1), "capacity must be from 1 to"),
        (lambda: LeakyBucket(0, 1), "capacity must be from 1 to"),
        (lambda: FixedWindow(1, 0), "window must be longer than 0"),
        (lambda: SlidingWindowLog(1, 0), "window must be longer than 0"),
        (lambda: SlidingWindowCounter(1, 0), "window must be longer than 0"),
        (lambda: TokenBucket(1, 0), "refill_rate must be above 0"),
        (lambda: LeakyBucket(1, 0), "leak_rate must be above 0"),
        (lambda: TokenBucket(10**12, Fraction(1, 86_400)), "refill_rate .* takes more than 71 years"),
        (lambda: LeakyBucket(1, 1, "shape"), "^mode must be 'policing' or 'shaping', not 'shape'$"),
    ],
)
def test_a_bad_number_is_named(make, words):
    with pytest.raises(InvalidRule, match=words):
        make()


def test_a_state_ends_when_the_key_is_as_good_as_untouched():
    fixed, log, counter = MINUTE_RULES
    assert fixed.expires_at(after(fixed, (10, 3))) == at(60)
    assert log.expires_at(after(log, (10, 3), (20, 1))) == at(80)
    assert counter.expires_at(after(counter, (10, 3))) == at(120)
    assert counter.expires_at(counter.refund(after(counter, (10, 3), (70, 1)), at(70), 1)) == at(120)
    for bucket in BUCKETS:
        assert bucket.expires_at(after(bucket, (10, 3))) == at(11.5)
        assert bucket.expires_at(after(bucket, (10, 25))) == at(22.5)


@every_bucket
def test_a_bucket_ends_at_the_first_whole_microsecond_at_which_it_is_empty(rule):
    third = type(rule)(10, 3)
    assert third.expires_at(after(third, (0, 1))) == at(0) + 333_334
    assert third.expires_at(after(third, (0, 3))) == at(1)


def test_a_state_that_another_rule_wrote_ends_by_this_rule():
    assert FixedWindow(10, 90).expires_at(after(FixedWindow(10, 60), (60, 1))) == at(90)
    assert SlidingWindowCounter(10, 90).expires_at(after(SlidingWindowCounter(10, 60), (60, 1))) == at(180)
    assert SlidingWindowLog(10, 90).expires_at(after(SlidingWindowLog(10, 60), (60, 1))) == at(150)
    assert TokenBucket(10, 3).expires_at(after(TokenBucket(10, 2), (0, 1))) == at(0) + 333_334
    assert TokenBucket(10, Fraction(7, 13)).expires_at(after(TokenBucket(10, 2), (0, 7))) == at(13)


@every_rule
def test_the_share_in_use_is_of_the_limit_and_may_pass_one(rule):
    assert rule.share(after(rule, (0, 4)), at(0)) == 0.4
    assert rule.share(after(rule, (0, 4), (0, 9)), at(0)) == 1.3


def test_the_share_fades_as_usage_does():
    fixed, log, counter = MINUTE_RULES
    assert fixed.share(after(fixed, (0, 4)), at(60)) == 0
    assert log.share(after(log, (0, 1), (30, 4)), at(60)) == 0.4
    assert counter.share(after(counter, (0, 4), (60, 1)), at(75)) == pytest.approx(0.4)
    assert counter.share(after(counter, (0, 4), (60, 1)), at(59)) == pytest.approx(0.5)  # stepped back
    for bucket in BUCKETS:
        assert bucket.share(after(bucket, (0, 4)), at(0.5)) == 0.3


def test_words_of_a_fixed_window():
    rule = FixedWindow(10, 60)
    assert rule.words(after(rule, (70, 4)), at(80)) == {"window_start": NOON + 60, "window_end": NOON + 120, "count": 4}
    assert rule.words(None, at(80)) == {"window_start": NOON + 60, "window_end": NOON + 120, "count": 0}


def test_words_of_a_sliding_window_log():
    rule = SlidingWindowLog(10, 60)
    state = after(rule, (0, 1), (10, 2), (20.5, 3))
    assert rule.words(state, at(30)) == {
        "count": 6,
        "entries": [(NOON, 1), (NOON + 10, 2), (NOON + 20.5, 3)],
        "window": 60,
    }
    assert rule.words(state, at(60)) == {"count": 5, "entries": [(NOON + 10, 2), (NOON + 20.5, 3)], "window": 60}
    assert rule.words(state, at(90)) == rule.words(None, at(90)) == {"count": 0, "entries": [], "window": 60}


def test_words_of_a_sliding_window_counter():
    rule = SlidingWindowCounter(10, 60)
    assert rule.words(after(rule, (0, 4), (60, 3)), at(75)) == {
        "window_start": NOON + 60,
        "window_end": NOON + 120,
        "count": 3,
        "before": 4,
        "weight": 0.75,
        "estimate": 6.0,
    }
    assert rule.words(after(rule, (0, 4), (60, 3)), at(45))["estimate"] == 7  # stepped back: at the window's start


def test_words_of_the_buckets():
    token, policing, shaping = BUCKETS
    assert token.words(after(token, (0, 4)), at(0.25)) == {"tokens": 6.5, "capacity": 10, "refill_rate": 2.0}
    assert policing.words(after(policing, (0, 4)), at(0.25)) == {"level": 3.5, "capacity": 10, "leak_rate": 2.0}
    assert shaping.words(after(shaping, (0, 4)), at(0.25)) == {
        "level": 3.5,
        "capacity": 10,
        "leak_rate": 2.0,
        "next_departure": NOON + 2,
    }
    third = LeakyBucket(10, 3, "shaping")
    assert third.words(after(third, (0, 1)), at(0))["next_departure"] == NOON + 0.333334


@every_rule
def test_a_state_that_has_become_untouched_is_empty(rule):
    assert rule.refund(after(rule, (0, 4)), at(0), 4) == EMPTY
    assert rule.refund(after(rule, (0, 4)), at(0), 3) != EMPTY
    assert rule.refund(None, at(0), 1) == EMPTY


@every_rule
def test_an_empty_state_decides_as_none_does(rule):
    for consume in (True, False):
        assert rule.decide(EMPTY, at(1), 3, consume)[1:] == rule.decide(None, at(1), 3, consume)[1:]


@every_rule
def test_what_is_denied_or_peeked_at_comes_back_with_its_state(rule):
    state = after(rule, (0, 8))
    assert rule.decide(state, at(0), 3, True)[0] is state
    assert rule.decide(state, at(0), 2, False)[0] is state


@pytest.mark.parametrize("rule", MINUTE_RULES, ids=lambda rule: rule.text)
def test_charges_pile_up_to_two_to_the_42_units_and_no_further(rule):
    state = after(rule, (0, 2**42 - 1))
    assert rule.share(state, at(0)) == (2**42 - 1) / 10
    state = rule.charge(state, at(0), 1)
    assert rule.share(state, at(0)) == 2**42 / 10
    state = rule.charge(state, at(0), 10**30)
    assert rule.share(state, at(0)) == 2**42 / 10


@every_bucket
def test_charges_pile_up_in_a_bucket_to_two_to_the_42_units_and_no_further(rule):
    fast = type(rule)(10, 2_000)
    assert fast.share(after(fast, (0, 2**42 - 1)), at(0)) == (2**42 - 1) / 10
    assert fast.share(after(fast, (0, 2**42), (0, 1)), at(0)) == 2**42 / 10


@every_bucket
def test_charges_pile_up_in_a_bucket_to_what_drains_in_two_to_the_52_microseconds_and_no_further(rule):
    most_us = 2**52
    state = after(rule, (0, 10**12))
    assert rule.expires_at(state) == at(0) + most_us
    assert rule.expires_at(after(rule, (0, most_us * 2 // 1_000_000))) <= at(0) + most_us
    assert rule.expires_at(after(rule, (0, most_us * 2 // 1_000_000))) > at(0) + most_us - 500_000


def test_a_charge_on_a_log_that_can_pile_up_no_further_does_not_put_off_its_end():
    rule = SlidingWindowLog(10, 60)
    state = after(rule, (0, 2**42), (30, 1))
    assert rule.expires_at(state) == at(60)
    assert rule.words(state, at(30))["entries"] == [(NOON, 2**42)]


def test_a_level_that_a_much_slower_rate_takes_over_piles_up_no_further_than_charges_do():
    fast, slow = TokenBucket(1_000_000, 1), TokenBucket(1, "1/day")
    state = after(fast, (0, 1_000_000))
    assert slow.decide(state, at(0), 1, False)[3] <= 2**52
    assert slow.expires_at(state) <= at(0) + 2**52
