"""What Limiter and AsyncLimiter do alike, each case on both; and what only Limiter does."""

import copy
import functools
import json
import logging
import math
import pickle
from fractions import Fraction

import pytest

from ratekeeper import (
    Decision,
    FixedWindow,
    InvalidRule,
    LeakyBucket,
    Limiter,
    RatekeeperError,
    RateLimited,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
)
from ratekeeper.stores import MemoryStore
from ratekeeper.testing import ManualClock
from tests import inside
from tests.faces import FACES

BUCKET = TokenBucket(capacity=10, refill_rate=1)
BUCKET_NAME = "token-bucket 1/s burst 10"
LAYERS = {"user": TokenBucket(capacity=2, refill_rate=1), "tenant": FixedWindow(limit=5, window=60)}
KEYS = {"user": "42", "tenant": "acme"}


@pytest.fixture(params=FACES.values(), ids=FACES)
def face(request):
    return request.param


@pytest.fixture
def clock():
    return ManualClock(start=1_700_000_040)  # the start of a minute


@pytest.fixture
def make(face, clock):
    """Make a limiter of either kind on the test's clock."""

    def make(rules=BUCKET, store="memory://", **options):
        return face(rules, store, clock=clock, **options)

    return make


# one rule


def test_hit_consumes_one_by_default(make):
    assert make().hit("a") == Decision(
        allowed=True,
        limit=10,
        remaining=9,
        retry_after=0.0,
        reset_after=1.0,
        delay=0.0,
        rule=BUCKET_NAME,
        layers={},
        degraded=False,
    )


def test_hit_consumes_its_cost(make):
    assert make().hit("a", cost=4).remaining == 6


def test_hit_that_does_not_fit_consumes_nothing(make):
    limiter = make()
    limiter.hit("a", 8)
    denied = limiter.hit("a", 5)
    assert (denied.allowed, denied.remaining, denied.retry_after) == (False, 2, 3.0)
    assert limiter.hit("a", 2).allowed


def test_hit_above_the_capacity_is_denied_for_ever(make):
    assert make().hit("a", 11).retry_after == math.inf


def test_hit_that_was_denied_is_admitted_when_it_said(make, clock):
    limiter = make()
    limiter.hit("a", 10)
    clock.advance(limiter.hit("a").retry_after)
    assert limiter.hit("a").allowed


def test_a_decision_is_true_only_when_allowed(make):
    limiter = make(FixedWindow(1, 60))
    assert [bool(limiter.hit("a")) for _ in range(2)] == [True, False]


def test_peek_tells_whether_a_cost_would_be_admitted(make):
    limiter = make()
    limiter.hit("a", 8)
    assert [limiter.peek("a", cost).allowed for cost in (2, 3)] == [True, False]


def test_peek_shows_the_key_as_it_stands(make):
    limiter = make()
    limiter.hit("a", 8)
    seen = limiter.peek("a", 5)
    assert (seen.remaining, seen.retry_after, seen.reset_after) == (2, 3.0, 8.0)


def test_peek_creates_nothing(make):
    limiter = make()
    limiter.peek("a")
    assert limiter.store.size == 0


def test_a_denied_hit_on_an_untouched_key_creates_nothing(make):
    limiter = make()
    limiter.hit("a", 11)
    assert limiter.store.size == 0


def test_charge_consumes_beyond_the_limit(make):
    limiter = make()
    limiter.charge("a", 13)
    standing = limiter.peek("a")
    assert (standing.allowed, standing.remaining, standing.retry_after) == (False, 0, 4.0)


def test_charge_returns_how_the_key_stands_then(make):
    assert make().charge("a", 3).remaining == 7


def test_refund_gives_back(make):
    limiter = make()
    limiter.hit("a", 10)
    assert limiter.refund("a", 4).remaining == 4
    assert limiter.peek("a").remaining == 4


def test_refund_gives_back_at_most_what_is_in_use(make):
    limiter = make()
    limiter.hit("a", 3)
    assert limiter.refund("a", 7).remaining == 10


def test_refund_of_an_untouched_key_creates_nothing(make):
    limiter = make()
    assert limiter.refund("a", 7).remaining == 10
    assert limiter.store.size == 0


def test_reset_forgets_the_key(make):
    limiter = make()
    limiter.hit("a", 10)
    assert limiter.reset("a") is None
    assert limiter.peek("a").remaining == 10
    assert limiter.store.size == 0


def test_keys_do_not_share_usage(make):
    limiter = make()
    limiter.hit("a", 10)
    assert limiter.hit("b").remaining == 9


