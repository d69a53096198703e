"""What a limiter by policy decides: conditions, then overrides, then costs and keys."""

import asyncio
import json
import math
import pickle

import pytest

from ratekeeper import InvalidRule, RateLimited
from ratekeeper.policies import InvalidAttribute, Policies
from ratekeeper.stores import MemoryStore
from ratekeeper.testing import ManualClock

POLICIES = """
[[policies.api.rules]]
name = "user"
limit = "fixed-window 3/minute"
key = "{user}"

[[policies.api.rules]]
name = "writes"
limit = "fixed-window 2/minute"
key = "{tenant}/{user}"
when = { method = ["POST", "PUT"], path = "/v1/*" }

[[policies.api.rules]]
name = "tokens"
limit = { algorithm = "token-bucket", capacity = 1000, refill_rate = 10 }
key = "all"
when = { path = "/llm" }
cost = "{tokens}"

[[policies.api.overrides]]
when = { plan = "pro" }
limits = { user = "fixed-window 30/minute" }

[[policies.api.overrides]]
when = { ip = ["10.0.0.0/8", "::1"] }
limits = "unlimited"

[[policies.api.overrides]]
when = { plan = "p*" }
limits = { user = "blocked", writes = "unlimited" }

[[policies.api.overrides]]
when = { user = "mallory" }
limits = "blocked"
"""


@pytest.fixture
def limiter():
    return Policies.load(POLICIES).limiter("api", clock=ManualClock(0))


def seen(decision):
    return decision.allowed, decision.limit, decision.remaining, decision.rule, sorted(decision.layers)


def test_the_rules_that_apply_decide_together(limiter):
    post = {"user": "ada", "tenant": "acme", "method": "POST", "path": "/v1/items"}
    assert seen(limiter.hit({"user": "ada"})) == (True, 3, 2, "user", [])
    assert seen(limiter.hit(post)) == (True, 3, 1, "user", ["user", "writes"])
    assert seen(limiter.hit(post, 2)) == (False, 3, 1, "user", ["user", "writes"])
    assert limiter.peek(post).layers["writes"].remaining == 1  # nothing was charged


def test_a_method_ignores_case_and_a_path_is_read_as_routes_read_it(limiter):
    for method, path in (("post", "/v1/items"), ("PUT", "//V1/x/../items"), ("put", "/v1")):
        request = {"user": "ada", "tenant": "acme", "method": method, "path": path}
        assert set(limiter.peek(request).layers) == {"user", "writes"}
    for method, path in (("GET", "/v1/items"), ("POST", "/v2/items"), ("POST", "/v12")):
        assert limiter.peek({"user": "ada", "tenant": "acme", "method": method, "path": path}).rule == "user"


def test_a_missing_attribute_matches_nothing(limiter):
    assert limiter.peek({"user": "ada", "method": "POST"}).rule == "user"


def test_the_first_override_that_matches_wins(limiter):
    assert seen(limiter.hit({"user": "ada", "plan": "pro"})) == (True, 30, 29, "user", [])
    assert seen(limiter.hit({"user": "ada", "plan": "pro", "ip": "10.1.2.3"})) == (True, 30, 28, "user", [])
    assert seen(limiter.hit({"user": "ada", "plan": "plus"})) == (False, 0, 0, "user", [])


def test_unlimited_and_blocked_need_no_key_and_no_cost(limiter):
    decision = limiter.hit({"ip": "::1", "path": "/llm"})
    assert (decision.allowed, decision.limit, decision.remaining, decision.rule) == (True, None, None, "")
    for request in ({"plan": "plus", "path": "/llm", "tokens": 1}, {"user": "mallory", "path": "/llm"}):
        blocked = limiter.hit(request)
        assert (blocked.allowed, blocked.limit, blocked.remaining, blocked.retry_after) == (False, 0, 0, math.inf)
        assert blocked.advice == "blocked"


def test_addresses_are_compared_by_network(limiter):
    for address in ("10.255.0.1", "::ffff:10.0.0.1", "::1", "0:0:0:0:0:0:0:1", "10.3.0.0/16"):
        assert limiter.hit({"ip": address}).limit is None
    for address in ("11.0.0.1", "::2", "10.0.0.0/7", "10.", "", "10.0.0.1x"):
        assert limiter.hit({"ip": address, "user": "ada"}, 99).limit == 3


def test_a_missing_attribute_of_a_key_is_an_error_that_names_it(limiter):
    with pytest.raises(InvalidAttribute, match=r"attribute 'user' is missing; the key '\{user\}' needs it") as raised:
        limiter.hit({"tenant": "acme"})
    assert raised.value.attribute == "user"
    assert pickle.loads(pickle.dumps(raised.value)).attribute == "user"


