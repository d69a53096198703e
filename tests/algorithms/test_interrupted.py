"""A step changes a log at once: an exception from a signal handler leaves it as it was, or as it should be.

All other states are values that are never changed.
"""

from array import array
from contextlib import suppress
from copy import copy

import pytest

from ratekeeper import SlidingWindowLog
from ratekeeper.algorithms import sliding_window_log
from ratekeeper.algorithms.sliding_window_log import _seek  # private: a log that no step would write
from tests import points
from tests.waiters import Call

SECOND = 1_000_000
START = 1_700_000_000 * SECOND
RULES = [SlidingWindowLog(8, 10), SlidingWindowLog(200, 10)]  # the second frees expired entries only now and then
STEPS = {
    "hit": lambda rule, state, now: rule.decide(state, now, 2, True)[0],
    "charge": lambda rule, state, now: rule.charge(state, now, 9),
    "refund": lambda rule, state, now: rule.refund(state, now, 2),
    "give_back": lambda rule, state, now: rule.give_back(state, now, 2, START + 4 * SECOND, START + 14 * SECOND),
}


def used(rule):
    """Return a state with some expired and some live entries, and the time."""
    state = None
    for at_us, cost in [(0, 2), (SECOND, 1), (4 * SECOND, 2), (6 * SECOND, 1)]:
        for unit in range(rule.limit // 8):
            state = rule.decide(state, START + at_us + unit, cost, True)[0]
    return state, START + 11 * SECOND + 9


def standing(rule, state, now):
    """Return everything that a state shows, now and a second later."""
    return [
        (rule.words(state, at_us), [rule.decide(state, at_us, cost, False)[1:] for cost in range(1, rule.limit + 1)])
        for at_us in (now, now + SECOND)
    ]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.text)
@pytest.mark.parametrize("begins_again", [False, True], ids=["", "totals begin again"])
def test_a_step_that_is_interrupted_has_happened_or_has_not(rule, step, begins_again, monkeypatch):
    if begins_again:  # private: otherwise it takes 2^61 units
        monkeypatch.setattr(sliding_window_log, "_FAR", 1)
    state, now = used(rule)
    take = STEPS[step]
    before, after = standing(rule, state, now), standing(rule, take(rule, copy(state), now), now)
    assert before != after
    point = 0
    reached = True
    with points.handled_by(points.interrupt):
        while reached:
            kept = [copy(state)]  # as a store keeps it
            try:
                reached = points.at(point, lambda kept=kept: kept.append(take(rule, kept[0], now)))
            except points.Interruption:
                reached = True
            assert Call(standing, rule, kept[-1], now).outcome() in (before, after), f"at point {point}"
            point += 1
    assert point > 5


@pytest.mark.parametrize("column", [0, 1])
def test_a_search_ends_whatever_the_log_holds(column):
    def search():
        for length in range(40):
            log = array("q", [3, 0, 0, *range(length)])
            for bound in range(-1, length + 1):
                with suppress(IndexError):
                    _seek(log, 3, column, bound)

    Call(search).outcome()
