import math
import sys
from datetime import timedelta
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ratekeeper import InvalidRule, rates

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
WEEK = 7 * DAY

UNIT_SPELLINGS = {
    1: ["us", "µs", "usec", "usecs", "microsecond", "microseconds"],
    1_000: ["ms", "msec", "msecs", "millisecond", "milliseconds"],
    SECOND: ["s", "sec", "secs", "second", "seconds"],
    MINUTE: ["m", "min", "mins", "minute", "minutes"],
    HOUR: ["h", "hr", "hrs", "hour", "hours"],
    DAY: ["d", "day", "days"],
    WEEK: ["w", "wk", "wks", "week", "weeks"],
    30 * DAY: ["mo", "mos", "month", "months"],
    365 * DAY: ["y", "yr", "yrs", "year", "years"],
}
ALL_SPELLINGS = [(text, microseconds) for microseconds, texts in UNIT_SPELLINGS.items() for text in texts]

positive_floats = st.floats(min_value=0, exclude_min=True, allow_infinity=False, allow_nan=False)


# Windows


@pytest.mark.parametrize(
    ("window", "microseconds"),
    [
        (1, SECOND),
        (60, MINUTE),
        (0.25, 250_000),
        (0.1, 100_000),
        (1e-6, 1),
        (0.000_003, 3),
        (1.1, 1_100_000),
        (33_554_431.999_999, 33_554_431_999_999),
        (Fraction(1, 8), 125_000),
        (Fraction(1, 1_000_000), 1),
        (timedelta(minutes=1, microseconds=1), MINUTE + 1),
        (timedelta(days=365), 365 * DAY),
        (2**45 // SECOND, 35_184_372 * SECOND),
        (Fraction(2**45, SECOND), 2**45),
    ],
)
def test_a_window_is_seconds_or_a_timedelta(window, microseconds):
    assert rates.window_us(window) == microseconds


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("1m", MINUTE),
        ("1h30m", HOUR + 30 * MINUTE),
        ("250ms", 250_000),
        ("1.5s", 1_500_000),
        ("0.000001s", 1),
        ("1_000ms", SECOND),
        ("  2   hours  ", 2 * HOUR),
        ("1 h 30 m", HOUR + 30 * MINUTE),
        ("1d2h3m4s5ms6us", DAY + 2 * HOUR + 3 * MINUTE + 4 * SECOND + 5_006),
        ("30m1h", HOUR + 30 * MINUTE),
        ("1\th\n", HOUR),
        ("007s", 7 * SECOND),
        ("1H30M", HOUR + 30 * MINUTE),
        ("2 Weeks", 2 * WEEK),
        ("1 MONTH", 30 * DAY),
    ],
)
def test_a_window_may_be_a_text(text, microseconds):
    assert rates.window_us(text) == microseconds


@pytest.mark.parametrize(("unit", "microseconds"), ALL_SPELLINGS)
def test_a_unit_has_several_spellings_in_any_case(unit, microseconds):
    assert rates.window_us(f"1{unit}") == microseconds
    assert rates.window_us(f"1 {unit.upper() if unit != 'µs' else 'µS'}") == microseconds


@given(st.integers(1, rates.MAX_WINDOW_US))
def test_a_window_in_float_seconds_is_exact_to_the_microsecond(microseconds):
    assert rates.window_us(microseconds / SECOND) == microseconds


@given(st.integers(1, rates.MAX_WINDOW_US))
def test_seconds_of_a_window_read_back_the_same(microseconds):
    assert rates.window_us(rates.seconds(microseconds)) == microseconds


@given(st.integers(1, rates.MAX_WINDOW_US))
def test_the_text_of_a_duration_reads_back_the_same(microseconds):
    assert rates.count_and_period(f"1/{rates.duration_text(microseconds)}", "rule") == (1, microseconds)


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (1, "1us"),
        (999, "999us"),
        (1_000, "ms"),
        (1_500_000, "1500ms"),
        (SECOND, "s"),
        (90 * SECOND, "90s"),
        (MINUTE, "minute"),
        (90 * MINUTE, "90m"),
        (HOUR, "hour"),
        (2 * HOUR, "2h"),
        (DAY, "day"),
        (WEEK, "week"),
        (30 * DAY, "30d"),
        (52 * WEEK, "52w"),
        (2**45, "35184372088832us"),
    ],
)
def test_a_duration_is_written_in_its_largest_whole_unit(microseconds, text):
    assert rates.duration_text(microseconds) == text