def test_the_shortest_way_and_the_general_way_decide_alike(make):
    quick, general = make(), make(on_decision=lambda key, decision: None)
    for cost in (3, 4, 5, 3, 1, 11):
        assert quick.hit("a", cost) == general.hit("a", cost)


# inspect


def test_inspect_shows_a_token_bucket_in_words(make, clock):
    limiter = make()
    limiter.hit("a", 4)
    clock.advance(Fraction(1, 2))
    seen = limiter.inspect("a")[BUCKET_NAME]
    assert seen.rule == BUCKET_NAME
    assert seen.state == {"tokens": 6.5, "capacity": 10, "refill_rate": 1.0}
    assert seen.ttl == 3.5
    assert seen.raw == (4_000_000 << 120) + (1_000_000 << 60) + 1_700_000_040_000_000


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (FixedWindow(10, 60), {"window_start": 1_700_000_040, "window_end": 1_700_000_100, "count": 3}),
        (
            SlidingWindowCounter(10, 60),
            {
                "window_start": 1_700_000_040,
                "window_end": 1_700_000_100,
                "count": 3,
                "before": 0,
                "weight": 1.0,
                "estimate": 3.0,
            },
        ),
        (TokenBucket(10, 1), {"tokens": 7.0, "capacity": 10, "refill_rate": 1.0}),
        (LeakyBucket(10, 1), {"level": 3.0, "capacity": 10, "leak_rate": 1.0}),
        (
            LeakyBucket(10, 1, "shaping"),
            {"level": 3.0, "capacity": 10, "leak_rate": 1.0, "next_departure": 1_700_000_043},
        ),
    ],
    ids=lambda value: value.text if hasattr(value, "text") else "",
)
def test_inspect_has_words_for_every_rule(make, rule, words):
    limiter = make(rule)
    limiter.hit("a", 3)
    assert limiter.inspect("a")[rule.text].state == words


def test_inspect_counts_the_units_of_a_log(make):
    limiter = make(SlidingWindowLog(10, 60))
    limiter.hit("a", 3)
    assert limiter.inspect("a")["sliding-window-log 10/minute"].state["count"] == 3


def test_inspect_of_an_untouched_key_shows_an_unused_rule(make):
    seen = make().inspect("a")[BUCKET_NAME]
    assert (seen.raw, seen.ttl, seen.bytes) == (None, None, 0)
    assert seen.state == {"tokens": 10.0, "capacity": 10, "refill_rate": 1.0}


def test_inspect_of_a_key_that_is_full_again_is_that_of_an_untouched_one(make, clock):
    limiter = make()
    limiter.hit("a", 4)
    clock.advance(4)
    assert limiter.inspect("a") == limiter.inspect("b")


def test_inspect_counts_the_bytes_of_the_key_too(make):
    limiter = make()
    limiter.hit("a")
    limiter.hit("a" * 101)
    short, long = (limiter.inspect(key)[BUCKET_NAME].bytes for key in ("a", "a" * 101))
    assert short > 0
    assert long == short + 100


def test_inspect_changes_nothing(make):
    limiter = make()
    limiter.inspect("a")
    assert limiter.store.size == 0


def test_inspect_shows_every_rule_by_name(make):
    limiter = make(LAYERS)
    limiter.hit(KEYS)
    seen = limiter.inspect(KEYS)
    assert {name: inspection.rule for name, inspection in seen.items()} == {
        "user": "token-bucket 1/s burst 2",
        "tenant": "fixed-window 5/minute",
    }
    assert seen["tenant"].state["count"] == 1


# several rules


def test_every_rule_is_charged_when_all_admit(make):
    limiter = make(LAYERS)
    limiter.hit(KEYS)
    layers = limiter.peek(KEYS).layers
    assert {name: layer.remaining for name, layer in layers.items()} == {"user": 1, "tenant": 4}


def test_no_rule_is_charged_when_a_later_one_denies(make):
    limiter = make(LAYERS)
    limiter.charge({"user": "other", "tenant": "acme"}, {"user": 1, "tenant": 5})
    assert not limiter.hit(KEYS)
    assert limiter.peek(KEYS).layers["user"].remaining == 2


def test_no_rule_is_charged_when_an_earlier_one_denies(make):
    limiter = make(LAYERS)
    assert not limiter.hit(KEYS, {"user": 3})
    assert limiter.peek(KEYS).layers["tenant"].remaining == 5


