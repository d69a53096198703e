"""`rule` makes a rule from its algorithm's name and its fields, with the same defaults everywhere."""

from datetime import timedelta
from fractions import Fraction

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
    parse,
    rule,
)
from ratekeeper.algorithms import ALGORITHMS, BY_NAME

A_MINUTE = Fraction(100, 60)


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ("fixed_window", FixedWindow(100, 60)),
        ("sliding_window_log", SlidingWindowLog(100, 60)),
        ("sliding_window_counter", SlidingWindowCounter(100, 60)),
        ("token_bucket", TokenBucket(100, A_MINUTE)),
        ("leaky_bucket", LeakyBucket(100, A_MINUTE, "policing")),
    ],
)
def test_a_limit_alone_is_a_window_of_a_minute_or_a_bucket_that_fills_in_one(algorithm, expected):
    assert rule(algorithm, limit=100) == expected
    assert rule(algorithm.replace("_", "-"), limit=100) == expected
    assert rule(algorithm.upper(), limit=100) == expected


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (rule("fixed-window", limit=5, window="1h"), FixedWindow(5, 3600)),
        (rule("moving_window", limit=5, window=timedelta(minutes=2)), SlidingWindowLog(5, 120)),
        (rule("token-bucket", capacity=20, refill_rate=10), TokenBucket(20, 10)),
        (rule("token-bucket", limit=100, capacity=20), TokenBucket(20, A_MINUTE)),
        (rule("token-bucket", limit=100, refill_rate="10/s"), TokenBucket(100, 10)),
        (rule("token-bucket", limit=100, capacity=20, refill_rate=10), TokenBucket(20, 10)),
        (rule("token-bucket", limit=10, window="100ms"), TokenBucket(10, 100)),
        (rule("leaky-bucket", limit=10, window=2, capacity=3, mode="shaping"), LeakyBucket(3, 5, "shaping")),
        (rule("leaky-bucket", capacity=20, leak_rate=0.1), LeakyBucket(20, Fraction(1, 10))),
    ],
)
def test_what_is_given_says_more_than_the_limit(made, expected):
    assert made == expected


@pytest.mark.parametrize("algorithm", BY_NAME)
def test_what_has_its_default_may_be_given_to_every_algorithm(algorithm):
    empty = {"capacity": None, "refill_rate": None, "leak_rate": None}
    assert rule(algorithm, limit=7, window=60, mode="policing", **empty) == rule(algorithm, limit=7)
    assert rule(algorithm, limit=7, window="1m") == rule(algorithm, limit=7)


def test_a_window_of_a_minute_may_stand_beside_a_rate():
    assert rule("token-bucket", capacity=20, refill_rate=10, window=60) == TokenBucket(20, 10)


@given(st.sampled_from(ALGORITHMS), st.integers(1, 10**6), st.integers(1, 10**9))
def test_a_limit_and_a_window_mean_what_they_mean_in_a_text(algorithm, limit, microseconds):
    window = Fraction(microseconds, 1_000_000)
    (read,) = parse(f"{algorithm.algorithm} {limit}/{microseconds}us")
    assert rule(algorithm.algorithm, limit=limit, window=window) == read


def test_a_text_may_write_the_name_with_underscores_too():
    assert parse("sliding_window_log 10/s; Token_Bucket 10/s burst 20") == (
        SlidingWindowLog(10, 1),
        TokenBucket(20, 10),
    )


def test_a_limiter_takes_it():
    assert Limiter({"user": rule("token_bucket", limit=2)}).hit("ada").remaining == 1


BUCKET = "a token-bucket needs capacity and refill_rate, or limit"


@pytest.mark.parametrize(
    ("algorithm", "fields", "message"),
    [
        ("hourglass", {"limit": 1}, "algorithm 'hourglass' is unknown; use fixed-window, sliding-window-log, moving-"),
        ("", {"limit": 1}, "algorithm '' is unknown; use fixed-window"),
        ("100/minute", {"limit": 1}, "algorithm '100/minute' is unknown; use fixed-window"),
        ("fixed-window", {}, "limit is missing: a fixed-window needs limit"),
        ("fixed-window", {"window": 5}, "limit is missing: a fixed-window needs limit"),
        ("token-bucket", {}, f"capacity is missing: {BUCKET}"),
        ("token_bucket", {"refill_rate": 5}, f"capacity is missing: {BUCKET}"),
        ("token-bucket", {"capacity": 5}, f"refill_rate is missing: {BUCKET}"),
        ("token-bucket", {"capacity": 5, "window": 5}, f"refill_rate is missing: {BUCKET}"),
        (
            "leaky-bucket",
            {"capacity": 5},
            "leak_rate is missing: a leaky-bucket needs capacity and leak_rate, or limit",
        ),
        ("fixed-window", {"capacity": 5}, "capacity is not a field of a fixed-window; use limit"),
        (
            "fixed-window",
            {"limit": 5, "leak_rate": 5},
            "leak_rate is not a field of a fixed-window; use limit and window",
        ),
        ("leaky-bucket", {"limit": 5, "refill_rate": 5}, "refill_rate is not a field of a leaky-bucket; use leak_rate"),
        ("token-bucket", {"limit": 5, "leak_rate": 5}, "leak_rate is not a field of a token-bucket; use refill_rate"),
        (
            "token-bucket",
            {"limit": 5, "mode": "shaping"},
            "mode 'shaping' is for a leaky-bucket, not for a token-bucket",
        ),
        ("token-bucket", {"limit": 5, "mode": "polite"}, "mode 'polite' is not policing or shaping"),
        ("leaky-bucket", {"limit": 5, "mode": "polite"}, "mode must be 'policing' or 'shaping', not 'polite'"),
        (
            "token-bucket",
            {"limit": 5, "refill_rate": 5, "window": 1},
            "window has no effect beside refill_rate: leave out one of them",
        ),
        ("token-bucket", {"limit": 0}, "limit must be from 1 to 1000000000000"),
        ("token-bucket", {"capacity": 0, "refill_rate": 1}, "capacity must be from 1 to 1000000000000"),
        ("token-bucket", {"limit": 0, "capacity": 5, "refill_rate": 1}, "limit must be from 1 to 1000000000000"),
        ("token-bucket", {"limit": 5, "window": 0}, "window must be longer than 0, not 0"),
        ("token-bucket", {"limit": 5, "window": "soon"}, "window: cannot read 'soon' as a duration"),
        ("token-bucket", {"limit": 1, "capacity": 10**12}, "refill_rate Fraction(1, 60) takes more than 71 years"),
    ],
)
def test_an_error_begins_with_the_field_and_says_what_to_write_instead(algorithm, fields, message):
    with pytest.raises(InvalidRule) as caught:
        rule(algorithm, **fields)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("algorithm", "fields", "message"),
    [
        (FixedWindow, {"limit": 5}, "algorithm must be a str such as 'token-bucket', not <class "),
        ("fixed-window", {"limit": "5"}, "limit must be an int of at least 1, not '5'"),
        ("token-bucket", {"limit": True}, "limit must be an int of at least 1, not True"),
        ("token-bucket", {"limit": 5, "window": []}, "window must be seconds, a timedelta or a text such as '1m'"),
        ("token-bucket", {"limit": 5, "refill_rate": []}, "refill_rate must be units per second or a text such as"),
    ],
)
def test_a_value_of_another_type_is_a_type_error(algorithm, fields, message):
    with pytest.raises(TypeError) as caught:
        rule(algorithm, **fields)
    assert str(caught.value).startswith(message)
