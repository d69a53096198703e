"""Several operations in one request: decided at one instant; when one binding demand is denied, nothing changes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekeeper import FixedWindow, LeakyBucket, SlidingWindowLog, TokenBucket
from tests.conformance.strategies import START_US

MINUTE_US = 60_000_000
T0 = START_US - START_US % MINUTE_US
LIMIT = 5
NAMES = ("one", "two", "three", "four")
RULES = {
    "one": FixedWindow(LIMIT, 60),
    "two": SlidingWindowLog(LIMIT, 60),
    "three": TokenBucket(LIMIT, "1/minute"),
    "four": LeakyBucket(LIMIT, "1/minute"),
}
FIXED = {name: FixedWindow(LIMIT, 60) for name in NAMES}
OPERATIONS = ("hit", "peek", "charge", "refund", "reset")


@pytest.fixture(params=["one key", "a key each"])
def keys(request):
    """All rules on one key, which one slot of a cluster has; or a key each, in slots of several nodes."""
    return dict.fromkeys(NAMES, "k") if request.param == "one key" else {name: f"key of {name}" for name in NAMES}


def used(subject, keys):
    """Exactly how much of each rule is in use."""
    layers = subject.ask([("peek", name, keys[name], 1, False) for name in NAMES])
    return {name: LIMIT - answer[1] for name, answer in zip(NAMES, layers.answers, strict=True)}


def test_a_hit_beside_a_charge_is_charged_with_it(driver, keys):
    subject = driver.subject(RULES)
    outcome = subject.ask([("hit", "one", keys["one"], 2, True), ("charge", "two", keys["two"], 4, True)])
    assert [answer[:2] for answer in outcome.answers] == [(True, 3), (True, 1)]
    assert used(subject, keys) == {"one": 2, "two": 4, "three": 0, "four": 0}


def test_what_is_charged_beside_a_denied_hit_is_not(driver, keys):
    subject = driver.subject(RULES)
    before = [("charge", name, keys[name], 3, True) for name in NAMES]
    subject.ask(before)
    outcome = subject.ask([
        ("charge", "two", keys["two"], 1, True),
        ("refund", "three", keys["three"], 1, True),
        ("hit", "one", keys["one"], 3, True),
        ("reset", "four", keys["four"], 1, True),
    ])  # fmt: skip
    assert [answer[:2] for answer in outcome.answers] == [(True, 2), (True, 2), (False, 2), (True, 2)]
    assert used(subject, keys) == dict.fromkeys(NAMES, 3)


def test_a_refund_beside_a_hit_is_done_with_it(driver, keys):
    subject = driver.subject(RULES)
    subject.ask([("charge", name, keys[name], 3, True) for name in NAMES])
    outcome = subject.ask([
        ("refund", "two", keys["two"], 2, True),
        ("hit", "one", keys["one"], 2, True),
        ("reset", "three", keys["three"], 1, True),
    ])  # fmt: skip
    assert [answer[:2] for answer in outcome.answers] == [(True, 4), (True, 0), (True, 5)]
    assert used(subject, keys) == {"one": 5, "two": 1, "three": 0, "four": 3}


def test_a_peek_that_binds_denies_what_is_beside_it_and_takes_nothing_itself(driver, keys):
    subject = driver.subject(RULES)
    subject.ask([("charge", "one", keys["one"], 4, True)])
    for cost, is_admitted in ((2, False), (1, True)):
        outcome = subject.ask([
            ("hit", "two", keys["two"], 1, True),
            ("peek", "one", keys["one"], cost, True),
            ("charge", "three", keys["three"], 1, True),
        ])  # fmt: skip
        assert outcome.answers[1][:2] == (is_admitted, 1)
        assert used(subject, keys) == {"one": 4, "two": is_admitted, "three": is_admitted, "four": 0}


def test_a_peek_that_does_not_bind_denies_nothing(driver, keys):
    subject = driver.subject(RULES)
    subject.ask([("charge", "one", keys["one"], 5, True)])
    outcome = subject.ask([("peek", "one", keys["one"], 1, False), ("hit", "two", keys["two"], 1, True)])
    assert [answer[0] for answer in outcome.answers] == [False, True]
    assert used(subject, keys)["two"] == 1


@pytest.mark.parametrize("beside", [2, 3], ids=["admitted", "denied"])
@pytest.mark.parametrize("own", [1, 2], ids=["fits", "does not fit"])
def test_a_hit_that_does_not_bind_is_charged_if_it_and_the_request_are_admitted(driver, keys, own, beside):
    subject = driver.subject(RULES)
    subject.ask([("charge", "one", keys["one"], 4, True), ("charge", "two", keys["two"], 3, True)])
    outcome = subject.ask([("hit", "one", keys["one"], own, False), ("hit", "two", keys["two"], beside, True)])
    fits, is_admitted = own == 1, beside == 2
    assert [answer[0] for answer in outcome.answers] == [fits, is_admitted]
    assert used(subject, keys) == {"one": 4 + (fits and is_admitted), "two": 3 + 2 * is_admitted, "three": 0, "four": 0}


def test_a_lone_hit_that_does_not_bind_is_charged_if_it_is_admitted(driver, keys):
    subject = driver.subject(RULES)
    answers = [subject.ask([("hit", "one", keys["one"], 3, False)]).answers[0][0] for _ in range(2)]
    assert answers == [True, False]
    assert used(subject, keys)["one"] == 3


def test_a_denied_request_is_answered_alike_when_it_is_asked_again(driver, keys):
    """From memory, on stores that remember denials."""
    subject = driver.subject(RULES)
    subject.ask([("charge", "one", keys["one"], 4, True), ("charge", "two", keys["two"], 2, True)])
    asked = [("hit", "one", keys["one"], 2, True), ("charge", "two", keys["two"], 1, True)]
    first, second = subject.ask(asked), subject.ask(asked)
    assert list(first.answers) == list(second.answers)
    subject.ask([("refund", "one", keys["one"], 1, True), ("peek", "two", keys["two"], 1, True)])
    assert [answer[:2] for answer in subject.ask(asked).answers] == [(True, 0), (True, 2)]


ASKED = st.lists(
    st.tuples(st.sampled_from(OPERATIONS), st.sampled_from(NAMES), st.integers(1, 6), st.booleans()),
    min_size=1,
    max_size=4,
    unique_by=lambda asked: asked[1],
)


@given(st.lists(ASKED, min_size=1, max_size=8))
def test_mixed_requests_are_decided_as_simple_sums_tell(driver, requests):
    """On fixed windows that do not end meanwhile, the usage is a simple sum."""
    subject = driver.subject(FIXED)
    keys = {name: f"key of {name}" for name in NAMES}
    in_use = dict.fromkeys(NAMES, 0)
    for asked in requests:
        outcome = subject.ask([(operation, name, keys[name], cost, binds) for operation, name, cost, binds in asked])
        fits = [cost <= LIMIT - in_use[name] for _, name, cost, _ in asked]
        denied = any(
            binds and operation in ("hit", "peek") and not fit
            for (operation, _, _, binds), fit in zip(asked, fits, strict=True)
        )
        for (operation, name, cost, _), fit, answer in zip(asked, fits, outcome.answers, strict=True):
            if operation in ("hit", "peek"):
                assert answer[0] is fit
            if not denied:
                in_use[name] = _after(operation, in_use[name], cost, fit)
            assert answer[1] == max(0, LIMIT - in_use[name])
    assert used(subject, keys) == {name: min(LIMIT, count) for name, count in in_use.items()}


def _after(operation, count, cost, fits):
    if operation == "hit":
        return count + cost if fits else count
    return {"peek": count, "charge": count + cost, "refund": max(0, count - cost), "reset": 0}[operation]
