"""The comparison: what it answers, that it is the same each time, and what it refuses."""

import dataclasses
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import islice

import httpx
import pytest

from ratekeeper.simulate import PATTERNS, patterns, simulate
from tests.playground.serving import served
from tests.servers import PATIENCE


@pytest.fixture(scope="module")
def visitor():
    with served() as url, httpx.Client(base_url=url, timeout=PATIENCE) as client:
        yield client


def compare(visitor, **body):
    return visitor.post("/api/compare", json=body)


def test_the_boundary_attack_doubles_the_fixed_window_and_no_other(visitor):
    result = compare(visitor, traffic="boundary", limit=10, window=10).json()
    peaks = {rule["name"]: rule["peak"]["units"] for rule in result["rules"]}
    assert peaks.pop("fixed-window 10/10s") == 20
    assert peaks["sliding-window-log 10/10s"] == 10
    assert max(peaks.values()) == peaks["sliding-window-counter 10/10s"] == 11


@pytest.mark.parametrize("traffic", PATTERNS)
def test_the_same_request_gives_the_same_answer(visitor, traffic):
    body = {"traffic": traffic, "limit": 7, "window": 3, "seed": 5}
    assert compare(visitor, **body).content == compare(visitor, **body).content


def test_another_seed_is_another_run(visitor):
    runs = [compare(visitor, traffic="poisson", seed=seed).json()["requests"] for seed in (1, 2)]
    assert runs[0] != runs[1]


def test_drawn_traffic_is_spread_evenly_over_its_slices(visitor):
    result = compare(visitor, traffic="drawn", slices=[2, 0, 1, 0], duration=4).json()
    assert result["requests"] == {"at_us": [0, 500_000, 2_000_000], "cost": [1, 1, 1]}


def test_a_cost_counts_for_each_request(visitor):
    result = compare(visitor, traffic="drawn", slices=[4], duration=4, limit=10, cost=3).json()
    assert [rule["admitted"]["requests"] for rule in result["rules"]][:3] == [3, 3, 3]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"traffic": "rain"}, "traffic"),
        ({"traffic": ["boundary"]}, "traffic"),
        ({"limit": 0}, "limit"),
        ({"limit": "x"}, "limit"),
        ({"window": 0}, "window"),
        ({"rate": -1}, "rate"),
        ({"rate": 1e6}, "rate"),
        ({"duration": "soon"}, "duration"),
        ({"duration": 1e5}, "duration"),
        ({"duration": 1e5, "rate": 1e-300}, "duration"),
        ({"traffic": "poisson", "rate": 5e-324}, "traffic"),
        ({"rate": 1e308, "duration": 1e-6}, "rate"),
        ({"traffic": "burst", "window": "400 days", "duration": "1ms", "rate": 1e6}, "traffic"),
        ({"limit": 100_000}, "limit"),
        ({"duration": 1e-6}, "traffic"),
        ({"seed": -1}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"cost": 0}, "cost"),
        ({"traffic": "drawn"}, "slices"),
        ({"traffic": "drawn", "slices": []}, "slices"),
        ({"traffic": "drawn", "slices": [0, 0]}, "slices"),
        ({"traffic": "drawn", "slices": [1, -1]}, "slices"),
        ({"traffic": "drawn", "slices": [2000, 1]}, "slices"),
        ({"color": "red"}, "color"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_the_field_to_blame(visitor, body, field):
    answer = compare(visitor, **body)
    assert (answer.status_code, answer.json()["field"]) == (400, field)
    assert len(answer.json()["error"]) > 10
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("traffic", PATTERNS)
def test_no_more_requests_are_made_than_can_be_compared(visitor, traffic, monkeypatch):
    """All that fits into a microsecond of a long window: half a window's burst would be 10^13 requests."""
    made = []
    pattern = patterns.PATTERNS[traffic]

    def moments(plan):
        for moment in pattern.moments(plan):
            made.append(moment)
            yield moment

    monkeypatch.setitem(patterns.PATTERNS, traffic, dataclasses.replace(pattern, moments=moments))
    body = {"traffic": traffic, "window": "400 days", "duration": "1ms", "rate": 1e6}
    assert compare(visitor, **body).status_code in (200, 400)
    assert len(made) <= 2_001


def test_a_comparison_beyond_those_that_wait_is_told_to_come_back(visitor, monkeypatch):
    go_on = threading.Event()

    def wait(*given):
        go_on.wait(PATIENCE)
        return simulate(*given)

    monkeypatch.setattr("ratekeeper.playground.compare.simulate", wait)
    with ThreadPoolExecutor(40) as pool:
        answers = [pool.submit(compare, visitor) for _ in range(40)]
        soonest = [answer.result() for answer in islice(as_completed(answers, PATIENCE), 8)]
        go_on.set()
    assert [(answer.status_code, answer.headers["retry-after"]) for answer in soonest] == [(503, "1")] * 8
    assert Counter(answer.result().status_code for answer in answers) == {200: 32, 503: 8}


def test_comparisons_take_turns_in_one_thread(visitor):
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda seed: compare(visitor, traffic="poisson", seed=seed), range(24)))
    assert {answer.status_code for answer in answers} == {200}
    assert len([thread for thread in threading.enumerate() if thread.name.startswith("compare")]) == 1


def test_an_empty_body_is_the_boundary_attack(visitor):
    assert visitor.post("/api/compare").json()["traffic"]["name"] == "boundary"
