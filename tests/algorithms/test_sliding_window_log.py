"""How the log stores its units: the search, removals from the middle, and the memory that it takes."""

import functools
import sys
import tracemalloc
from array import array
from bisect import bisect_right
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekeeper import Limiter, SlidingWindowLog
from ratekeeper.algorithms import EMPTY, sliding_window_log
from ratekeeper.algorithms.sliding_window_log import _seek  # private: for logs of any content

SECOND = 1_000_000


# The search


@st.composite
def logs(draw):
    """A log with two increasing columns after its first three integers."""
    size = draw(st.integers(0, 40) | st.integers(0, 3000))
    steps = st.lists(st.integers(0, 3), min_size=size, max_size=size)
    times, totals = list(accumulate(draw(steps))), list(accumulate(draw(steps)))
    return [3, 0, 0, *(number for entry in zip(times, totals, strict=True) for number in entry)]


@given(logs(), st.integers(0, 1), st.data())
def test_seek_finds_the_first_entry_above_a_bound(log, column, data):
    entries = (len(log) - 3) // 2
    start = data.draw(st.integers(0, entries))
    values = log[3 + column :: 2]
    bound = data.draw(st.sampled_from(values or [0])) + data.draw(st.integers(-1, 1))
    assert _seek(log, 3 + 2 * start, column, bound) == 3 + 2 * bisect_right(values, bound, lo=start)


class CountingArray(array):
    """Counts how often an item is read or written."""

    accesses = 0

    def __getitem__(self, index):
        CountingArray.accesses += 1
        return array.__getitem__(self, index)

    def __setitem__(self, index, value):
        CountingArray.accesses += 1
        array.__setitem__(self, index, value)


@functools.cache
def full_log(rule):
    """A log that one unit a second has filled, at the seconds 0, 1, ..."""
    log = None
    for second in range(rule.limit):
        log = rule.charge(log, second * SECOND, 1)
    return log


@pytest.mark.parametrize("limit", [100, 100_000])
@pytest.mark.parametrize("expired_percent", [0, 1, 49, 50, 51, 90, 99])
@pytest.mark.parametrize("cost_percent", [0, 1, 50, 100])
def test_a_decision_reads_few_entries_however_long_the_log(limit, expired_percent, cost_percent):
    rule = SlidingWindowLog(limit, limit)
    log = CountingArray("q", full_log(rule))
    expired, cost = limit * expired_percent // 100, max(1, limit * cost_percent // 100)
    now = (limit - 1) * SECOND + expired * SECOND + 1
    CountingArray.accesses = 0
    _, allowed, remaining, *_ = rule.decide(log, now, cost, consume=True)
    assert 0 < CountingArray.accesses <= 80
    assert (allowed, remaining) == ((True, expired - cost) if cost <= expired else (False, expired))


# Against a plain list of units


@given(
    st.integers(1, 12),
    st.lists(
        st.tuples(
            st.sampled_from(["hit", "hit", "hit", "charge", "refund", "give_back"]),
            st.integers(1, 6),  # cost
            st.sampled_from([0, 1, 1, 2, 3, 5, 11]),  # seconds until the next
            st.integers(0, 12),  # which of the last times a give-back names
        ),
        max_size=60,
    ),
)
def test_a_log_holds_what_a_plain_list_of_units_holds(limit, steps):
    rule = SlidingWindowLog(limit, 10)
    log, units, now, times = EMPTY, [], 1_000_000_000, [0]
    for operation, cost, pause, back in steps:
        units = [unit for unit in units if now < unit + 10 * SECOND]
        if operation == "hit":
            fits = len(units) + cost <= limit
            log, allowed, *_ = rule.decide(log, now, cost, consume=True)
            assert allowed is fits
            units += [now] * (cost if fits else 0)
        elif operation == "charge":
            log = rule.charge(log, now, cost)
            units += [now] * cost
        elif operation == "refund":
            log = rule.refund(log, now, cost) if log else log
            units = units[: max(0, len(units) - cost)]
        else:
            charged_at = times[-1 - back % len(times)]
            log = rule.give_back(log, now, cost, charged_at, charged_at + 10 * SECOND) if log else log
            for _ in range(min(cost, units.count(charged_at))):
                units.remove(charged_at)
        _, _, remaining, retry_after, reset_after, _ = rule.decide(log, now, 1, consume=False)
        assert remaining == max(0, limit - len(units))
        assert retry_after == (0 if len(units) < limit else units[len(units) - limit] + 10 * SECOND - now)
        assert reset_after == (units[-1] + 10 * SECOND - now if units else 0)
        counted = {time / SECOND: units.count(time) for time in units}
        assert dict(rule.words(log, now)["entries"]) == counted
        times.append(now)
        now += pause * SECOND


