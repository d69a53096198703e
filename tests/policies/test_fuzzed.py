"""Policy files made at random are refused with a reason, or mean what an independent reading of them says."""

import random

import pytest

from ratekeeper.policies import InvalidAttribute, InvalidPolicies, Policies
from ratekeeper.testing import ManualClock
from tests.policies import generated, reading

SEEDS = 150
"""How many files the suite makes; `make torture` makes 10,000."""


def loaded(example):
    """Return the policies in a text, or None if it is refused, with reasons."""
    try:
        return Policies.load(example.text, example.format)
    except InvalidPolicies as error:
        assert error.mistakes
        assert all(mistake.reason for mistake in error.mistakes)
        assert str(error)
        return None


def read(example):
    """Return what an independent reading finds in a text: policies, None if it is refused, or that it is unsure."""
    try:
        return reading.read(example.text, example.format)
    except reading.Refused:
        return None
    except reading.Unsure as unsure:
        return unsure


def check(seed):
    """Compare both; return what came of the file."""
    source = random.Random(seed)
    example = generated.example(source)
    found, expected = loaded(example), read(example)
    if isinstance(expected, reading.Unsure):
        return "unsure"
    assert (found is None) is (expected is None)
    if found is None:
        return "refused"
    assert set(found) == set(expected)
    for name in found:
        limiter = found.limiter(name, clock=ManualClock(1_700_000_000))
        for attributes, cost in generated.requests(source, example.text, 12):
            compare(limiter, expected[name], attributes, cost)
    return "accepted"


def compare(limiter, policy, attributes, cost):
    """Compare one decision with what the independent reading expects."""
    expected = policy.decide(attributes, cost)
    try:
        decision = limiter.hit(attributes, cost)
    except InvalidAttribute as error:
        assert error.attribute in expected.missing
        return
    assert not expected.missing
    assert decision.allowed is expected.allowed
    if expected.is_blocked:
        assert (decision.limit, decision.remaining, decision.retry_after) == (0, 0, float("inf"))
        assert set(decision.shadow_denied) >= expected.shadow_denied
        return
    layers = decision.layers or ({decision.rule: decision} if decision.rule else {})
    assert sorted((name, each.limit, each.remaining) for name, each in layers.items()) == sorted(expected.layers)
    assert set(decision.shadow_denied) == expected.shadow_denied
    assert decision.remaining == min((left for _, _, left in expected.layers), default=None)
    assert decision.limit == (layers[decision.rule].limit if layers else None)


@pytest.mark.parametrize("start", range(0, SEEDS, 25))
def test_a_file_is_refused_with_a_reason_or_means_what_it_says(start):
    for seed in range(start, start + 25):
        check(seed)


def test_files_of_all_kinds_are_made():
    kinds = [check(seed) for seed in range(60)]
    assert all(kinds.count(kind) >= 10 for kind in ("accepted", "refused"))
    assert kinds.count("unsure") <= 6