def test_a_cost_comes_from_an_attribute(limiter):
    llm = {"user": "ada", "path": "/llm"}
    decision = limiter.hit(llm | {"tokens": "400"})
    assert {name: layer.remaining for name, layer in decision.layers.items()} == {"user": 2, "tokens": 600}
    assert limiter.hit(llm | {"tokens": 0}).layers == {}  # 0 leaves the rule out
    assert limiter.peek(llm | {"tokens": 1001}).retry_after == math.inf
    for tokens in ("-1", "1.5", "many", "", -1, "1" * 30):
        with pytest.raises(InvalidAttribute, match="attribute 'tokens' must be a cost"):
            limiter.hit(llm | {"tokens": tokens})
    with pytest.raises(InvalidAttribute, match="attribute 'tokens' is missing"):
        limiter.hit(llm)


def test_costs_by_rule_come_before_those_of_the_file(limiter):
    llm = {"user": "ada", "path": "/llm", "tokens": 5}
    decision = limiter.hit(llm, {"tokens": 7, "user": 2})
    assert {name: layer.remaining for name, layer in decision.layers.items()} == {"user": 1, "tokens": 993}
    decision = limiter.hit(llm, {"user": 0})
    assert (decision.rule, decision.remaining) == ("tokens", 988)
    with pytest.raises(InvalidRule, match="names an unknown rule 'usr'"):
        limiter.hit(llm, {"usr": 1})


@pytest.mark.parametrize("cost", [0, -1, True, 1.5, "1"])
def test_a_bad_cost_is_refused(limiter, cost):
    with pytest.raises((InvalidRule, TypeError), match="cost"):
        limiter.hit({"user": "ada"}, cost)


@pytest.mark.parametrize("value", [None, True, 1.5, b"ada", ["ada"], {}])
def test_an_attribute_is_a_text_or_an_integer(limiter, value):
    with pytest.raises(InvalidAttribute, match="attribute 'other' must be a text or an integer") as raised:
        limiter.hit({"user": "ada", "other": value})
    assert raised.value.attribute == "other"


@pytest.mark.parametrize("attributes", [None, "ada", 42, ["user"], {42: "x"}])
def test_attributes_are_a_mapping_of_names(limiter, attributes):
    with pytest.raises(TypeError, match="attribute"):
        limiter.hit(attributes)


def test_a_number_and_its_text_are_one_identity(limiter):
    assert [limiter.hit({"user": user}).remaining for user in (42, "42", 42)] == [2, 1, 0]


def test_every_operation_works_by_attributes(limiter):
    user = {"user": "ada"}
    assert limiter.charge(user, 2).remaining == 1
    assert limiter.refund(user).remaining == 2
    assert limiter.inspect(user)["user"].state["count"] == 1
    limiter.reset(user)
    assert limiter.peek(user).remaining == 3
    taken = limiter.take(user, 2)
    taken.correct(3)
    assert limiter.peek(user).remaining == 0
    taken.give_back()
    assert limiter.wait(user, 3).remaining == 0
    with pytest.raises(RateLimited):
        limiter.wait(user, timeout=1)
    limiter.reset_all()
    assert limiter.peek(user).remaining == 3
    limiter.reset({"user": "ada", "path": "/llm"})  # a reset needs no cost


def test_a_blocked_request_waits_for_nothing(limiter):
    for attributes in ({"user": "mallory"}, {"user": "ada", "plan": "plus"}):
        with pytest.raises(RateLimited) as raised:
            limiter.wait(attributes)
        assert raised.value.decision.retry_after == math.inf
        assert not limiter.take(attributes)
    assert limiter.wait({"ip": "::1"}).limit is None


def test_a_correction_is_for_what_was_charged(limiter):
    taken = limiter.take({"user": "ada", "path": "/llm", "tokens": 100})
    taken.correct({"tokens": 40})
    taken.correct(2)  # the rules without a cost of their own
    standing = limiter.peek({"user": "ada", "path": "/llm", "tokens": 1}).layers
    assert {name: layer.remaining for name, layer in standing.items()} == {"user": 1, "tokens": 960}
    taken.correct({"writes": 5})  # which did not apply
    with pytest.raises(InvalidRule, match="unknown rule"):
        taken.correct({"nobody": 5})


def test_an_override_shares_the_usage_where_algorithm_and_window_are_equal():
    text = """
    policies:
      api:
        rules:
          - {name: user, limit: fixed-window 5/minute, key: "{user}"}
        overrides:
          - {when: {plan: pro}, limits: {user: fixed-window 9/minute}}
          - {when: {plan: hourly}, limits: {user: fixed-window 9/hour}}
          - {when: {plan: bucket}, limits: {user: token-bucket 9/minute}}
    """
    limiter = Policies.load(text).limiter("api", clock=ManualClock(0))
    limiter.hit({"user": "ada"}, 4)
    plans = ("free", "pro", "hourly", "bucket")
    assert [limiter.peek({"user": "ada", "plan": plan}).remaining for plan in plans] == [1, 5, 9, 9]
    for plan in plans[1:]:
        limiter.hit({"user": "ada", "plan": plan})
    assert [limiter.peek({"user": "ada", "plan": plan}).remaining for plan in plans] == [0, 4, 8, 8]