def test_a_plain_key_is_the_key_of_every_rule(make):
    limiter = make(LAYERS)
    limiter.hit("42")
    layers = limiter.peek({"user": "42", "tenant": "42"}).layers
    assert {name: layer.remaining for name, layer in layers.items()} == {"user": 1, "tenant": 4}


def test_a_plain_cost_is_the_cost_for_every_rule(make):
    limiter = make(LAYERS)
    layers = limiter.hit(KEYS, 2).layers
    assert {name: layer.remaining for name, layer in layers.items()} == {"user": 0, "tenant": 3}


def test_a_rule_that_the_costs_leave_out_costs_one(make):
    layers = make(LAYERS).hit(KEYS, {"tenant": 3}).layers
    assert {name: layer.remaining for name, layer in layers.items()} == {"user": 1, "tenant": 2}


def test_a_cost_of_0_leaves_a_rule_out_of_the_decision(make):
    limiter = make(LAYERS)
    decision = limiter.hit(KEYS, {"user": 0})
    assert list(decision.layers) == ["tenant"]
    assert (decision.rule, decision.remaining) == ("tenant", 4)
    assert limiter.peek(KEYS).layers["user"].remaining == 2


def test_an_exhausted_rule_that_is_left_out_does_not_deny(make):
    limiter = make(LAYERS)
    limiter.charge(KEYS, {"user": 2, "tenant": 1})
    assert limiter.hit(KEYS, {"user": 0}).allowed


def test_costs_that_leave_every_rule_out_are_refused(make):
    with pytest.raises(InvalidRule, match=r"cost \{'user': 0, 'tenant': 0\} leaves every rule out"):
        make(LAYERS).hit(KEYS, {"user": 0, "tenant": 0})


def test_the_binding_rule_of_an_admission_is_the_one_with_the_least_left(make):
    decision = make(LAYERS).hit(KEYS)
    assert (decision.rule, decision.limit, decision.remaining) == ("user", 2, 1)


def test_the_binding_rule_of_a_denial_is_the_one_with_the_longest_wait(make, clock):
    limiter = make(LAYERS)
    limiter.charge(KEYS, {"user": 2, "tenant": 5})
    clock.advance(Fraction(1, 2))
    denied = limiter.hit(KEYS)
    assert (denied.rule, denied.limit, denied.retry_after) == ("tenant", 5, 59.5)
    assert denied.layers["user"].retry_after == 0.5


def test_of_equals_the_first_rule_binds(make):
    same = {"a": FixedWindow(3, 60), "b": FixedWindow(3, 60)}
    limiter = make(same)
    assert limiter.hit("k", 3).rule == "a"
    assert limiter.hit("k", 3).rule == "a"


def test_a_cost_that_never_fits_binds_before_any_finite_wait(make):
    limiter = make(LAYERS)
    limiter.charge(KEYS, {"user": 2, "tenant": 5})
    denied = limiter.hit(KEYS, {"user": 3, "tenant": 1})
    assert (denied.rule, denied.retry_after) == ("user", math.inf)


def test_reset_after_is_the_longest_of_all_rules(make):
    assert make(LAYERS).hit(KEYS).reset_after == 60.0


def test_delay_is_the_longest_of_all_rules(make):
    limiter = make({"shaped": LeakyBucket(5, 2, "shaping"), "wide": FixedWindow(100, 60)})
    assert [limiter.hit("a").delay for _ in range(3)] == [0.0, 0.5, 1.0]


def test_each_layer_of_a_denial_answers_as_to_a_peek(make):
    limiter = make(LAYERS)
    limiter.charge(KEYS, {"user": 2, "tenant": 1})
    layers = limiter.hit(KEYS).layers
    assert (layers["user"].allowed, layers["user"].remaining) == (False, 0)
    assert (layers["tenant"].allowed, layers["tenant"].remaining) == (True, 4)


def test_a_layer_is_a_whole_decision_under_its_own_name(make):
    assert make(LAYERS).hit(KEYS).layers["tenant"] == Decision(True, 5, 4, 0.0, 60.0, 0.0, "tenant", {}, False)


def test_charge_refund_and_reset_reach_every_rule(make):
    limiter = make(LAYERS)
    limiter.charge(KEYS, 2)
    assert {name: layer.remaining for name, layer in limiter.peek(KEYS).layers.items()} == {"user": 0, "tenant": 3}
    limiter.refund(KEYS, 1)
    assert {name: layer.remaining for name, layer in limiter.peek(KEYS).layers.items()} == {"user": 1, "tenant": 4}
    limiter.reset(KEYS)
    assert {name: layer.remaining for name, layer in limiter.peek(KEYS).layers.items()} == {"user": 2, "tenant": 5}


