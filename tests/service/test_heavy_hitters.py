"""Heavy hitters: the heaviest items of any stream, in bounded memory, with the error that is promised."""

import pickle
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ratekeeper.service.heavy_hitters import HeavyHitters, merged

STREAMS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 50)), max_size=300)


def summary_of(stream, most):
    hitters = HeavyHitters(most)
    for item, weight in stream:
        hitters.add(item, weight)
    return hitters


def exactly(stream):
    weights = Counter()
    for item, weight in stream:
        weights[item] += weight
    return weights


def check(hitters, weights, most):
    total = sum(weights.values())
    assert hitters.total == total
    assert hitters.missed * most <= total
    assert set(hitters.weights) <= set(weights)
    for item, weight in weights.items():
        assert weight - hitters.missed <= hitters.weights.get(item, 0) <= weight


@given(STREAMS, st.integers(1, 8))
def test_no_weight_is_too_high_or_too_low_by_more_than_what_was_missed(stream, most):
    hitters = summary_of(stream, most)
    check(hitters, exactly(stream), most)
    assert len(hitters.weights) <= 2 * most


@given(st.lists(STREAMS, min_size=1, max_size=4), st.integers(1, 8))
def test_summaries_of_several_streams_make_one_of_all(streams, most):
    together = merged(summary_of(stream, most) for stream in streams)
    check(together, sum((exactly(stream) for stream in streams), Counter()), most)


def test_nothing_is_missed_of_few_items():
    stream = [(number % 20, number) for number in range(1, 2_000)]
    hitters = summary_of(stream, 10)
    assert (hitters.missed, hitters.weights) == (0, exactly(stream))


def test_a_heavy_item_stays_in_a_flood_of_others():
    hitters = HeavyHitters(100)
    for number in range(50_000):
        hitters.add(f"flood {number}", 1)
        if number % 20 == 0:
            hitters.add("heavy", 3)
    assert 7_500 - hitters.missed <= hitters.weights["heavy"] <= 7_500
    assert hitters.missed <= 57_500 / 100
    assert len(hitters.weights) <= 200
    assert len(pickle.dumps(hitters.weights)) < 10_000
