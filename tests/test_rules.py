import copy
import math
import pickle
import subprocess
import sys
from collections import OrderedDict
from datetime import timedelta
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ratekeeper import (
    FixedWindow,
    InvalidRule,
    LeakyBucket,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
    parse,
    rates,
)
from ratekeeper.rules import named

WINDOWS = [FixedWindow, SlidingWindowLog, SlidingWindowCounter]
BUCKETS = [TokenBucket, LeakyBucket]
DAY = 86_400

EXAMPLES = [
    FixedWindow(100, 60),
    FixedWindow(7, "1500ms"),
    SlidingWindowLog(100, 60),
    SlidingWindowCounter(1, 1e-6),
    TokenBucket(20, 10),
    TokenBucket(100, Fraction(7, 13)),
    LeakyBucket(20, 10),
    LeakyBucket(20, "10/minute", "shaping"),
]


@st.composite
def rules(draw):
    kind = draw(st.sampled_from([*WINDOWS, *BUCKETS]))
    limit = draw(st.integers(1, 1000) | st.integers(1, rates.MAX_LIMIT))
    if kind in WINDOWS:
        window_us = draw(st.integers(1, 10**9) | st.integers(1, rates.MAX_WINDOW_US))
        return kind(limit, Fraction(window_us, 10**6))
    small_or_large = st.integers(1, 1000) | st.integers(1, rates.MAX_RATE_PART)
    rate = Fraction(draw(small_or_large) * 10**6, draw(small_or_large))
    capacity = max(1, min(limit, int(rates.MAX_DRAIN_US * rate / 10**6)))
    return TokenBucket(capacity, rate) if kind is TokenBucket else LeakyBucket(capacity, rate, draw(modes))


modes = st.sampled_from(["policing", "shaping"])


# Constructors


@pytest.mark.parametrize("window", [60, 60.0, Fraction(60), timedelta(minutes=1), "1m", "60s", "0.5m30s", "60_000ms"])
@pytest.mark.parametrize("kind", WINDOWS)
def test_rules_that_mean_the_same_window_are_equal(kind, window):
    rule = kind(100, window)
    assert rule == kind(limit=100, window=60)
    assert hash(rule) == hash(kind(100, 60))
    assert repr(rule) == f"{kind.__name__}(limit=100, window=60)"
    assert rule.window_us == 60_000_000


@pytest.mark.parametrize("rate", [0.1, Fraction(1, 10), "6/minute", "1/10s", "0001 per 10 seconds"])
def test_buckets_that_mean_the_same_rate_are_equal(rate):
    assert TokenBucket(5, rate) == TokenBucket(capacity=5, refill_rate=Fraction(1, 10))
    assert LeakyBucket(5, rate) == LeakyBucket(capacity=5, leak_rate=Fraction(1, 10), mode="policing")
    assert hash(TokenBucket(5, rate)) == hash(TokenBucket(5, 0.1))
    assert TokenBucket(5, rate).refill_rate == Fraction(1, 10)
    assert LeakyBucket(5, rate).leak_rate == Fraction(1, 10)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (FixedWindow(100, 60), FixedWindow(101, 60)),
        (FixedWindow(100, 60), FixedWindow(100, 61)),
        (FixedWindow(100, 60), FixedWindow(100, "60s1us")),
        (FixedWindow(100, "407d"), FixedWindow(100, "407d1us")),
        (FixedWindow(100, 60), SlidingWindowLog(100, 60)),
        (FixedWindow(100, 60), SlidingWindowCounter(100, 60)),
        (TokenBucket(100, 10), TokenBucket(101, 10)),
        (TokenBucket(100, 10), TokenBucket(100, 11)),
        (TokenBucket(100, 10), LeakyBucket(100, 10)),
        (LeakyBucket(100, 10), LeakyBucket(100, 10, "shaping")),
    ],
)
def test_rules_that_differ_in_meaning_differ(one, other):
    assert one != other
    assert one.text != other.text


@pytest.mark.parametrize("rule", EXAMPLES, ids=lambda rule: rule.text)
def test_a_rule_cannot_be_changed(rule):
    for name in [*(field.name for field in rule.fields), "limit", "window_us", "another"]:
        with pytest.raises(AttributeError, match=f"^cannot assign to '{name}'"):
            setattr(rule, name, 1)
        with pytest.raises(AttributeError, match=f"^cannot delete '{name}'"):
            delattr(rule, name)