def test_a_mapping_works_for_a_single_rule_too(make):
    limiter = make({"only": BUCKET})
    limiter.hit({"only": "a"}, {"only": 4})
    assert limiter.peek("a").remaining == 6


def test_a_single_rule_has_no_layers(make):
    assert make({"only": BUCKET}).hit({"only": "a"}).layers == {}


def test_texts_in_a_sequence_are_several_rules(make):
    assert list(make(["10/s", BUCKET]).rules) == ["sliding-window-counter 10/s", BUCKET_NAME]


# switched off


def test_switched_off_admits_everything(make):
    limiter = make(FixedWindow(1, 60), enabled=False)
    assert [limiter.hit("a").allowed for _ in range(3)] == [True, True, True]


def test_switched_off_answers_like_an_untouched_key(make):
    assert make(FixedWindow(3, 60), enabled=False).hit("a", 2) == Decision(
        True, 3, 3, 0.0, 0.0, 0.0, "fixed-window 3/minute", {}, False
    )


def test_switched_off_has_layers_too(make):
    assert list(make(LAYERS, enabled=False).hit(KEYS).layers) == ["user", "tenant"]


@pytest.mark.parametrize("method", ["hit", "peek", "charge", "refund", "reset", "wait"])
def test_switched_off_touches_nothing(face, clock, method):
    store = MemoryStore()
    working = face(BUCKET, store, clock=clock)
    working.hit("a", 6)
    getattr(face(BUCKET, store, clock=clock, enabled=False), method)("a")
    assert working.peek("a").remaining == 4
    assert store.size == 1


@pytest.mark.parametrize("method", ["hit", "peek", "charge", "refund", "reset", "inspect", "wait"])
def test_switched_off_still_refuses_a_bad_key(make, method):
    with pytest.raises(InvalidRule, match="key must not be empty"):
        getattr(make(enabled=False), method)("")


@pytest.mark.parametrize("method", ["hit", "peek", "charge", "refund", "wait"])
def test_switched_off_still_refuses_a_bad_cost(make, method):
    with pytest.raises(InvalidRule, match="cost must be an int of at least 1, not -1"):
        getattr(make(enabled=False), method)("a", -1)


def test_switched_off_still_refuses_a_bad_timeout(make):
    with pytest.raises(InvalidRule, match="timeout must be at least 0 seconds, not -1"):
        make(enabled=False).wait("a", timeout=-1)


# the hook


def test_on_decision_gets_the_key_and_the_decision(make):
    seen = []
    limiter = make(FixedWindow(1, 60), on_decision=lambda key, decision: seen.append((key, decision)))
    decisions = [limiter.hit("a"), limiter.hit("a")]
    assert seen == [("a", decisions[0]), ("a", decisions[1])]


def test_on_decision_gets_a_mapping_of_keys_as_it_was_given(make):
    seen = []
    make(LAYERS, on_decision=lambda key, decision: seen.append(key)).hit(KEYS)
    assert seen == [KEYS]


def test_on_decision_is_told_of_a_wait_that_was_admitted(make):
    seen = []
    limiter = make(on_decision=lambda key, decision: seen.append((key, decision.remaining)))
    limiter.wait("a", 3)
    assert seen == [("a", 7)]


def test_on_decision_is_told_of_a_wait_that_was_refused(make):
    seen = []
    limiter = make(on_decision=lambda key, decision: seen.append((key, decision.allowed)))
    with pytest.raises(RateLimited):
        limiter.wait("a", 11)
    assert seen == [("a", False)]


def test_on_decision_is_told_when_switched_off(make):
    seen = []
    limiter = make(enabled=False, on_decision=lambda key, decision: seen.append((key, decision.allowed)))
    limiter.hit("a")
    limiter.wait("b")
    assert seen == [("a", True), ("b", True)]


def test_on_decision_that_raises_is_logged_and_the_decision_stands(make, caplog):
    def on_decision(key, decision):
        raise LookupError("the hook is broken")

    with caplog.at_level(logging.ERROR, logger="ratekeeper"):
        assert make(on_decision=on_decision).hit("a").remaining == 9
    assert "on_decision raised an exception; the decision is unaffected" in caplog.text
    assert "the hook is broken" in caplog.text


def test_on_decision_may_stop_the_program(make):
    def on_decision(key, decision):
        raise SystemExit

    with pytest.raises(SystemExit):
        make(on_decision=on_decision).hit("a")


# which limiters share usage