@pytest.mark.parametrize(
    ("window", "reason"),
    [
        (0, "window must be longer than 0, not 0"),
        (-1, "window must be longer than 0, not -1"),
        (0.0, "window must be longer than 0, not 0.0"),
        (-0.0, "window must be longer than 0, not -0.0"),
        (-0.5, "window must be longer than 0, not -0.5"),
        (Fraction(-1, 2), "window must be longer than 0, not Fraction(-1, 2)"),
        (timedelta(0), "window must be longer than 0, not datetime.timedelta(0)"),
        (timedelta(seconds=-1), "window must be longer than 0, not "),
        ("0s", "window must be longer than 0, not '0s'"),
        (math.nan, "window must be finite, not nan"),
        (math.inf, "window must be finite, not inf"),
        (-math.inf, "window must be finite, not -inf"),
        (1e-7, "window must be a whole number of microseconds, not 1e-07"),
        (1 / 3, "window must be a whole number of microseconds, not 0.3333333333333333"),
        (Fraction(1, 3), "window must be a whole number of microseconds, not Fraction(1, 3)"),
        ("0.5us", "window must be a whole number of microseconds, not '0.5us'"),
        (5e-324, "window must be a whole number of microseconds, not 5e-324"),
        ("2y", "window must be at most 35184372088832 microseconds (407 days, to stay exact), not '2y'"),
        (Fraction(2**45 + 1, SECOND), "window must be at most 35184372088832 microseconds"),
        (timedelta.max, "window must be at most 35184372088832 microseconds"),
        (10**30, "window must be at most 35184372088832 microseconds"),
        (1e300, "window must be at most 35184372088832 microseconds"),
        (sys.float_info.max, "window must be at most 35184372088832 microseconds"),
        pytest.param(10**5000, "window must be at most 35184372088832 microseconds", id="5001 digits"),
        ("", "window: cannot read '' as a duration; write '250ms', '1m' or '1h30m'"),
        ("  ", "window: cannot read '  ' as a duration"),
        ("60", "window: cannot read '60' as a duration; write '250ms', '1m' or '1h30m'"),
        ("minute", "window: cannot read 'minute' as a duration"),
        ("1m30", "window: cannot read '30' as a duration"),
        ("-1s", "window: cannot read '-1s' as a duration"),
        ("1,5s", "window: cannot read '1,5s' as a duration"),
        (".5s", "window: cannot read '.5s' as a duration"),
        ("\u0661s", "window: cannot read '\u0661s' as a duration"),
        ("1s;", "window: cannot read ';' as a duration"),
        (
            "1fortnight",
            "window: unknown unit 'fortnight'; use us, ms, s, minute, hour, day, week, month (30 days) or year",
        ),
        ("1m 2parsec", "window: unknown unit 'parsec'; use us, ms, s, minute"),
        ("1" * 31 + "s", "is too large"),
    ],
)
def test_a_window_that_cannot_be_is_refused_with_the_reason(window, reason):
    with pytest.raises(InvalidRule) as caught:
        rates.window_us(window)
    assert reason in str(caught.value)


@pytest.mark.parametrize("window", [None, True, False, [1], b"1m", 1j, object()])
def test_a_window_of_another_type_is_a_type_error(window):
    with pytest.raises(TypeError, match="window must be seconds, a timedelta or a text such as '1m' or '250ms', not "):
        rates.window_us(window)


# Rates


