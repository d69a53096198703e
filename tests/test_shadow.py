"""Rules in shadow: they decide and count, and deny nothing."""

import asyncio
import logging
import pickle

import pytest

from ratekeeper import AsyncLimiter, FixedWindow, InvalidRule, LeakyBucket, Limiter, RateLimited
from ratekeeper.http.headers import Headers
from ratekeeper.http.http_limiter import HttpLimiter
from ratekeeper.stores import MemoryStore
from ratekeeper.testing import ManualClock

RULES = {"user": FixedWindow(2, 60), "all": FixedWindow(3, 60)}


def test_rules_in_shadow_deny_nothing():
    limiter = Limiter("fixed-window 2/minute", shadow=True)
    decisions = [limiter.hit("k") for _ in range(4)]
    assert all(decisions)
    assert [each.shadow_denied for each in decisions] == [(), ()] + 2 * [("fixed-window 2/minute",)]
    assert [(each.limit, each.remaining, each.rule) for each in decisions] == [(None, None, "")] * 4


def test_the_other_rules_decide_as_without_the_one_in_shadow():
    limiter = Limiter(RULES, shadow=["user"], clock=ManualClock(0))
    decisions = [limiter.hit({"user": "ada", "all": "all"}) for _ in range(4)]
    assert [(each.allowed, each.rule, each.remaining) for each in decisions] == [
        (True, "all", 2),
        (True, "all", 1),
        (True, "all", 0),
        (False, "all", 0),
    ]
    assert [each.shadow_denied for each in decisions] == [(), (), ("user",), ("user",)]
    assert limiter.notices.counts["shadow_denied"] == 2


def test_it_works_the_same_when_awaited():
    async def main():
        limiter = AsyncLimiter(RULES, shadow=["user"])
        decisions = [await limiter.hit("k") for _ in range(4)]
        assert [each.allowed for each in decisions] == [True, True, True, False]
        assert [each.shadow_denied for each in decisions] == [(), (), ("user",), ("user",)]
        assert limiter.notices.counts["shadow_denied"] == 2
        assert (await limiter.take("k")).decision.shadow_denied == ("user",)
        with pytest.raises(RateLimited):
            await limiter.wait("k", timeout=0)

    asyncio.run(main())


def test_a_peek_says_it_and_counts_nothing():
    limiter = Limiter("2/minute", shadow=True)
    assert limiter.peek("k", 2).shadow_denied == ()
    assert limiter.peek("k", 3).shadow_denied == ("sliding-window-counter 2/minute",)
    assert limiter.charge("k", 3).shadow_denied == limiter.refund("k", 1).shadow_denied == ()
    assert limiter.notices.counts["shadow_denied"] == 0


def test_what_would_be_denied_is_logged_now_and_then(caplog):
    limiter = Limiter({"user": FixedWindow(1, 60)}, shadow=["user"])
    for _ in range(101):
        limiter.hit("k")
    assert limiter.notices.counts["shadow_denied"] == 100
    said = "shadow_denied: rule 'user' would have denied a request; take it out of shadow to"
    assert [record.getMessage() for record in caplog.records] == [
        f"{said} enforce it ({times} so far; see .notices)" for times in (1, 10, 100)
    ]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_the_hook_gets_the_decision():
    seen = []
    limiter = Limiter("1/minute", shadow=True, on_decision=lambda key, decision: seen.append((key, *decision[-1])))
    limiter.hit("k")
    limiter.hit("k")
    assert seen == [("k",), ("k", "sliding-window-counter 1/minute")]


def test_a_shaping_rule_in_shadow_delays_nobody():
    limiter = Limiter({"slow": LeakyBucket(2, 1, mode="shaping")}, shadow=True, clock=ManualClock())
    decisions = [limiter.wait("k") for _ in range(3)]
    assert [each.delay for each in decisions] == [0.0] * 3
    assert decisions[2].shadow_denied == ("slow",)


def test_a_decision_with_shadow_can_be_pickled():
    decision = Limiter(FixedWindow(1, 60), shadow=True).hit("k", 2)
    assert pickle.loads(pickle.dumps(decision)) == decision
    assert decision.shadow_denied == ("fixed-window 1/minute",)


def test_usage_counts_once_the_rule_is_enforced():
    store, clock = MemoryStore(), ManualClock()
    Limiter({"user": FixedWindow(2, 60)}, store, clock=clock, shadow=True).hit("ada", 2)
    assert not Limiter({"user": FixedWindow(2, 60)}, store, clock=clock).hit("ada")


@pytest.mark.parametrize(
    ("shadow", "error", "said"),
    [
        ("user", TypeError, "shadow must be True, False or a list of rule names, not 'user'"),
        (1, TypeError, "shadow must be True, False or a list of rule names, not 1"),
        (["usr"], InvalidRule, "shadow names an unknown rule 'usr'; the rules are 'user', 'all'"),
        ([["user"]], InvalidRule, "shadow names an unknown rule"),
    ],
)
def test_a_bad_shadow_is_refused(shadow, error, said):
    with pytest.raises(error, match=said):
        Limiter(RULES, shadow=shadow)


def test_equal_rules_that_are_stored_as_one_are_in_shadow_together():
    rules = {"a": FixedWindow(2, 60), "b": FixedWindow(2, 60)}
    with pytest.raises(InvalidRule, match="both or neither of the rules 'a' and 'b'"):
        Limiter(rules, stored_by="text", shadow=["b"])
    limiter = Limiter(rules, stored_by="text", shadow=True)
    assert [limiter.hit("k").shadow_denied for _ in range(2)] == [(), ("a", "b")]


def test_headers_come_from_the_rules_that_are_enforced():
    limiter = Limiter(RULES, shadow=["user"], clock=ManualClock(0))
    fields = HttpLimiter(limiter, Headers(legacy=False)).writer.fields(limiter.hit("k"))
    assert dict(fields) == {"RateLimit-Policy": '"all";q=3;w=60', "RateLimit": '"all";r=2;t=60'}
    tried = Limiter(RULES, shadow=True)
    writer = HttpLimiter(tried, Headers()).writer
    assert writer.fields(tried.hit("k")) == writer.encoded(tried.hit("k")) == []
