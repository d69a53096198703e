"""Stricter rules for clients: a server with the rule itself, which counts on arrival, admits all that they send."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekeeper import FixedWindow, InvalidRule, LeakyBucket, SlidingWindowCounter, SlidingWindowLog, TokenBucket
from ratekeeper.rules import with_headroom

START = 1_700_000_040_000_000
WINDOWS = st.integers(1, 20), st.integers(1, 10**7).map(lambda microseconds: Fraction(microseconds, 10**6))
RATES = st.integers(1, 20), st.fractions(Fraction(1, 100), 100, max_denominator=1000)
RULES = (
    st.builds(SlidingWindowLog, *WINDOWS)
    | st.builds(TokenBucket, *RATES)
    | st.builds(LeakyBucket, *RATES, mode=st.sampled_from(["policing", "shaping"]))
)


@given(RULES, st.fractions(Fraction(1, 100), Fraction(1, 2), max_denominator=100), st.data())
def test_what_is_sent_by_a_stricter_rule_may_be_late_by_this_share_of_a_window(rule, share, data):
    (client,) = with_headroom(rule, share)
    lateness = st.integers(0, int(rule.window_us * share))
    now, state, arrivals = START, None, []
    for _ in range(40):
        cost = data.draw(st.integers(1, client.limit))
        # as soon as it is admitted, which is the worst for the server, or some time later
        state, allowed, _, retry_after, _, delay = client.decide(state, now, cost, True)
        if not allowed:
            now += retry_after + data.draw(st.sampled_from([0, 0, 1, rule.window_us // 3]))
            state, allowed, _, _, _, delay = client.decide(state, now, cost, True)
            assert allowed
        arrivals.append((now + delay + data.draw(lateness), cost))
    state = None
    for at, cost in sorted(arrivals):
        state, allowed, *_ = rule.decide(state, at, cost, True)
        assert allowed


def test_without_headroom_one_late_request_is_enough_for_a_refusal():
    rule = SlidingWindowLog(2, 10)
    state, *_ = rule.decide(None, START + 1, 2, True)  # sent at START, and again as soon as that is admitted
    assert not rule.decide(state, START + 10_000_000, 2, True)[1]


@pytest.mark.parametrize(
    ("rule", "stricter"),
    [
        ("sliding-window-log 40/10s", SlidingWindowLog(40, 10.5)),
        ("sliding-window-log 1/10s", SlidingWindowLog(1, 10.5)),
        ("fixed-window 40/10s", FixedWindow(38, 10)),
        ("fixed-window 30/10s", FixedWindow(28, 10)),
        ("40/10s", SlidingWindowCounter(38, 10)),
        ("token-bucket 42/s burst 100", TokenBucket(95, 40)),
        ("token-bucket 42/s burst 1", TokenBucket(1, 40)),
        ("leaky-bucket 42/s burst 100 shaping", LeakyBucket(95, 40, mode="shaping")),
    ],
)
def test_a_twentieth_of_headroom(rule, stricter):
    assert with_headroom(rule, 0.05) == [stricter]
    assert with_headroom({"name": rule}, 0.05) == {"name": stricter}
    assert with_headroom(stricter, 0) == [stricter]


def test_rules_keep_their_order_and_their_names():
    assert with_headroom({"b": "fixed-window 40/s", "a": FixedWindow(20, 1)}, Fraction(1, 10)) == {
        "b": FixedWindow(36, 1),
        "a": FixedWindow(18, 1),
    }
    assert with_headroom("fixed-window 40/s; fixed-window 20/s", 0.1) == [FixedWindow(36, 1), FixedWindow(18, 1)]


@pytest.mark.parametrize(
    ("rule", "headroom", "error", "says"),
    [
        ("1/s", 0.05, InvalidRule, "headroom 1/20 of sliding-window-counter 1/s: nothing is left of the limit; use a"),
        ("10/s", -0.05, InvalidRule, "headroom must be from 0 to 0.5, a share of the limit, not -0.05"),
        ("10/s", 5, InvalidRule, "headroom must be from 0 to 0.5, a share of the limit, not 5"),
        ("10/s", float("nan"), InvalidRule, "headroom must be from 0 to 0.5"),
        ("10/s", "5%", TypeError, "headroom must be a number, not '5%'"),
        ("10/s", True, TypeError, "headroom must be a number, not True"),
    ],
)
def test_headroom_that_cannot_be_is_refused(rule, headroom, error, says):
    with pytest.raises(error, match=says):
        with_headroom(rule, headroom)