@given(rules())
def test_a_rule_is_a_value_that_can_be_pickled_and_copied(rule):
    copies = [pickle.loads(pickle.dumps(rule, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    copies += [copy.copy(rule), copy.deepcopy(rule)]
    for other in copies:
        assert other == rule
        assert hash(other) == hash(rule)
        assert other.text == rule.text
        assert other.span_us == rule.span_us
        assert other.decide(None, 10**15, 1, consume=True) == rule.decide(None, 10**15, 1, consume=True)


@given(rules())
def test_the_repr_of_a_rule_makes_it_again(rule):
    names = {kind.__name__: kind for kind in [*WINDOWS, *BUCKETS, Fraction]}
    assert eval(repr(rule), names) == rule


@given(rules(), st.integers(1, 1000))
def test_a_rule_can_be_replaced_by_one_with_another_limit(rule, limit):
    argument = "limit" if type(rule) in WINDOWS else "capacity"
    other = rule.__replace__(**{argument: min(limit, rule.limit)})
    assert other.limit == min(limit, rule.limit)
    assert other.__replace__(**{argument: rule.limit}) == rule


@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize(("limit", "window"), [(10**9, 60), (10**7, 3600), (10**6, 30 * DAY)])
def test_every_window_rule_is_exact_to_the_promised_bounds(kind, limit, window):
    assert kind(limit, window).decide(None, 0, limit, consume=True)[1:3] == (True, 0)


@pytest.mark.parametrize("mode", [None, "policing", "shaping"])
@pytest.mark.parametrize(
    ("capacity", "rate"), [(10**9, "1000000000/minute"), (10**7, "10_000_000/hour"), (10**6, "1000000/month")]
)
def test_every_bucket_is_exact_to_the_promised_bounds(mode, capacity, rate):
    rule = LeakyBucket(capacity, rate, mode) if mode else TokenBucket(capacity, rate)
    assert rule.decide(None, 0, capacity, consume=True)[1:3] == (True, 0)


@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize(
    ("limit", "window", "reason"),
    [
        (0, 60, "limit must be from 1 to 1000000000000 (the range that every store counts exactly), not 0"),
        (-5, 60, "limit must be from 1 to 1000000000000 (the range that every store counts exactly), not -5"),
        (10**12 + 1, 60, "limit must be from 1 to 1000000000000"),
        (1, 0, "window must be longer than 0, not 0"),
        (1, math.nan, "window must be finite, not nan"),
        (1, math.inf, "window must be finite, not inf"),
        (1, sys.float_info.max, "window must be at most 35184372088832 microseconds"),
        (1, "408d", "window must be at most 35184372088832 microseconds (407 days, to stay exact), not '408d'"),
    ],
)
def test_a_window_rule_that_cannot_be_kept_exactly_is_refused_with_the_reason(kind, limit, window, reason):
    with pytest.raises(InvalidRule) as caught:
        kind(limit, window)
    assert reason in str(caught.value)


@pytest.mark.parametrize(("kind", "argument"), [(TokenBucket, "refill_rate"), (LeakyBucket, "leak_rate")])
@pytest.mark.parametrize(
    ("capacity", "rate", "reason"),
    [
        (0, 1, "capacity must be from 1 to 1000000000000 (the range that every store counts exactly), not 0"),
        (10**12 + 1, 1, "capacity must be from 1 to 1000000000000"),
        (1, 0, "{argument} must be above 0, not 0"),
        (1, -1.5, "{argument} must be above 0, not -1.5"),
        (1, math.nan, "{argument} must be finite, not nan"),
        (1, math.inf, "{argument} must be finite, not inf"),
        (1, 5e-324, "{argument} Fraction(1, "),
        (1, sys.float_info.max, "cannot be exact"),
        (1, Fraction(1, 2**50 + 1), "cannot be exact: 1 units every 1125899906842625000000 us exceeds 2^46"),
        (1, 1 + 2**-50, "cannot be exact"),
        (10**12, "1/hour", "{argument} Fraction(1, 3600) takes more than 71 years to fill or drain 1000000000000"),
        (1, "ten/s", "{argument} 'ten/s': expected a count and a period"),
    ],
)
def test_a_bucket_that_cannot_be_kept_exactly_is_refused_with_the_reason(kind, argument, capacity, rate, reason):
    with pytest.raises(InvalidRule) as caught:
        kind(capacity, rate)
    assert reason.format(argument=argument) in str(caught.value)


@pytest.mark.parametrize("kind", [*WINDOWS, *BUCKETS])
@pytest.mark.parametrize("bad", [True, False, None, 1.0, math.nan, "1"])
def test_a_limit_or_capacity_must_be_an_int(kind, bad):
    with pytest.raises(TypeError, match=r"^(limit|capacity) must be an int of at least 1, not "):
        kind(bad, 60)


@pytest.mark.parametrize("kind", [*WINDOWS, *BUCKETS])
@pytest.mark.parametrize("bad", [True, False, None, 1j, [60], b"1m"])
def test_a_window_or_rate_must_be_a_number_or_a_text(kind, bad):
    with pytest.raises(TypeError, match=r"^(window|refill_rate|leak_rate) must be "):
        kind(1, bad)


@pytest.mark.parametrize("mode", ["", "Shaping", "queue", None, 1])
def test_a_leaky_bucket_is_policing_or_shaping(mode):
    with pytest.raises(InvalidRule, match="mode must be 'policing' or 'shaping', not "):
        LeakyBucket(1, 1, mode)


# parse


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("100/minute", SlidingWindowCounter(100, 60)),
        ("10/s", SlidingWindowCounter(10, 1)),
        ("10 per 2 hours", SlidingWindowCounter(10, 7200)),
        ("5/15minutes", SlidingWindowCounter(5, 900)),
        ("100/day", SlidingWindowCounter(100, DAY)),
        ("10/s burst 100", TokenBucket(100, 10)),
        ("fixed-window 100/minute", FixedWindow(100, 60)),
        ("leaky-bucket 10/s burst 20 shaping", LeakyBucket(20, 10, "shaping")),
        ("leaky-bucket 10/s burst 20 policing", LeakyBucket(20, 10)),
        ("leaky-bucket 10/s burst 20", LeakyBucket(20, 10)),
        ("leaky-bucket 10/s shaping", LeakyBucket(10, 10, "shaping")),
        ("leaky-bucket 10/s policing", LeakyBucket(10, 10)),
        ("leaky-bucket 10/s", LeakyBucket(10, 10)),
        ("token-bucket 10/s", TokenBucket(10, 10)),
        ("token-bucket 100/minute", TokenBucket(100, Fraction(5, 3))),
        ("token-bucket 10/s burst 1_000", TokenBucket(1000, 10)),
        ("sliding-window-log 100/minute", SlidingWindowLog(100, 60)),
        ("moving-window 100/minute", SlidingWindowLog(100, 60)),
        ("sliding-window-counter 100/minute", SlidingWindowCounter(100, 60)),
        ("50_000/1h30m", SlidingWindowCounter(50_000, 5400)),
        ("1/250ms", SlidingWindowCounter(1, 0.25)),
        ("100/month", SlidingWindowCounter(100, 30 * DAY)),
        ("100/year", SlidingWindowCounter(100, 365 * DAY)),
        ("  FIXED-Window   100 / Minute ", FixedWindow(100, 60)),
        ("Leaky-Bucket\t10 PER s\nBURST 20  Shaping", LeakyBucket(20, 10, "shaping")),
        ("10per s", SlidingWindowCounter(10, 1)),
        ("10 /s", SlidingWindowCounter(10, 1)),
    ],
)
def test_parse_reads_what_people_write(text, rule):
    assert parse(text) == (rule,)


@pytest.mark.parametrize(
    ("unit", "seconds"),
    [
        *[(unit, Fraction(1, 10**6)) for unit in ("us", "µs", "usec", "microsecond", "microseconds")],
        *[(unit, Fraction(1, 1000)) for unit in ("ms", "msec", "millisecond", "milliseconds")],
        *[(unit, 1) for unit in ("s", "sec", "secs", "second", "seconds", "S", "Second")],
        *[(unit, 60) for unit in ("m", "min", "mins", "minute", "minutes", "M", "MIN")],
        *[(unit, 3600) for unit in ("h", "hr", "hrs", "hour", "hours", "HOURS")],
        *[(unit, DAY) for unit in ("d", "day", "days", "D")],
        *[(unit, 7 * DAY) for unit in ("w", "wk", "week", "weeks")],
        *[(unit, 30 * DAY) for unit in ("mo", "month", "months", "Month")],
        *[(unit, 365 * DAY) for unit in ("y", "yr", "year", "years")],
    ],
)
@pytest.mark.parametrize("form", ["100/{}", "100 / 1 {}", "100 per {}", "100 per 1{}"])
def test_parse_reads_every_unit(form, unit, seconds):
    assert parse(form.format(unit)) == (SlidingWindowCounter(100, Fraction(seconds)),)


@pytest.mark.parametrize("separator", [";", ",", "|", " ; ", ",\n", " | "])
def test_several_rules_are_separated_by_semicolon_comma_or_bar(separator):
    text = separator.join(["10/s", "fixed-window 100/minute", "10/s burst 20"])
    assert parse(text) == (SlidingWindowCounter(10, 1), FixedWindow(100, 60), TokenBucket(20, 10))


def test_separators_may_be_mixed():
    assert parse("1/s;2/m,3/h|4/d") == (
        SlidingWindowCounter(1, 1),
        SlidingWindowCounter(2, 60),
        SlidingWindowCounter(3, 3600),
        SlidingWindowCounter(4, DAY),
    )


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (FixedWindow(100, 60), "fixed-window 100/minute"),
        (FixedWindow(100, 1), "fixed-window 100/s"),
        (FixedWindow(100, 0.25), "fixed-window 100/250ms"),
        (FixedWindow(100, 5400), "fixed-window 100/90m"),
        (SlidingWindowLog(100, DAY), "sliding-window-log 100/day"),
        (SlidingWindowCounter(100, "2w"), "sliding-window-counter 100/2w"),
        (TokenBucket(100, 10), "token-bucket 10/s burst 100"),
        (TokenBucket(100, 100 / 60), "token-bucket 100/minute burst 100"),
        (TokenBucket(20, Fraction(7, 13)), "token-bucket 7/13s burst 20"),
        (LeakyBucket(20, 10), "leaky-bucket 10/s burst 20"),
        (LeakyBucket(20, 10, "shaping"), "leaky-bucket 10/s burst 20 shaping"),
    ],
)
def test_a_rule_has_a_canonical_text(rule, text):
    assert rule.text == text


