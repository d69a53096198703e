"""What the stored keys of a rule are named by: its name or, so that no name reaches another rule's usage, its text."""

import itertools

import pytest

from ratekeeper import AsyncLimiter, FixedWindow, InvalidRule, Limiter, RateLimited, TokenBucket
from ratekeeper.algorithms import all_of
from ratekeeper.stores import MemoryStore, RedisStore, SqliteStore
from ratekeeper.testing import ManualClock
from tests import servers
from tests.faces import FACES

A_MONTH_US = 30 * 86_400_000_000
RULES = all_of(5, A_MONTH_US)
OTHER = FixedWindow(1_000_000, "1us")
by_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.text)
prefixes = (f"stored by {number}" for number in itertools.count())


@pytest.fixture(scope="module", params=["memory", "SQLite", "Redis"])
def store(request, tmp_path_factory):
    if request.param == "memory":
        store = MemoryStore()
    elif request.param == "SQLite":
        store = SqliteStore(tmp_path_factory.mktemp("sqlite") / "limits.db")
    else:
        store = RedisStore(servers.shared(servers.newest()).url)
    yield store
    store.close()


@pytest.fixture
def made(store):
    """Make limiters that share usage with each other and with no other test."""
    prefix = next(prefixes)

    def made(rules, stored_by="text"):
        return Limiter(rules, store, prefix=prefix, stored_by=stored_by, on_error="raise", deadline=30)

    return made


def remaining(decision):
    return {name: layer.remaining for name, layer in decision.layers.items()}


# A name that is another rule's text


@pytest.mark.parametrize("limiter", [Limiter, AsyncLimiter])
@by_rule
def test_a_name_that_is_the_text_of_another_rule_is_refused(limiter, rule):
    with pytest.raises(InvalidRule) as raised:
        limiter({"user": "1/s", rule.text: OTHER})
    assert str(raised.value) == (
        f"rule name {rule.text!r} is the text of another rule, but this rule is 'fixed-window 1000000/1us'; "
        "use a name that is not a rule's text"
    )


@by_rule
def test_a_rule_may_be_named_by_its_own_text_and_is_then_the_rule_without_a_name(rule):
    store, clock = MemoryStore(), ManualClock()
    Limiter({rule.text: rule}, store, clock=clock).hit("k", 3)
    assert Limiter(rule, store, clock=clock).peek("k").remaining == 2


@pytest.mark.parametrize(
    "name", ["5/day", "fixed-window", "fixed-window 24h", "fixed-window 5/24h", "moving-window 5/d"]
)
def test_a_name_that_no_rule_has_as_its_text_is_a_name(name):
    assert list(Limiter({name: OTHER}).rules) == [name]


# Stored by text


@pytest.mark.parametrize("stored_by", [None, "", "key", True])
def test_a_rule_is_stored_by_its_name_or_by_its_text(stored_by):
    with pytest.raises(InvalidRule, match=r"^stored_by must be 'name' or 'text', not "):
        Limiter("1/s", stored_by=stored_by)


@by_rule
def test_rules_stored_by_text_share_usage_with_the_same_rule_and_with_no_other(made, rule):
    made({"user": rule}).hit("k", 2)
    for other in (*RULES, OTHER, TokenBucket(10**12, 10**6)):
        if other != rule:
            made({"user": other}).hit("k", 5)
    assert made({"anything": rule}).peek("k").remaining == 3
    assert made(rule).peek("k").remaining == 3
    assert made(rule, "name").peek("k").remaining == 3
    assert made({"user": rule}, "name").peek("k").remaining == 5


@pytest.mark.parametrize("face", FACES.values(), ids=FACES)
def test_a_decision_names_the_rules_as_they_were_given(face):
    rules = {"user": FixedWindow(5, "1d"), "tenant": FixedWindow(9, "1d")}
    limiter = face(rules, stored_by="text", clock=ManualClock())
    decision = limiter.hit({"user": "ada", "tenant": "acme"}, {"user": 2, "tenant": 1})
    assert decision.rule == "user"
    assert remaining(decision) == {"user": 3, "tenant": 8}
    assert list(limiter.inspect("ada")) == ["user", "tenant"]


# Rules that are equal and have the same key


@pytest.fixture
def meeting(made):
    """Two names for one rule, and a rule of its own."""
    return made({"user": FixedWindow(5, "30d"), "all": FixedWindow(50, "30d"), "tenant": FixedWindow(5, "30d")})


def test_equal_rules_with_the_same_key_are_charged_together(meeting):
    assert remaining(meeting.hit("k")) == {"user": 3, "all": 49, "tenant": 3}
    assert remaining(meeting.hit("k", {"user": 2, "tenant": 1})) == {"user": 0, "all": 48, "tenant": 0}
    denied = meeting.hit("k", {"user": 1, "tenant": 0})
    assert (denied.allowed, denied.rule) == (False, "user")
    assert remaining(denied) == {"user": 0, "all": 48}


def test_equal_rules_with_the_same_key_are_admitted_together_or_denied(meeting):
    assert not meeting.hit("k", 3)
    assert remaining(meeting.peek("k")) == {"user": 5, "all": 50, "tenant": 5}


def test_equal_rules_with_different_keys_are_charged_each(meeting):
    decision = meeting.hit({"user": "ada", "tenant": "acme", "all": "all"}, 2)
    assert remaining(decision) == {"user": 3, "all": 48, "tenant": 3}


def test_what_was_charged_together_is_refunded_corrected_given_back_and_reset_together(meeting):
    meeting.charge("k", {"user": 2, "tenant": 2})
    assert remaining(meeting.refund("k")) == {"user": 3, "all": 50, "tenant": 3}
    taken = meeting.take("k")
    taken.correct({"user": 2})
    assert remaining(meeting.peek("k")) == {"user": 0, "all": 49, "tenant": 0}
    taken.give_back()
    assert remaining(meeting.peek("k")) == {"user": 3, "all": 50, "tenant": 3}
    assert {name: seen.state["count"] for name, seen in meeting.inspect("k").items()} == {
        "user": 2,
        "all": 0,
        "tenant": 2,
    }
    meeting.reset("k")
    assert remaining(meeting.peek("k")) == {"user": 5, "all": 50, "tenant": 5}


def test_a_wait_for_equal_rules_with_the_same_key_takes_both_together(meeting):
    assert remaining(meeting.wait("k", 2, timeout=5)) == {"user": 1, "all": 48, "tenant": 1}
    with pytest.raises(RateLimited) as raised:
        meeting.wait("k", timeout=0)
    assert remaining(raised.value.decision) == {"user": 1, "all": 48, "tenant": 1}