def test_limiters_that_mean_the_same_share_usage_on_one_store(make):
    store = MemoryStore()
    make(TokenBucket(10, 1), store).hit("a", 4)
    assert make("token-bucket 60/minute burst 10", store).peek("a").remaining == 6


def test_a_limiter_and_an_async_limiter_share_usage_on_one_store(clock):
    store = MemoryStore()
    for face in FACES.values():
        face(BUCKET, store, clock=clock).hit("a", 4)
    assert Limiter(BUCKET, store, clock=clock).peek("a").remaining == 2


@pytest.mark.parametrize(
    ("rules", "options"),
    [
        (TokenBucket(10, 2), {}),
        (LeakyBucket(10, 1), {}),
        ({"named": BUCKET}, {}),
        (BUCKET, {"prefix": "other"}),
    ],
    ids=["another rate", "another algorithm", "another name", "another prefix"],
)
def test_limiters_that_mean_something_else_share_nothing(make, rules, options):
    store = MemoryStore()
    make(BUCKET, store).hit("a", 4)
    assert make(rules, store, **options).peek("a").remaining == 10


def test_another_rule_under_the_same_name_takes_over_the_usage(make):
    store = MemoryStore()
    make({"api": FixedWindow(10, 60)}, store).hit("a", 4)
    assert make({"api": FixedWindow(6, 60)}, store).peek("a").remaining == 2


def test_another_algorithm_under_the_same_name_starts_afresh(make):
    store = MemoryStore()
    make({"api": FixedWindow(10, 60)}, store).hit("a", 4)
    assert make({"api": SlidingWindowLog(10, 60)}, store).peek("a").remaining == 10


def test_a_layer_shares_usage_with_a_limiter_of_that_rule_alone(make):
    store = MemoryStore()
    make(LAYERS, store).hit(KEYS)
    assert make({"tenant": LAYERS["tenant"]}, store).peek("acme").remaining == 4


def test_limiters_with_a_url_share_nothing(make):
    make(BUCKET, "memory://").hit("a", 4)
    assert make(BUCKET, "memory://").peek("a").remaining == 10


def test_a_second_clock_on_one_store_is_refused(face, clock):
    store = MemoryStore()
    face(BUCKET, store, clock=clock)
    with pytest.raises(InvalidRule, match=r"clock ManualClock\(5.0\) differs from this store's"):
        face(BUCKET, store, clock=ManualClock(5))


def test_an_injected_clock_on_a_store_that_uses_the_wall_clock_is_refused(face, clock):
    store = MemoryStore()
    face(BUCKET, store)
    with pytest.raises(InvalidRule, match=r"clock ManualClock.* differs from this store's"):
        face(BUCKET, store, clock=clock)


def test_a_refused_clock_leaves_the_store_as_it_was(face, clock):
    store = MemoryStore()
    first = face(BUCKET, store, clock=clock)
    with pytest.raises(InvalidRule):
        face(FixedWindow(1, 60), store, clock=ManualClock(5))
    first.hit("a", 4)
    clock.advance(1)
    assert first.peek("a").remaining == 7


# the constructor


@pytest.mark.parametrize("url", ["memory://", "async+memory://"])
def test_a_memory_url_makes_a_memory_store(face, url):
    assert isinstance(face(BUCKET, url).store, MemoryStore)


@pytest.mark.parametrize("url", ["ftp://localhost", "memory", "", "async+ftp://", "memory:/", "MEMORY://x"])
def test_an_unknown_url_scheme_is_refused_by_name(face, url):
    with pytest.raises(InvalidRule) as raised:
        face(BUCKET, url)
    assert str(raised.value).startswith(f"store {url!r} has an unknown scheme")


def test_a_memory_url_with_something_behind_it_is_refused(face):
    with pytest.raises(InvalidRule, match="store 'memory://host' must be just 'memory://'"):
        face(BUCKET, "memory://host")


@pytest.mark.parametrize("store", [None, 5, b"memory://", object, MemoryStore])
def test_a_store_that_is_none_is_a_type_error(face, store):
    with pytest.raises(TypeError, match="store must be a URL such as 'memory://' or a store object, not "):
        face(BUCKET, store)


