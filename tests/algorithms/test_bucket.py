"""Rates whose fraction is not one unit an even time, which the short way through a bucket's step treats apart."""

from fractions import Fraction

from ratekeeper import Limiter, TokenBucket
from ratekeeper.testing import ManualClock


def test_a_rate_of_two_units_an_odd_time_refills_both():
    clock = ManualClock()
    limiter = Limiter(TokenBucket(capacity=10, refill_rate=Fraction(2_000_000, 7)), clock=clock)  # 2 in 7 us
    assert limiter.hit("k", 10).reset_after == 35e-6
    clock.advance(Fraction(7, 1_000_000))
    assert limiter.hit("k").remaining == 1