@given(rules())
def test_the_canonical_text_reads_back_as_the_rule(rule):
    assert parse(rule.text) == (rule,)


@given(st.lists(rules(), min_size=1, max_size=4), st.sampled_from([";", ",", "|", " ;  "]))
def test_several_canonical_texts_read_back_as_the_rules(several, separator):
    assert parse(separator.join(rule.text for rule in several)) == tuple(several)


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("", "cannot read rule '' in '': write it as '100/minute', '10/s burst 100' or 'fixed-window 5/15minutes'"),
        ("   ", "cannot read rule '' in '   '"),
        ("10/s;", "cannot read rule '' in '10/s;'"),
        ("10/s,,5/m", "cannot read rule '' in '10/s,,5/m'"),
        ("10/s; fast", "cannot read rule 'fast' in '10/s; fast': write it as '100/minute'"),
        ("minute", "cannot read rule 'minute'"),
        ("/s", "cannot read rule '/s'"),
        ("-1/s", "cannot read rule '-1/s'"),
        ("+1/s", "cannot read rule '+1/s'"),
        ("\u0661\u0660/s", "cannot read rule '\u0661\u0660/s'"),
        ("10", "rule '10': expected a count and a period, as in '10/s', '5/15minutes' or '10 per 2 hours'"),
        ("10 s", "rule '10 s': expected a count and a period"),
        ("1e3/s", "rule '1e3/s': expected a count and a period"),
        ("1.5/s", "rule '1.5/s': expected a count and a period"),
        ("10/", "rule '10/': cannot read '' as a duration; write '250ms', '1m' or '1h30m'"),
        ("10/5", "rule '10/5': cannot read '5' as a duration"),
        ("10/s/s", "rule '10/s/s': cannot read '/s' as a duration"),
        ("10/-1s", "rule '10/-1s': cannot read '-1s' as a duration"),
        ("10/\u0661s", "cannot read '\u0661s' as a duration"),
        (
            "10/fortnight",
            "unknown unit 'fortnight'; use us, ms, s, minute, hour, day, week, month (30 days) or year (365",
        ),
        ("10/s burst", "unknown unit 'burst'; use us, ms"),
        ("10/0s", "the period must be a whole number of microseconds above 0, not '0s'"),
        ("10/0.5us", "the period must be a whole number of microseconds above 0, not '0.5us'"),
        ("0/s", "rule '0/s': limit must be from 1 to 1000000000000 (the range that every store counts exactly), not 0"),
        ("1/2y", "rule '1/2y': window must be at most 35184372088832 microseconds"),
        ("1" * 31 + "/s", "is too large"),
        ("1/" + "1" * 31 + "s", "is too large"),
        ("sliding 10/s", "unknown algorithm 'sliding'; use fixed-window, sliding-window-log, moving-window, sliding-"),
        ("Hourglass 10/s", "unknown algorithm 'Hourglass'; use fixed-window, "),
        ("fixed-window 10/s burst 5", "only a token-bucket or a leaky-bucket has a burst, not a fixed-window"),
        ("sliding-window-counter 10/s burst 5", "only a token-bucket or a leaky-bucket has a burst"),
        ("10/s burst 0", "rule '10/s burst 0': capacity must be from 1 to 1000000000000"),
        ("10/s burst -1", "the burst must be a whole number, not '-1'"),
        ("10/s burst many", "the burst must be a whole number, not 'many'"),
        ("10/s burst 1.5", "the burst must be a whole number, not '1.5'"),
        ("10/s burst ٣", "the burst must be a whole number, not '٣'"),
        ("10/s burst " + "1" * 31, "is too large"),
        ("10/s burst 10 burst 20", "'burst 20' is not a mode; a leaky-bucket is policing or shaping"),
        ("leaky-bucket 10/s burst 20 queueing", "'queueing' is not a mode; a leaky-bucket is policing or shaping"),
        ("10/s shaping", "only a leaky-bucket can be shaping, not a sliding-window-counter"),
        ("10/s burst 20 shaping", "only a leaky-bucket can be shaping, not a token-bucket"),
        ("fixed-window 10/s policing", "only a leaky-bucket can be policing, not a fixed-window"),
        ("1/hour burst 1000000000000", "Fraction(1, 3600) takes more than 71 years to fill or drain 1000000000000"),
    ],
)
def test_an_error_quotes_the_bad_part_and_says_what_is_accepted(text, fragment):
    with pytest.raises(InvalidRule) as caught:
        parse(text)
    assert fragment in str(caught.value)