@pytest.mark.parametrize(
    ("given_rate", "per_second"),
    [
        (10, Fraction(10)),
        (0.1, Fraction(1, 10)),
        (2.5, Fraction(5, 2)),
        (100 / 60, Fraction(5, 3)),
        (1 / 3, Fraction(1, 3)),
        (1e17, Fraction(10**17)),
        (Fraction(7, 13), Fraction(7, 13)),
        ("10/minute", Fraction(1, 6)),
        ("10/s", Fraction(10)),
        ("1 per 2 hours", Fraction(1, 7200)),
        ("1_000/ms", Fraction(1_000_000)),
        ("3 PER Day", Fraction(1, 28_800)),
        (" 5 / 15minutes ", Fraction(1, 180)),
        ("5/1h30m", Fraction(1, 1080)),
        ("1/0.5s", Fraction(2)),
    ],
)
def test_a_rate_is_units_per_second_or_a_text(given_rate, per_second):
    assert rates.rate(given_rate) == per_second


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (0, "rate must be above 0, not 0"),
        (-1, "rate must be above 0, not -1"),
        (0.0, "rate must be above 0, not 0.0"),
        (-0.1, "rate must be above 0, not -0.1"),
        (Fraction(-1, 3), "rate must be above 0, not Fraction(-1, 3)"),
        ("0/s", "rate must be above 0, not '0/s'"),
        (math.nan, "rate must be finite, not nan"),
        (math.inf, "rate must be finite, not inf"),
        ("", "rate '': expected a count and a period, as in '10/s', '5/15minutes' or '10 per 2 hours'"),
        ("10", "rate '10': expected a count and a period"),
        ("0.5/s", "rate '0.5/s': expected a count and a period"),
        ("-1/s", "rate '-1/s': expected a count and a period"),
        ("10/", "rate '10/': cannot read '' as a duration; write '250ms', '1m' or '1h30m'"),
        ("10/s/s", "cannot read '/s' as a duration"),
        ("10 perhour", "expected a count and a period"),
        ("10/0s", "the period must be a whole number of microseconds above 0, not '0s'"),
        ("10/0.1us", "the period must be a whole number of microseconds above 0, not '0.1us'"),
        ("10/jiffy", "rate '10/jiffy': unknown unit 'jiffy'; use us, ms, s, minute, hour"),
        ("1" * 31 + "/s", "is too large"),
    ],
)
def test_a_rate_that_cannot_be_is_refused_with_the_reason(bad, reason):
    with pytest.raises(InvalidRule) as caught:
        rates.rate(bad)
    assert reason in str(caught.value)


@pytest.mark.parametrize("bad", [None, True, False, [1], b"1/s", 1j, timedelta(1)])
def test_a_rate_of_another_type_is_a_type_error(bad):
    with pytest.raises(TypeError, match="rate must be units per second or a text such as '10/minute', not "):
        rates.rate(bad)


def test_an_error_names_the_argument():
    with pytest.raises(InvalidRule, match=r"^leak_rate must be above 0, not 0$"):
        rates.rate(0, "leak_rate")
    with pytest.raises(InvalidRule, match=r"^every must be longer than 0, not 0$"):
        rates.window_us(0, "every")
    with pytest.raises(InvalidRule, match=r"^capacity must be from 1 to "):
        rates.limit(0, "capacity")


@pytest.mark.parametrize(
    ("units", "period_us", "text"),
    [
        (1, 100_000, "10/s"),
        (5, 3 * SECOND, "100/minute"),
        (1, HOUR, "1/hour"),
        (1, 36 * SECOND, "100/hour"),
        (1, DAY, "1/day"),
        (7, 13 * SECOND, "7/13s"),
        (1, WEEK, "1/week"),
        (1, 30 * DAY, "1/30d"),
        (1, 1, "1000000/s"),
        (3, 7, "3/7us"),
    ],
)
def test_a_rate_is_written_per_second_minute_hour_or_day_where_that_is_whole(units, period_us, text):
    assert rates.rate_text(units, period_us) == text


@given(st.integers(1, rates.MAX_RATE_PART), st.integers(1, rates.MAX_RATE_PART))
def test_the_text_of_a_rate_reads_back_the_same(units, period_us):
    assert rates.rate(rates.rate_text(units, period_us)) == Fraction(units, period_us) * SECOND


# The fraction that a float stands for


@pytest.mark.parametrize(
    ("value", "fraction"),
    [
        (0.1, Fraction(1, 10)),
        (100 / 60, Fraction(5, 3)),
        (0.3, Fraction(3, 10)),
        (1 / 3, Fraction(1, 3)),
        (2 / 7, Fraction(2, 7)),
        (0.5, Fraction(1, 2)),
        (1.0, Fraction(1)),
        (3.25, Fraction(13, 4)),
        (1e-6, Fraction(1, 10**6)),
        (1e22, Fraction(10**22)),
        (2.0**60, Fraction(2**60)),
        (0.0, Fraction(0)),
        (-0.1, Fraction(-1, 10)),
    ],
)
def test_a_float_stands_for_the_simplest_fraction_that_rounds_to_it(value, fraction):
    assert rates.simplest_fraction(value) == fraction


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_a_fraction_of_small_numbers_survives_being_a_float(numerator, denominator):
    assert rates.simplest_fraction(numerator / denominator) == Fraction(numerator, denominator)


