"""A rule in shadow denies nothing and is not reported; it is charged if it and the request are admitted."""

import pytest

from ratekeeper import AsyncLimiter, FixedWindow, LeakyBucket, SlidingWindowLog, TokenBucket
from tests.conformance.strategies import START_US

MINUTE_US = 60_000_000
T0 = START_US - START_US % MINUTE_US
RULES = {
    "fixed": FixedWindow(5, 60),
    "log": SlidingWindowLog(5, 60),
    "bucket": TokenBucket(5, "1/minute"),
    "shaping": LeakyBucket(5, "1/minute", mode="shaping"),
}
BINDS = FixedWindow(9, 60)
SHADOWS = pytest.mark.parametrize("shadow", RULES.values(), ids=RULES)


@pytest.fixture(params=["one key", "a key each"])
def keys(request):
    """Both rules on one key, which one slot of a cluster has; or a key each, in slots of several nodes."""
    return dict.fromkeys(("binds", "shadow"), "k") if request.param == "one key" else {"binds": "a", "shadow": "b"}


@pytest.fixture
def subject(driver, shadow):
    """A limiter of two rules, one of which does not bind."""
    return driver.subject({"shadow": shadow, "binds": BINDS}, shadow=["shadow"])


def used(subject, keys):
    """How much of both rules is in use."""
    asked = [("peek", name, keys[name], 1, False) for name in ("binds", "shadow")]
    binds, shadow = (answer[1] for answer in subject.ask(asked, T0).answers)
    return 9 - binds, 5 - shadow


def undo(subject, taken, what, *args):
    """Call give_back() or correct(), which an AsyncReservation wants awaited."""

    async def awaited():
        await getattr(taken, what)(*args)

    if isinstance(subject.limiter, AsyncLimiter):
        subject.run(awaited())
    else:
        getattr(taken, what)(*args)


@SHADOWS
def test_the_answer_is_what_it_would_be_without_it(subject, keys):
    for cost, answer, shadow_used, shadow_denied in (
        (4, (True, 9, 5, 0, 60, 0), 4, ()),
        (4, (True, 9, 1, 0, 60, 0), 4, ("shadow",)),  # which does not fit into it any more
        (4, (False, 9, 1, 60, 60, 0), 4, ("shadow",)),
        (1, (True, 9, 0, 0, 60, 0), 5, ()),
        (1, (False, 9, 0, 60, 60, 0), 5, ("shadow",)),
    ):
        decision = subject.call("hit", T0, cost, keys)
        assert decision[:6] == answer
        assert (decision.rule, list(decision.layers)) == ("binds", ["binds"])
        assert decision.shadow_denied == shadow_denied
        assert used(subject, keys)[1] == shadow_used


@SHADOWS
def test_a_cost_that_never_fits_it_is_admitted_and_not_charged_to_it(subject, keys):
    assert subject.call("hit", T0, 6, keys).allowed
    assert used(subject, keys) == (6, 0)


@SHADOWS
def test_a_denied_request_charges_nothing(subject, keys):
    assert not subject.call("hit", T0, {"binds": 10, "shadow": 1}, keys)
    assert used(subject, keys) == (0, 0)


@SHADOWS
def test_what_it_was_not_charged_is_not_given_back(subject, keys):
    first = subject.call("take", T0, 4, keys)
    second = subject.call("take", T0, 4, keys)
    assert (bool(first), bool(second), used(subject, keys)) == (True, True, (8, 4))
    undo(subject, second, "give_back")
    assert used(subject, keys) == (4, 4)
    undo(subject, first, "give_back")
    assert used(subject, keys) == (0, 0)


@SHADOWS
def test_a_correction_leaves_out_what_it_was_not_charged(subject, keys):
    first = subject.call("take", T0, 4, keys)
    second = subject.call("take", T0, 2, keys)
    undo(subject, second, "correct", 3)
    assert used(subject, keys) == (7, 4)
    undo(subject, second, "correct", 1)
    assert used(subject, keys) == (5, 4)
    undo(subject, first, "correct", 3)
    assert used(subject, keys) == (4, 3)


@SHADOWS
def test_a_reservation_of_a_denied_request_gives_nothing_back(subject, keys):
    subject.call("hit", T0, {"binds": 6, "shadow": 2}, keys)
    denied = subject.call("take", T0, {"binds": 4, "shadow": 1}, keys)
    undo(subject, denied, "give_back")
    undo(subject, denied, "correct", 5)
    assert (bool(denied), used(subject, keys)) == (False, (6, 2))


@SHADOWS
def test_a_rule_alone_that_does_not_bind_limits_nothing(driver, shadow):
    subject = driver.subject({"shadow": shadow}, shadow=True)
    decisions = [subject.call("hit", T0, 2) for _ in range(4)]
    assert [each[:7] for each in decisions] == [(True, None, None, 0, 0, 0, "")] * 4
    assert [each.shadow_denied for each in decisions] == [(), (), ("shadow",), ("shadow",)]
    assert subject.ask([("peek", "shadow", subject.key, 1, False)], T0).answers[0][1] == 1
    undo(subject, subject.call("take", T0, 2), "give_back")  # the fifth, which was not charged
    assert subject.ask([("peek", "shadow", subject.key, 1, False)], T0).answers[0][1] == 1


@SHADOWS
@pytest.mark.parametrize("timeout", [None, 1])
def test_a_wait_does_not_wait_for_it(subject, keys, timeout):
    subject.call("hit", T0, 4, keys)
    for cost, after in ((2, (6, 4)), (1, (7, 5)), (1, (8, 5))):
        decision = subject.run(subject.limiter.wait(keys, cost, timeout))
        assert (decision.allowed, decision.delay) == (True, 0)
        assert used(subject, keys) == after