@pytest.mark.parametrize("text", [None, 10, b"10/s", ["10/s"], FixedWindow(1, 1)])
def test_parse_takes_a_str(text):
    with pytest.raises(TypeError, match=r"a rule's text must be a str such as '100/minute'.*, not "):
        parse(text)


WORDS = st.sampled_from(
    [
        *("fixed-window", "token-bucket", "leaky-bucket", "moving-window", "burst", "shaping", "policing", "per"),
        *("/", ";", ",", " ", "\t", "_", ".", "10", "1_0", "0", "1.5", "-1", "s", "m", "1h30m", "month"),
        *("٣", "\u017f", "İ", "\x00", "\udcff"),
    ]
)


@given(st.text(max_size=60) | st.lists(WORDS, max_size=12).map("".join) | st.lists(WORDS, max_size=12).map(" ".join))
@example("1/s bur\u017ft 5")
@example("leaky-bucket 1/s \u017fhaping")
@example("leaky-bucket 1/s polİcing")
@example("0" * 30 + "1/s")
def test_any_text_is_rules_or_an_invalid_rule(text):
    try:
        found = parse(text)
    except InvalidRule:
        return
    assert found
    assert parse(";".join(rule.text for rule in found)) == found


def test_a_text_has_at_most_32_rules():
    texts = [f"{count + 1}/minute" for count in range(33)]
    assert len(parse(";".join(texts[:32]))) == 32
    with pytest.raises(InvalidRule, match=r"^a text has at most 32 rules, not 33: '1/minute;2/minute;"):
        parse(";".join(texts))