@given(positive_floats)
@example(5e-324)
@example(sys.float_info.min)
@example(sys.float_info.max)
@example(2.0**52 + 0.5)
@example(2.0**53)
@example(math.nextafter(1.0, 2))
@example(math.nextafter(1.0, 0))
def test_the_fraction_always_rounds_to_the_float(value):
    assert float(rates.simplest_fraction(value)) == value


@given(positive_floats)
@example(5e-324)
@example(math.nextafter(1.0, 2))
@example(math.nextafter(1.0, 0))
@example(0.25)
@example(2.0**51 + 0.5)
def test_no_smaller_denominator_rounds_to_the_float(value):
    found = rates.simplest_fraction(value)
    if found.denominator > 1:
        nearest_simpler = Fraction(value).limit_denominator(found.denominator - 1)
        assert float(nearest_simpler) != value


# Limits, and what is exact


@pytest.mark.parametrize("value", [1, 2, 10**12])
def test_a_limit_is_a_whole_number_from_1_to_10_to_the_12(value):
    assert rates.limit(value) == value


@pytest.mark.parametrize("value", [0, -1, 10**12 + 1, 10**100, -(10**100), pytest.param(10**5000, id="5001 digits")])
def test_a_limit_out_of_range_is_refused_with_the_range(value):
    with pytest.raises(
        InvalidRule, match=r"limit must be from 1 to 1000000000000 \(the range that every store counts exactly\)"
    ):
        rates.limit(value)


@pytest.mark.parametrize("value", [None, True, False, 1.0, "1", Fraction(1), math.nan])
def test_a_limit_of_another_type_is_a_type_error(value):
    with pytest.raises(TypeError, match="limit must be an int of at least 1, not "):
        rates.limit(value)


@pytest.mark.parametrize(
    ("per_second", "pair"),
    [
        (Fraction(10), (1, 100_000)),
        (Fraction(5, 3), (1, 600_000)),
        (Fraction(10**7), (10, 1)),
        (Fraction(2**46 * SECOND), (2**46, 1)),
        (Fraction(SECOND, 2**46), (1, 2**46)),
    ],
)
def test_a_rate_is_kept_as_units_every_so_many_microseconds(per_second, pair):
    assert rates.per_microsecond(per_second, 1, "rate") == pair


@pytest.mark.parametrize(
    ("per_second", "reason"),
    [
        (Fraction((2**46 + 1) * SECOND), "cannot be exact: 70368744177665 units every 1 us exceeds 2^46"),
        (Fraction(SECOND, 2**46 + 1), "cannot be exact: 1 units every 70368744177665 us exceeds 2^46"),
        pytest.param(Fraction(10**5000), "cannot be exact", id="5001 digits"),
        pytest.param(Fraction(1, 10**5000), "cannot be exact", id="one by 5001 digits"),
    ],
)
def test_a_rate_beyond_what_is_exact_is_refused_with_the_reason(per_second, reason):
    with pytest.raises(InvalidRule) as caught:
        rates.per_microsecond(per_second, 1, "leak_rate")
    assert str(caught.value).startswith("leak_rate ")
    assert reason in str(caught.value)
    assert "use a simpler fraction, or a text such as '10/minute'" in str(caught.value)


def test_a_bucket_may_take_2_to_the_51_microseconds_to_drain_and_no_longer():
    assert rates.per_microsecond(Fraction(SECOND, 2**41), 2**10, "rate") == (1, 2**41)
    with pytest.raises(InvalidRule, match="takes more than 71 years to fill or drain 1025"):
        rates.per_microsecond(Fraction(SECOND, 2**41), 2**10 + 1, "rate")


@pytest.mark.parametrize(
    ("microseconds", "seconds"), [(0, 0), (1, 0.000001), (SECOND, 1), (1_500_000, 1.5), (60 * SECOND, 60)]
)
def test_seconds_are_an_int_where_that_is_exact(microseconds, seconds):
    assert rates.seconds(microseconds) == seconds
    assert isinstance(rates.seconds(microseconds), type(seconds))


# What an error shows of a value


def test_a_short_value_is_shown_whole():
    assert rates.show("10/s") == "'10/s'"


def test_a_long_value_is_cut():
    shown = rates.show("a" * 1000)
    assert len(shown) == 80
    assert shown.endswith("...")


def test_a_value_that_python_does_not_print_is_shown_all_the_same():
    assert 0 < len(rates.show(10**5000)) <= 80
    assert 0 < len(rates.show(Fraction(1, 10**5000))) <= 80
    assert 0 < len(rates.show(("a", 10**5000))) <= 80