@pytest.mark.parametrize(
    ("option", "value", "error", "text"),
    [
        ("clock", 5, TypeError, "clock must be a callable or None, not 5"),
        ("on_decision", "x", TypeError, "on_decision must be a callable or None, not 'x'"),
        ("prefix", None, TypeError, "prefix must be a str, not None"),
        ("prefix", b"x", TypeError, "prefix must be a str, not b'x'"),
        ("group", 5, TypeError, "group must be a str or None, not 5"),
        ("on_error", "retry", InvalidRule, "on_error must be one of 'local', 'open', 'closed', 'raise', not 'retry'"),
        ("deadline", None, TypeError, "deadline must be a number of seconds, not None"),
        ("deadline", True, TypeError, "deadline must be a number of seconds, not True"),
        ("deadline", "1", TypeError, "deadline must be a number of seconds, not '1'"),
        ("deadline", 0, InvalidRule, "deadline must be above 0 and at most 86400 seconds, not 0"),
        ("deadline", -1, InvalidRule, "deadline must be above 0 and at most 86400 seconds, not -1"),
        ("deadline", 1e10, InvalidRule, "deadline must be above 0 and at most 86400 seconds, not 10000000000.0"),
        ("deadline", math.inf, InvalidRule, "deadline must be above 0 and at most 86400 seconds, not inf"),
        ("deadline", math.nan, InvalidRule, "deadline must be above 0 and at most 86400 seconds, not nan"),
    ],
)
def test_a_bad_option_is_refused_by_name(face, option, value, error, text):
    with pytest.raises(error) as raised:
        face(BUCKET, **{option: value})
    assert str(raised.value) == text


@pytest.mark.parametrize("on_error", ["local", "open", "closed", "raise"])
def test_every_way_to_meet_a_store_that_is_away_is_accepted(face, on_error):
    assert face(BUCKET, on_error=on_error, deadline=1).hit("a").allowed


def test_a_limiter_without_a_rule_is_refused(face):
    with pytest.raises(InvalidRule, match="a limiter needs at least one rule"):
        face({})


def test_rules_are_the_rules_by_name(make):
    assert make(LAYERS).rules == LAYERS


def test_a_rule_without_a_name_is_named_by_its_text(make):
    assert make("fixed-window 100/60s").rules == {"fixed-window 100/minute": FixedWindow(100, 60)}


def test_changing_what_rules_returned_changes_nothing(make):
    limiter = make()
    limiter.rules.clear()
    assert limiter.rules == {BUCKET_NAME: BUCKET}


def test_store_is_the_store_that_was_given(make):
    store = MemoryStore(max_keys=5)
    assert make(store=store).store is store


def test_repr_shows_the_rules_and_the_store(face, clock):
    kind = "Limiter" if face is Limiter else "AsyncLimiter"
    limiter = face({"api": "100/minute"}, clock=clock)
    assert repr(getattr(limiter, "limiter", limiter)) == (
        f"{kind}({{'api': 'sliding-window-counter 100/minute'}}, "
        "store=MemoryStore(max_keys=1000000, size=0, evictions=0))"
    )


def test_close_forgets_what_is_in_a_store_of_its_own(make):
    limiter = make()
    limiter.hit("a", 4)
    limiter.close()
    assert limiter.store.size == 0


def test_close_leaves_a_store_that_was_given_alone(make):
    store = MemoryStore()
    limiter = make(store=store)
    limiter.hit("a", 4)
    limiter.close()
    assert make(store=store).peek("a").remaining == 6


def test_a_closed_limiter_in_memory_starts_afresh(make):
    limiter = make()
    limiter.hit("a", 10)
    limiter.close()
    assert [limiter.hit("a", 6).allowed for _ in range(2)] == [True, False]


def test_close_can_be_called_twice(make):
    limiter = make()
    limiter.close()
    limiter.close()


# only Limiter


def test_leaving_a_with_block_closes_the_limiter(clock):
    with Limiter(BUCKET, clock=clock) as limiter:
        limiter.hit("a")
        assert limiter.store.size == 1
    assert limiter.store.size == 0


def test_slot_waits_and_gives_the_decision(clock):
    limiter = Limiter(BUCKET, clock=clock)
    with limiter.slot("a", cost=3, timeout=1) as decision:
        assert decision.remaining == 7


def test_slot_raises_rate_limited_before_the_block(clock):
    limiter = Limiter(BUCKET, clock=clock)
    limiter.hit("a", 10)
    entered = []
    with pytest.raises(RateLimited), limiter.slot("a", timeout=0.5):
        entered.append(True)
    assert entered == []


def test_slot_lets_an_error_of_the_block_through_and_keeps_what_it_took(clock):
    limiter = Limiter(BUCKET, clock=clock)
    with pytest.raises(LookupError), limiter.slot("a"):
        raise LookupError
    assert limiter.peek("a").remaining == 9


