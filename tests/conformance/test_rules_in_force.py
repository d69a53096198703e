"""Two rules in force at once under one name: making one takes nothing from what the other keeps."""

import pytest

from tests.conformance.kit import rule_of
from tests.conformance.strategies import ALGORITHMS

HOUR_US = 3_600_000_000
START_US = 472_222 * HOUR_US  # where an hour begins


def rules(algorithm, limit, span_us):
    """A rule by the name of "user": `limit` units in this time."""
    name, _, mode = algorithm.partition(" ")
    rule = {"algorithm": name, "limit": limit, "window_us": span_us, "capacity": limit, "mode": mode}
    return {"user": rule_of(rule | {"rate": [limit * 1_000_000, span_us]})}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("first", ["slow", "fast"])
def test_a_rule_of_a_short_window_lets_another_of_its_name_forget_nothing(driver, algorithm, first):
    slow_rules, fast_rules = rules(algorithm, 2, HOUR_US), rules(algorithm, 1_000, 1_000_000)
    if first == "slow":
        slow = driver.subject(slow_rules)
        fast = slow.beside(fast_rules)
    else:
        fast = driver.subject(fast_rules)
        slow = fast.beside(slow_rules)
    admitted = 0
    for second in range(30):
        now = START_US + second * 1_000_000
        admitted += slow.hit(now).allowed
        fast.peek(now)
        assert fast.call("hit", now, key=f"another {second}")
    assert admitted == 2
    assert not slow.hit(START_US + HOUR_US // 2 - 1).allowed


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_is_used_under_a_short_window_counts_in_a_longer_one_of_its_name(driver, algorithm):
    slow_rules, fast_rules = rules(algorithm, 10, HOUR_US), rules(algorithm, 1_000, 1_000_000)
    slow = driver.subject(slow_rules)
    fast = slow.beside(fast_rules)
    fast.hit(START_US, 5)
    for second in range(1, 30):
        fast.call("hit", START_US + second * 1_000_000, key=f"another {second}")
    state = fast_rules["user"].decide(None, START_US, 5, True)[0]
    kept = slow_rules["user"].decide(state, START_US + 29_000_000, 1, False)[2]  # 5, if the state counts units
    assert slow.peek(START_US + 29_000_000).remaining == kept
