"""Many rules under one name, as overrides make them: few are asked about a state, and none of them loses it."""

import random

import pytest

from ratekeeper import FixedWindow, Limiter, parse
from ratekeeper.stores import MemoryStore
from ratekeeper.stores.rules_in_force import RulesInForce
from ratekeeper.testing import ManualClock
from tests.conformance.strategies import ALGORITHMS

NOW = 1_700_000_000_000_000
MANY = 300


def rules_of(algorithm, random):
    """Many rules that may be under one name: with the same window, or buckets of any rate."""
    name, _, mode = algorithm.partition(" ")
    if "bucket" in name:
        texts = [
            f"{name} {random.randint(1, 999)}/{random.choice(['s', 'minute', '7s', 'day'])} "
            f"burst {random.randint(1, 999)} {mode}"
            for _ in range(MANY)
        ]
    else:
        texts = [f"{name} {random.randint(1, 9_999)}/minute" for _ in range(MANY)]
    return [parse(text)[0] for text in texts]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_state_is_kept_as_long_as_any_rule_needs_it_though_few_are_asked(algorithm):
    dice = random.Random(algorithm)
    rules = rules_of(algorithm, dice)
    in_force = RulesInForce(rules)
    assert len(in_force.asked) <= 2
    assert (in_force.limit, in_force.span_us) == (max(r.limit for r in rules), max(r.span_us for r in rules))
    for _ in range(200):
        state = None
        for rule in dice.sample(rules, 3):
            state = rule.charge(state, NOW + dice.randrange(10**7), dice.randint(1, rule.limit))
        assert in_force.expires_at(state) >= max(rule.expires_at(state) for rule in rules)
        assert in_force.share(state, NOW) <= max(rule.share(state, NOW) for rule in rules)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_is_no_longer_in_force_is_not_asked_once_few_are_left(algorithm):
    rules = list(dict.fromkeys(rules_of(algorithm, random.Random(algorithm))))
    in_force = RulesInForce([*rules, *rules])
    for rule in rules:
        in_force.remove(rule)
    assert len(in_force) == len(rules)  # each was there twice
    for rule in rules[5:]:
        in_force.remove(rule)
    assert list(in_force) == list(in_force.asked) == rules[:5]
    assert in_force.limit == max(rule.limit for rule in rules[:5])


def test_many_limits_under_one_name_cost_a_hit_nothing(monkeypatch):
    store, clock = MemoryStore(), ManualClock(0)
    limiters = [Limiter({"user": f"fixed-window {limit}/minute"}, store, clock=clock) for limit in range(1, 201)]
    asked = []
    monkeypatch.setattr(FixedWindow, "expires_at", lambda _, state: asked.append(state) or 60_000_000)
    assert limiters[-1].hit("ada").remaining == 199
    assert 0 < len(asked) <= 4
