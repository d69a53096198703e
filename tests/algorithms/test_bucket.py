"""What only buckets have: rates that are not one unit per whole number of microseconds, and a state in one number."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from ratekeeper import Limiter, TokenBucket
from ratekeeper.algorithms.bucket import _parts  # private: numbers that no rule would write
from ratekeeper.testing import ManualClock


def test_a_rate_of_two_units_an_odd_time_refills_both():
    clock = ManualClock()
    limiter = Limiter(TokenBucket(capacity=10, refill_rate=Fraction(2_000_000, 7)), clock=clock)  # 2 in 7 us
    assert limiter.hit("k", 10).reset_after == 35e-6
    clock.advance(Fraction(7, 1_000_000))
    assert limiter.hit("k").remaining == 1


# The state, in one number


@given(
    whole=st.integers(0, 2**42),
    part=st.integers(0, 2**46),
    at_us=st.integers(-(2**53), 2**53),
    period_us=st.integers(1, 2**46),
)
def test_a_level_its_time_and_its_period_read_back_from_one_number(whole, part, at_us, period_us):
    state = TokenBucket(1, 1).load((whole, part % period_us, at_us, period_us))
    assert _parts(state) == (whole * period_us + part % period_us, at_us, period_us)


def test_a_bucket_drains_from_before_1970_on():
    rule = TokenBucket(10, 1)
    state = rule.decide(None, -3_000_000, 10, True)[0]
    assert rule.decide(state, -1, 3, False)[3] == 1
    assert rule.decide(state, 2_000_000, 1, False)[2] == 5
