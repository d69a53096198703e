"""Whatever a visitor sends to the playground, the answer is at worst a problem, never our failure, and comes soon."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ratekeeper.algorithms import ALGORITHMS
from ratekeeper.simulate import PATTERNS
from tests.service.serving import InProcess

NAMES = [algorithm.algorithm for algorithm in ALGORITHMS]
PATHS = [
    "/api/compare",
    "/api/rate-limit/reset",
    *(f"/api/rate-limit/{name}{ending}" for name in (*NAMES, "gcra") for ending in ("", "/burst", "/state")),
]
extremes = st.sampled_from(
    [
        *(0, -1, 1, 2, 10, 10**12, 10**13, 2**53, 2**63, 2**64, 10**30, 10**400, 5e-324, 1e-300, 1e-9, 0.1, 1.7e308),
        *("", "1us", "400 days", "1/400 days", "1" * 300, "1/us", "-1", "drawn", "policing", "\ud800", "\0"),
    ]
)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | extremes
values = scalars | st.lists(scalars, max_size=4) | st.dictionaries(st.text(max_size=3), scalars, max_size=2)


def bodies(**known):
    """Objects with some of these names, each with a usable value or with any."""
    return st.fixed_dictionaries({}, optional={name: usable | values for name, usable in known.items()})


comparisons = bodies(
    traffic=st.sampled_from([*PATTERNS, "drawn"]),
    limit=extremes,
    window=extremes,
    rate=extremes,
    duration=extremes,
    seed=extremes,
    cost=extremes,
    slices=st.lists(st.integers(0, 50), max_size=250),
)
visits = bodies(
    config=bodies(
        maxRequests=extremes,
        windowSeconds=extremes,
        maxTokens=extremes,
        refillRate=extremes,
        capacity=extremes,
        leakRate=extremes,
        mode=st.sampled_from(["policing", "shaping"]),
    ),
    cost=extremes,
    count=extremes,
    concurrent=st.booleans(),
)


@pytest.fixture(scope="module")
def app():
    return InProcess()


@pytest.mark.parametrize("path", PATHS)
@given(body=visits | comparisons | values)
@example(body={"traffic": "poisson", "rate": 5e-324})
@example(body={"traffic": "burst", "window": "400 days", "duration": "1ms", "rate": 1e6})
def test_no_body_is_a_failure_of_ours(app, path, body):
    content = json.dumps(body).encode()  # NaN and Infinity, too, which are no JSON
    answer = app.ask("POST", path, content=content, headers={"content-type": "application/json"})
    assert answer.status_code in (200, 400)
    assert answer.headers["content-type"] == ("application/json" if answer.is_success else "application/problem+json")
    assert len(answer.content) < 2**20


@given(body=comparisons)
def test_no_comparison_is_a_failure_of_ours(app, body):
    test_no_body_is_a_failure_of_ours.hypothesis.inner_test(app, "/api/compare", body)