def test_a_text_that_is_too_long_for_32_rules_is_refused_before_it_is_read():
    longest = " " * 6_422 + "100/minute"
    assert parse(longest) == (SlidingWindowCounter(100, 60),)
    with pytest.raises(InvalidRule, match=r"^a text of 6433 characters is too long for rules: '    "):
        parse(" " + longest)


@pytest.mark.parametrize("text", ["1/s;" * 16_384, ";" * 2**16, "x" * 2**16], ids=["rules", "separators", "letters"])
def test_a_long_text_costs_no_attempt_to_read_it(text, monkeypatch):
    monkeypatch.delattr("re.fullmatch")  # what reads a rule
    with pytest.raises(InvalidRule, match=f"^a text of {len(text)} characters is too long for rules"):
        parse(text)


def test_a_text_of_a_mebibyte_is_read_or_refused_soon():
    """Run in its own process, so that endless backtracking fails this test instead of holding up all others."""
    script = """
from ratekeeper import FixedWindow, InvalidRule, TokenBucket, parse
n = 2**20
texts = [" " * n + "!", "1" + " " * n + "x", "1/s" + " " * n + "s", "1/" + " " * n + "s", "1 per" + " " * n + "!",
         "1/s burst 1" + " " * n + "x", "1/s burst" + " " * n + "!", "a" * n, "a-" * n, "1" * n, "1_" * n,
         "fixed-window " + "1" * n + "/s", "1/" + "1" * n + "s", "1/" + "1.1" * n, "1/" + "1s" * n,
         "1/1." + "0" * n + "s",
         "1 burst " * n, "1/s burst " * n, "1 per " * n, ";" * n, "/" * n, "\\0" * n, "\\N{ARABIC-INDIC DIGIT ONE}" * n,
         "s" * n, "fixed-window" + " " * n + "1/s", "a" + " " * n + "!", "1s" + " 1s" * n, "1 shaping" * n, "(" * n]
for text in texts:
    for read in (parse, lambda text: FixedWindow(1, text), lambda text: TokenBucket(1, text)):
        try:
            read(text)
        except InvalidRule as error:
            assert len(str(error)) < 1000
print("done")
"""
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (finished.stdout, finished.stderr) == ("done\n", "")