def test_a_give_back_takes_units_out_of_the_middle():
    rule = SlidingWindowLog(10, 60)
    log = EMPTY
    for time, cost in [(0, 2), (1, 3), (2, 4)]:
        log = rule.decide(log, time * SECOND, cost, consume=True)[0]
    log = rule.give_back(log, 3 * SECOND, 2, 1 * SECOND, 61 * SECOND)
    assert rule.words(log, 3 * SECOND)["entries"] == [(0, 2), (1, 1), (2, 4)]
    log = rule.give_back(log, 3 * SECOND, 5, 1 * SECOND, 61 * SECOND)
    assert rule.words(log, 3 * SECOND)["entries"] == [(0, 2), (2, 4)]
    log = rule.give_back(log, 3 * SECOND, 1, 1 * SECOND, 61 * SECOND)
    assert rule.words(log, 3 * SECOND)["entries"] == [(0, 2), (2, 4)]


def test_a_refund_takes_the_newest_units_across_entries():
    rule = SlidingWindowLog(10, 60)
    log = EMPTY
    for time, cost in [(0, 2), (1, 3), (2, 4)]:
        log = rule.decide(log, time * SECOND, cost, consume=True)[0]
    log = rule.refund(log, 3 * SECOND, 5)
    assert rule.words(log, 3 * SECOND)["entries"] == [(0, 2), (1, 2)]
    log = rule.refund(log, 3 * SECOND, 2)
    assert rule.words(log, 3 * SECOND)["entries"] == [(0, 2)]
    assert rule.refund(log, 3 * SECOND, 2) == EMPTY


def test_running_totals_never_outgrow_the_log():
    """A log that never empties counts on for ever; nearly 2^63 units have passed through this one."""
    rule = SlidingWindowLog(10**12, 60)
    cost = 10**10
    total = 2**63 - 65 * cost
    log = array("q", [3, 0, total - cost, 0, total])  # one hit, at second 0
    for second in range(1, 200):
        log, allowed, *_ = rule.decide(log, second * SECOND, cost, consume=True)
        assert allowed
    assert rule.words(log, 199 * SECOND)["count"] == 60 * cost


# Memory