def test_limited_calls_the_function_when_admitted(clock):
    @Limiter(BUCKET, clock=clock).limited(key="k")
    def add(a, b=2):
        return a + b

    assert add(1, b=5) == 6


def test_limited_raises_rate_limited_instead_of_calling(clock):
    calls = []

    @Limiter(FixedWindow(1, 60), clock=clock).limited(key="k")
    def call():
        calls.append(True)

    call()
    with pytest.raises(RateLimited) as raised:
        call()
    assert calls == [True]
    assert raised.value.decision == Decision(False, 1, 0, 60.0, 60.0, 0.0, "fixed-window 1/minute", {}, False)


@pytest.mark.parametrize("timeout", [30, None])
def test_limited_with_a_timeout_waits(timeout):
    limiter = Limiter("token-bucket 100/s burst 1")

    @limiter.limited(key="k", timeout=timeout)
    def call():
        return "called"

    assert [call() for _ in range(3)] == ["called"] * 3  # without waiting, the second one would be denied


def test_limited_does_not_wait_for_what_its_timeout_cannot_meet(clock):
    limiter = Limiter(FixedWindow(1, 60), clock=clock)
    limiter.hit("k")
    with pytest.raises(RateLimited):
        limiter.limited(key="k", timeout=59)(lambda: None)()


@pytest.mark.parametrize("timeout", ["1", True])
def test_limited_refuses_a_timeout_that_is_no_number_at_once(timeout):
    with pytest.raises(TypeError, match="timeout must be a number of seconds or None, not"):
        Limiter(BUCKET).limited(key="k", timeout=timeout)


def test_limited_makes_the_key_of_the_arguments(clock):
    limiter = Limiter(BUCKET, clock=clock)

    @limiter.limited(key=lambda user, *, page: (user, page))
    def show(user, *, page):
        return user

    show("ada", page=3)
    assert limiter.peek(("ada", 3)).remaining == 9


def test_limited_makes_the_cost_of_the_arguments(clock):
    limiter = Limiter(BUCKET, clock=clock)

    @limiter.limited(key="k", cost=len)
    def send(items):
        return items

    send(["a", "b", "c"])
    assert limiter.peek("k").remaining == 7


def test_limited_takes_a_plain_cost_and_a_mapping_of_keys(clock):
    limiter = Limiter(LAYERS, clock=clock)

    @limiter.limited(key=KEYS, cost=2)
    def call():
        return "called"

    assert call() == "called"
    assert limiter.peek(KEYS).layers["tenant"].remaining == 3


def test_limited_keeps_the_name_and_the_docstring(clock):
    def original(a: int) -> int:
        """Describe it."""
        return a

    limited = Limiter(BUCKET, clock=clock).limited(key="k")(original)
    assert (limited.__name__, limited.__doc__, limited.__wrapped__) == ("original", "Describe it.", original)


def test_limited_refuses_a_coroutine_function():
    async def fetch():
        pass

    with pytest.raises(TypeError, match="fetch is a coroutine function; limit it with an AsyncLimiter"):
        Limiter(BUCKET).limited(key="k")(fetch)


def test_limited_refuses_a_partial_of_a_coroutine_function():
    async def fetch(url):
        pass

    with pytest.raises(TypeError, match="is a coroutine function; limit it with an AsyncLimiter"):
        Limiter(BUCKET).limited(key="k")(functools.partial(fetch, "url"))


def test_limited_refuses_a_bad_key_before_the_call(clock):
    calls = []

    @Limiter(BUCKET, clock=clock).limited(key=lambda user: user)
    def call(user):
        calls.append(user)

    with pytest.raises(InvalidRule, match="key must not be empty: ''"):
        call("")
    assert calls == []


def test_a_subclass_decides_like_its_parent(clock):
    class Polite(Limiter):
        def hit(self, key, cost=1):
            decision = super().hit(key, cost)
            return decision._replace(rule=f"please: {decision.rule}")

    limiter = Polite(BUCKET, clock=clock)
    assert limiter.hit("a").rule == f"please: {BUCKET_NAME}"
    assert repr(limiter).startswith("Polite(")


def test_limited_of_a_subclass_uses_its_hit(clock):
    class Double(Limiter):
        def hit(self, key, cost=1):
            return super().hit(key, cost * 2)

    limiter = Double(BUCKET, clock=clock)
    limiter.limited(key="k")(lambda: None)()
    assert limiter.peek("k").remaining == 8


# decisions and errors


