"""Policy files made at random are refused with a reason, or mean what an independent reading of them says."""

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekeeper.policies import InvalidAttribute, InvalidPolicies, Policies
from ratekeeper.testing import ManualClock
from tests.policies import generated, reading


def loaded(text, form):
    """Return the policies in a text, or None if it is refused, with reasons; and how long that took."""
    begun = time.perf_counter()
    try:
        found, mistakes = Policies.load(text, form), None
    except InvalidPolicies as error:
        found, mistakes = None, error.mistakes
    took = time.perf_counter() - begun
    assert found is not None or (mistakes and all(mistake.reason for mistake in mistakes))
    return found, took


def compared(seed):
    """Make a file, read it in both ways, and compare their decisions; return what came of it, and the time to load."""
    source = random.Random(seed)
    example = generated.example(source)
    found, took = loaded(example.text, example.format)
    try:
        expected = reading.read(example.text, example.format)
    except reading.Refused:
        expected = None
    except reading.Unsure:
        return "unsure", took
    assert (found is None) is (expected is None), f"seed {seed}"
    if found is None:
        return "refused", took
    assert list(found) == list(expected)
    for name, policy in expected.items():
        limiter = found.limiter(name, clock=ManualClock(1_700_000_000))
        for attributes, cost in generated.requests(source, example.text, 12):
            wanted = policy.decide(attributes, cost)
            assert decided(limiter, attributes, cost, wanted), f"seed {seed}: {attributes} costs {cost}: {wanted}"
    return "accepted", took


def decided(limiter, attributes, cost, wanted):
    """Tell whether a decision is the one that is wanted."""
    try:
        decision = limiter.hit(attributes, cost)
    except InvalidAttribute as error:
        return error.attribute in wanted.missing
    if wanted.missing or decision.allowed is not wanted.allowed:
        return False
    if wanted.is_blocked:
        blocked = (decision.limit, decision.remaining, decision.retry_after) == (0, 0, float("inf"))
        return blocked and set(decision.shadow_denied) >= wanted.shadow_denied
    layers = decision.layers or ({decision.rule: decision} if decision.rule else {})
    return (
        layers.keys() == {name for name, _, _ in wanted.layers}
        and {(name, each.limit, each.remaining) for name, each in layers.items()} <= set(wanted.layers)
        and decision.remaining == min((left for _, _, left in wanted.layers), default=None)
        and decision.limit == (layers[decision.rule].limit if layers else None)
        and set(decision.shadow_denied) == wanted.shadow_denied
    )


@given(st.integers(0, 2**32))
def test_a_file_is_refused_with_a_reason_or_means_what_it_says(seed):
    compared(seed)


def test_files_of_all_kinds_are_made():
    kinds = [compared(seed)[0] for seed in range(150)]
    assert min(kinds.count(kind) for kind in ("accepted", "refused")) >= 50
    assert kinds.count("unsure") <= 10


@pytest.mark.parametrize("bomb", generated.BOMBS)
def test_what_is_made_to_cost_much_is_refused_at_once(bomb):
    form, text = generated.BOMBS[bomb]
    found, took = loaded(text, form)
    assert found is None
    assert took < 10 * 0.1 * 10  # a hang on a busy machine