def bytes_per_unit(limit, keys, windows):
    """The most that full logs of this limit take while they slide through several windows, the store included."""
    seconds = [1_700_000_000]
    limiter = Limiter(SlidingWindowLog(limit, limit), clock=lambda: seconds[0] * 10**9)
    names = [f"key {number}" for number in range(keys)]
    limiter.hit("another")
    most = 0
    tracemalloc.start()
    try:
        start = tracemalloc.get_traced_memory()[0]
        for number in range(limit * windows):
            for name in names:
                limiter.hit(name)
            seconds[0] += 1
            if number >= limit - 1 and number % (1 + limit // 50) == 0:
                most = max(most, tracemalloc.get_traced_memory()[0] - start)
        assert all(limiter.peek(name).remaining <= 1 for name in names)
    finally:
        tracemalloc.stop()
    return most / (limit * keys)


@pytest.mark.parametrize(("limit", "keys", "windows"), [(100, 20, 5), (1_000, 3, 5), (100_000, 1, 1)])
def test_a_full_log_takes_at_most_40_bytes_a_unit(limit, keys, windows):
    assert bytes_per_unit(limit, keys, windows) <= 40


def test_a_long_log_that_slides_takes_at_most_40_bytes_a_unit():
    limit = 100_000
    rule = SlidingWindowLog(limit, limit)
    log = EMPTY
    most = 0
    for second in range(3 * limit):
        log = rule.decide(log, second * SECOND, 1, consume=True)[0]
        if second >= limit and second % 500 == 0:
            most = max(most, sys.getsizeof(log))
    assert most / limit <= 40


def test_units_of_one_moment_are_one_entry_however_many():
    rule = SlidingWindowLog(10**9, 60)
    log = rule.decide(EMPTY, 0, 10**6, consume=True)[0]
    for _ in range(1000):
        log = rule.decide(log, 0, 10**3, consume=True)[0]
    assert sys.getsizeof(log) < 200


def test_a_log_that_was_long_once_is_short_again():
    rule = SlidingWindowLog(10_000, 60)
    log = EMPTY
    for unit in range(10_000):
        log = rule.decide(log, unit, 1, consume=True)[0]
    for unit in range(5):
        log = rule.decide(log, 59 * SECOND + unit, 1, consume=False)[0]
    log = rule.charge(log, 59 * SECOND, 1)
    log = rule.charge(log, 61 * SECOND, 1)
    assert rule.words(log, 61 * SECOND)["count"] == 2
    assert sys.getsizeof(log) < 500


def test_what_is_left_is_true_after_units_have_left():
    rule = SlidingWindowLog(limit=10, window="10us")
    log = None
    left = []
    for now in (100, 109, 110, 111):
        log, _, remaining, *_ = rule.decide(log, now, 1, consume=True)
        left.append(remaining)
    assert left == [9, 8, 8, 7]


def test_totals_count_from_zero_again_before_they_outgrow_their_bits(monkeypatch):
    rule = SlidingWindowLog(limit=300, window="100us")

    def answers():
        log = None
        for now in range(1000, 3000):
            log, *answer = rule.decide(log, now, 1 + now % 3, consume=True)
            yield answer
            if now % 10 == 0:  # the oldest unit, right after those that have expired
                log = rule.give_back(log, now, 1, now - 99, now + 1)

    expected = list(answers())
    monkeypatch.setattr(sliding_window_log, "_FAR", 50)
    assert list(answers()) == expected


def test_a_log_whose_newest_unit_is_more_than_a_window_ahead_counts_as_untouched():
    rule = SlidingWindowLog(limit=2, window="10us")
    log = None
    for now in (100, 109):
        log = rule.decide(log, now, 1, consume=True)[0]
    assert rule.decide(log, 99, 1, consume=False)[1:3] == (False, 0)
    assert rule.decide(log, 98, 1, consume=False)[1:3] == (True, 2)


# The short way, which only looks at the oldest entry


def test_the_oldest_entry_is_known_after_the_first_was_given_back_and_after_loading():
    rule = SlidingWindowLog(10, 60)
    log = EMPTY
    for second in (1, 2, 3):
        log = rule.decide(log, second * SECOND, 1, consume=True)[0]
    log = rule.give_back(log, 3 * SECOND, 1, 1 * SECOND, 61 * SECOND)
    assert rule.words(log, 3 * SECOND)["entries"] == [(2, 1), (3, 1)]
    assert rule.decide(log, 61 * SECOND, 9, consume=True)[1:3] == (False, 8)
    assert rule.decide(log, 62 * SECOND, 9, consume=True)[1:3] == (True, 0)
    loaded = rule.load([block(5, 3, [(0, 1)])])
    assert rule.words(loaded, 6 * SECOND)["entries"] == [(5, 1)]
    assert rule.decide(loaded, 65 * SECOND, 10, consume=True)[1:3] == (True, 0)


def block(begins, width, entries, before=0):
    """A block of a log on Redis: a header of 27 bytes, and for each entry its relative time and a running total."""
    head = bytes([width]) + (begins * SECOND).to_bytes(7, "big") + before.to_bytes(6, "big") + bytes(13)
    return head + b"".join((at * SECOND).to_bytes(5, "big") + total.to_bytes(width, "big") for at, total in entries)


def test_a_log_is_loaded_from_the_blocks_of_redis():
    rule = SlidingWindowLog(10_000, 3_600)
    start = 1_700_000_000
    log = rule.load(
        [
            block(start, 6, [(0, 300), (7, 301)]),
            block(start + 100, 3, [(0, 2), (1, 2), (300, 5)], before=301),  # the second one was given back
        ]
    )
    now = (start + 400) * SECOND
    assert rule.words(log, now)["entries"] == [(start, 300), (start + 7, 1), (start + 100, 2), (start + 400, 3)]
    assert rule.decide(log, now, 1, consume=False)[2] == 10_000 - 306
    assert rule.decide(log, (start + 3_600) * SECOND, 1, consume=False)[2] == 10_000 - 6


def test_a_log_of_which_all_was_given_back_is_loaded_as_empty():
    rule = SlidingWindowLog(10, 60)
    log = rule.load([block(100, 3, [(0, 0)])])
    assert rule.decide(log, 100 * SECOND, 1, consume=True)[1:3] == (True, 9)