def test_rate_limited_says_which_rule_and_until_when(clock):
    limiter = Limiter({"api": FixedWindow(1, 60)}, clock=clock)
    limiter.hit("a")
    clock.advance(0.5)
    assert str(RateLimited(limiter.hit("a"))) == "rate limit 'api' exceeded; try again in 59.500 s"


def test_rate_limited_says_when_the_cost_can_never_fit(clock):
    limiter = Limiter({"api": FixedWindow(3, 60)}, clock=clock)
    assert str(RateLimited(limiter.hit("a", 4))) == "rate limit 'api' exceeded; the cost can never fit into 3"


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_rate_limited_survives_copying_and_pickling(clock, copied):
    error = RateLimited(Limiter(FixedWindow(1, 60), clock=clock).hit("a", 2))
    other = copied(error)
    assert (type(other), other.decision, str(other)) == (RateLimited, error.decision, str(error))


@pytest.mark.parametrize("made", [RateLimited, type("RateLimited", (Exception,), {})])
def test_rate_limited_that_is_made_again_from_json_says_its_text(clock, made):  # by Celery's result backend, say
    limiter = Limiter({"a": FixedWindow(1, 60), "b": FixedWindow(1, 3600)}, clock=clock)
    limiter.hit("k")
    error = RateLimited(limiter.hit("k"))
    assert str(made(*json.loads(json.dumps(error.args)))) == "rate limit 'b' exceeded; try again in 2760.000 s"


def test_rate_limited_without_its_decision_says_where_that_is():
    error = RateLimited("rate limit 'a' exceeded")
    assert not hasattr(error, "decision")
    with pytest.raises(AttributeError, match=r"made from its text, .*; the decision is on the original"):
        _ = error.decision
    with pytest.raises(AttributeError, match="'RateLimited' object has no attribute 'color'"):
        _ = error.color


def test_every_error_has_one_root():
    assert issubclass(RateLimited, RatekeeperError)
    assert issubclass(InvalidRule, RatekeeperError)
    assert issubclass(InvalidRule, ValueError)


@pytest.mark.parametrize(
    ("decision", "advice"),
    [
        (Decision(True, 5, 4, 0.0, 1.0, 0.0, "r", {}, False), "proceed"),
        (Decision(True, 5, 4, 0.0, 1.0, 0.25, "r", {}, False), "proceed in 0.250 s"),
        (Decision(False, 5, 0, 1.5, 2.0, 0.0, "r", {}, False), "try again in 1.500 s"),
        (Decision(False, 5, 0, math.inf, 2.0, 0.0, "r", {}, False), "the cost can never fit into 5"),
    ],
)
def test_a_decision_gives_advice_in_words(decision, advice):
    assert decision.advice == advice


def test_every_decision_is_of_the_public_type(face, clock):
    one, several, off = (
        face(BUCKET, clock=clock),
        face(LAYERS, clock=clock),
        face(BUCKET, clock=clock, enabled=False),
    )
    both = several.hit(KEYS)
    decisions = [
        one.hit("a"),
        one.hit("a", 11),
        one.peek("a"),
        one.wait("a"),
        off.hit("a"),
        both,
        *both.layers.values(),
    ]
    assert [type(decision) for decision in decisions] == [Decision] * 8


def test_a_decision_cannot_be_changed(clock):
    decision = Limiter(BUCKET, clock=clock).hit("a")
    with pytest.raises(AttributeError):
        decision.allowed = False


def test_a_decision_with_layers_is_hashable(clock):
    first, second = (Limiter(LAYERS, clock=clock).hit(KEYS) for _ in range(2))
    assert {first: "one"}[second] == "one"


# a limiter that could not be made


class BindsOne(MemoryStore):
    """A store that takes the first rule of a limiter and fails at the second."""

    def bind(self, binding, clock):
        if binding.name == "second":
            raise OSError("no room")
        super().bind(binding, clock)


def test_a_limiter_that_could_not_be_made_leaves_no_rule_in_force(face):
    store = BindsOne()
    with pytest.raises(OSError, match="no room") as raised:  # which keeps the constructor's objects alive
        face({"first": "1/s", "second": "1/s"}, store)
    assert raised.value
    face("1/m", store)
    assert len(inside.tables(store)) == 1


def test_a_limiter_that_could_not_be_made_lets_a_store_have_another_clock(face):
    store = MemoryStore()
    with pytest.raises(InvalidRule, match="local_share"):
        face(TokenBucket(10, "999979/86399s"), store, clock=ManualClock(), local_share=Fraction(1, 999_983))
    assert face("1/s", store).store is store