def test_shadow_by_rule_and_by_policy():
    text = """
    policies:
      one:
        rules:
          - {name: user, limit: fixed-window 1/minute, key: "{user}", shadow: true}
          - {name: all, limit: fixed-window 3/minute, key: all}
        overrides:
          - {when: {user: eve}, limits: {user: blocked}}
          - {when: {user: mallory}, limits: blocked}
      all:
        shadow: true
        rules:
          - {name: user, limit: fixed-window 1/minute, key: "{user}"}
        overrides:
          - {when: {user: mallory}, limits: blocked}
    """
    policies = Policies.load(text)
    one = policies.limiter("one", clock=ManualClock(0))
    decisions = [one.hit({"user": "ada"}) for _ in range(2)]
    assert [(seen(each), each.shadow_denied) for each in decisions] == [
        ((True, 3, 2, "all", []), ()),
        ((True, 3, 1, "all", []), ("user",)),
    ]
    eve = one.hit({"user": "eve"})
    assert (seen(eve), eve.shadow_denied) == ((True, 3, 0, "all", []), ("user",))
    mallory = one.hit({"user": "mallory"})
    assert (mallory.allowed, mallory.shadow_denied) == (False, ("user",))
    tried = policies.limiter("all")
    decisions = [tried.hit({"user": user}) for user in ("ada", "ada", "mallory")]
    assert [(each.allowed, each.limit, each.shadow_denied) for each in decisions] == [
        (True, None, ()),
        (True, None, ("user",)),
        (True, None, ("user",)),
    ]
    assert (one.notices.counts["shadow_denied"], tried.notices.counts["shadow_denied"]) == (3, 2)


def test_limits_that_are_words():
    rules = [{"name": word, "limit": word, "key": "{x}", "when": {"rule": word}} for word in ("unlimited", "blocked")]
    rules.append({"name": "zero", "limit": "0/minute", "key": "{x}", "when": {"rule": "zero"}})
    policies = Policies.load(json.dumps({"policies": {"p": {"rules": rules}}}))
    limiter = policies.limiter("p")
    assert [limiter.hit({"rule": rule}).allowed for rule in ("unlimited", "blocked", "zero")] == [True, False, False]


def test_requests_that_no_rule_limits_are_counted_and_logged_once(caplog):
    rules = [{"name": "user", "limit": "9/minute", "key": "all", "when": {"plan": "free"}, "cost": "{tokens|1}"}]
    overrides = [{"when": {"ip": "10.0.0.0/8"}, "limits": "unlimited"}]
    policies = Policies.load(json.dumps({"policies": {"p": {"rules": rules, "overrides": overrides}}}))
    limiter = policies.limiter("p")
    unlimited = [{"plan": "pro"}, {"plan": "free", "ip": "10.1.1.1"}, {"plan": "free", "tokens": 0}]
    assert [limiter.hit(each).limit for each in (*unlimited, {"plan": "free"})] == [None, None, None, 9]
    assert limiter.notices.counts["unlimited"] == 3
    assert [record.message for record in caplog.records] == [
        "unlimited: policy 'p': no rule applies to a request: such requests are not limited (logged once; see .notices)"
    ]


def test_a_switched_off_policy_admits_everything():
    limiter = Policies.load(POLICIES).limiter("api", enabled=False)
    assert [limiter.hit({"user": "ada"}).remaining for _ in range(5)] == [3] * 5
    assert limiter.hit({"ip": "::1"}).limit is None
    assert limiter.notices.counts["unlimited"] == 6


def test_it_works_the_same_when_awaited():
    async def main():
        limiter = Policies.load(POLICIES).async_limiter("api", clock=ManualClock(0))
        assert seen(await limiter.hit({"user": "ada"})) == (True, 3, 2, "user", [])
        assert not await limiter.hit({"user": "mallory"})
        assert (await limiter.hit({"ip": "::1"})).limit is None
        assert (await limiter.peek({"user": "ada"})).remaining == 2
        with pytest.raises(RateLimited):
            await limiter.wait({"user": "mallory"})
        taken = await limiter.take({"user": "ada"})
        await taken.give_back()
        assert (await limiter.wait({"user": "ada"})).remaining == 1

    asyncio.run(main())


def test_two_policies_on_one_store_share_nothing():
    text = "\n".join(f'[[policies.{name}.rules]]\nname = "a"\nlimit = "1/minute"\nkey = "all"' for name in "pq")
    policies, store = Policies.load(text), MemoryStore()
    assert [policies.limiter(name, store).hit({}).allowed for name in ("p", "q", "p")] == [True, True, False]


def test_an_unknown_policy_is_refused_with_the_nearest_name():
    with pytest.raises(InvalidRule, match=r"policy 'appi' is unknown; the policies are api; did you mean 'api'\?"):
        Policies.load(POLICIES).limiter("appi")


def test_the_options_of_a_limiter_are_checked():
    policies = Policies.load(POLICIES)
    with pytest.raises(InvalidRule, match="on_error must be one of"):
        policies.limiter("api", on_error="maybe")
    with pytest.raises(InvalidRule, match="deadline"):
        policies.limiter("api", deadline=0)
