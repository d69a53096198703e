"""Several rules on one request: all or nothing, and which of them is reported."""

import math

from ratekeeper import FixedWindow, LeakyBucket, SlidingWindowLog, TokenBucket
from tests.conformance.kit import exact
from tests.conformance.model import Answer
from tests.conformance.strategies import START_US

MINUTE_US = 60_000_000
T0 = START_US - START_US % MINUTE_US


def test_none_is_charged_when_one_denies(driver):
    subject = driver.subject({"user": FixedWindow(1, 60), "tenant": FixedWindow(5, 60)})
    assert subject.call("hit", T0).allowed
    assert not subject.call("hit", T0).allowed
    standing = subject.call("peek", T0)
    assert {name: layer.remaining for name, layer in standing.layers.items()} == {"user": 0, "tenant": 4}


def test_a_later_rule_that_denies_leaves_the_earlier_ones_as_they_were(driver):
    subject = driver.subject({"tenant": SlidingWindowLog(5, 60), "user": FixedWindow(1, 60)})
    subject.call("hit", T0)
    stored = subject.stored(T0)
    assert not subject.call("hit", T0).allowed
    assert subject.stored(T0) == stored


def test_the_smallest_remaining_binds_an_admitted_request(driver):
    subject = driver.subject({"a": FixedWindow(9, 60), "b": FixedWindow(3, 30), "c": FixedWindow(5, 60)})
    decision = subject.call("hit", T0)
    assert (decision.rule, decision.limit, decision.remaining) == ("b", 3, 2)
    assert exact(decision) == Answer(True, 2, 0, MINUTE_US, 0)


def test_the_longest_retry_after_binds_a_denied_request(driver):
    subject = driver.subject({"a": FixedWindow(1, 10), "b": FixedWindow(1, 60), "c": FixedWindow(1, 30)})
    subject.call("hit", T0)
    decision = subject.call("hit", T0)
    assert (decision.rule, decision.retry_after) == ("b", 60.0)


def test_never_is_the_longest_of_all(driver):
    subject = driver.subject({"a": FixedWindow(1, 60), "b": FixedWindow(2, 1)})
    subject.call("hit", T0, {"b": 2})
    decision = subject.call("hit", T0, {"b": 3})
    assert (decision.rule, decision.retry_after, decision.limit) == ("b", math.inf, 2)


def test_of_equals_the_first_binds(driver):
    rules = {"z": FixedWindow(2, 60), "a": FixedWindow(2, 60), "m": FixedWindow(2, 60)}
    subject = driver.subject(rules)
    assert subject.call("hit", T0).rule == "z"
    subject.call("hit", T0)
    assert subject.call("hit", T0).rule == "z"
    assert subject.call("hit", T0, {"z": 1, "a": 3, "m": 3}).rule == "a"


def test_reset_after_and_delay_are_the_largest_of_all(driver):
    subject = driver.subject({"a": FixedWindow(1, 60), "queue": LeakyBucket(9, 1, "shaping")})
    subject.call("hit", T0, {"a": 0, "queue": 3})
    decision = subject.call("hit", T0)
    assert decision.rule == "a"
    assert exact(decision) == Answer(True, 0, 0, MINUTE_US, 3_000_000)
    assert exact(decision.layers["a"]) == Answer(True, 0, 0, MINUTE_US, 0)
    assert exact(decision.layers["queue"]) == Answer(True, 5, 0, 4_000_000, 3_000_000)


def test_in_a_denial_each_layer_answers_as_to_a_peek(driver):
    subject = driver.subject({"a": FixedWindow(1, 60), "queue": LeakyBucket(9, 1, "shaping")})
    subject.call("hit", T0, {"queue": 3})
    denied = subject.call("hit", T0, {"queue": 2})
    assert exact(denied.layers["a"]) == Answer(False, 0, MINUTE_US, MINUTE_US, 0)
    assert exact(denied.layers["queue"]) == Answer(True, 6, 0, 3_000_000, 3_000_000)
    assert exact(denied) == Answer(False, 0, MINUTE_US, MINUTE_US, 3_000_000)


def test_a_cost_of_zero_leaves_a_rule_out_of_the_decision(driver):
    subject = driver.subject({"requests": FixedWindow(1, 60), "tokens": TokenBucket(100, 1)})
    subject.call("hit", T0, {"requests": 1, "tokens": 40})
    decision = subject.call("hit", T0, {"requests": 0, "tokens": 30})
    assert decision.allowed
    assert list(decision.layers) == ["tokens"]
    assert (decision.rule, decision.remaining) == ("tokens", 30)


def test_a_rule_that_a_mapping_of_costs_leaves_out_costs_one(driver):
    subject = driver.subject({"requests": FixedWindow(5, 60), "tokens": TokenBucket(100, 1)})
    layers = subject.call("hit", T0, {"tokens": 40}).layers
    assert {name: layer.remaining for name, layer in layers.items()} == {"requests": 4, "tokens": 60}


def test_each_rule_may_have_a_key_of_its_own(driver):
    subject = driver.subject({"user": FixedWindow(1, 60), "all": FixedWindow(2, 60)})
    users = [subject.call("hit", T0, key={"user": user, "all": "all"}).rule for user in ("ann", "bob", "cid")]
    assert users == ["user", "user", "all"]
    assert not subject.call("hit", T0, key={"user": "cid", "all": "all"}).allowed
    assert subject.call("hit", T0, key={"user": "cid", "all": "other"}).allowed