# Names


def test_a_rule_without_a_name_is_named_by_its_canonical_text():
    assert named(FixedWindow(100, 60)) == {"fixed-window 100/minute": FixedWindow(100, 60)}
    assert named("100/minute") == {"sliding-window-counter 100/minute": SlidingWindowCounter(100, 60)}


def test_each_rule_of_a_text_or_a_sequence_is_named_by_its_own_text():
    expected = {
        "sliding-window-counter 10/s": SlidingWindowCounter(10, 1),
        "token-bucket 5/s burst 9": TokenBucket(9, 5),
    }
    assert named("10/s; 5/s burst 9") == expected
    assert named(["10/s", TokenBucket(9, 5)]) == expected
    assert named(rule for rule in ("10/s; 5/s burst 9",)) == expected
    assert list(named("10/s; 5/s burst 9")) == list(expected)


def test_a_mapping_names_its_rules():
    rules = OrderedDict(user="10/s burst 20", everyone=FixedWindow(50_000, 1))
    assert named(rules) == {"user": TokenBucket(20, 10), "everyone": FixedWindow(50_000, 1)}


def test_the_same_rule_may_have_two_names():
    assert named({"a": "10/s", "b": "10/s"}) == {"a": SlidingWindowCounter(10, 1), "b": SlidingWindowCounter(10, 1)}


def test_a_rule_given_twice_without_names_is_refused():
    with pytest.raises(InvalidRule, match="rule 'sliding-window-counter 1/minute' is given twice; name both"):
        named("1/minute; 1/60s")


@pytest.mark.parametrize("nothing", [{}, [], ()])
def test_a_limiter_needs_a_rule(nothing):
    with pytest.raises(InvalidRule, match="a limiter needs at least one rule"):
        named(nothing)


def test_a_name_stands_for_one_rule():
    with pytest.raises(
        InvalidRule, match="rule 'user' must be one rule, not the 2 in '1/s; 2/m'; give each a name of its own"
    ):
        named({"user": "1/s; 2/m"})


def test_a_name_has_from_1_to_100_characters():
    assert list(named({"x": "1/s", "y" * 100: "1/s"})) == ["x", "y" * 100]
    for name in ("", "y" * 101):
        with pytest.raises(InvalidRule, match="a rule's name must have from 1 to 100 characters, not '"):
            named({name: "1/s"})


@pytest.mark.parametrize("name", [None, 1, b"user", ("a",)])
def test_a_name_is_a_str(name):
    with pytest.raises(TypeError, match="a rule's name must be a str, not "):
        named({name: "1/s"})


@pytest.mark.parametrize("rule", [None, 10, 1.5, b"10/s", object()])
def test_rules_of_another_type_are_a_type_error(rule):
    with pytest.raises(TypeError, match="rules must be a rule, a text, or a mapping or sequence of these, not "):
        named(rule)


@pytest.mark.parametrize("rule", [None, 10, ("10/s",), FixedWindow])
def test_what_is_no_rule_in_a_mapping_or_sequence_is_a_type_error(rule):
    message = "a rule must be one of ratekeeper's rules or a text such as '100/minute'.*, not "
    with pytest.raises(TypeError, match=message):
        named([rule])
    with pytest.raises(TypeError, match=message):
        named({"a": rule})
