"""Requests that are prepared: one version decides on all their calls; and what integrations give as attributes."""

import pytest

from ratekeeper import InvalidRule, Limiter
from ratekeeper.http.claims import Claim
from ratekeeper.policies import InvalidAttribute, Policies
from ratekeeper.testing import ManualClock

POLICIES = """
[[policies.api.rules]]
name = "user"
limit = "fixed-window 3/minute"
key = "{tenant}/{user}"
[[policies.api.rules]]
name = "tokens"
limit = "fixed-window 100/minute"
key = "{tenant|none}"
cost = "{header:X-Tokens}"
when = { path = "/llm" }
[[policies.api.overrides]]
when = { plan = "pro" }
limits = { user = "blocked" }
"""


@pytest.fixture
def policies():
    return Policies.load(POLICIES)


@pytest.fixture
def limiter(policies):
    return policies.limiter("api", clock=ManualClock(0))


def prepared(limiter, attributes, cost=1, missing="error"):
    return limiter.version.prepare(attributes, cost, missing)


def remaining(limiter, request):
    decision = limiter.peek(request)
    return {name: layer.remaining for name, layer in (decision.layers or {decision.rule: decision}).items()}


def test_a_version_says_which_attributes_it_needs(policies, limiter):
    assert limiter.version.attributes == {"tenant", "user", "header:x-tokens", "path", "plan"}
    policies.set_override("one", policy="api", when={"ip": "::1"}, limits="unlimited", expires_in=60)
    assert "ip" in limiter.version.attributes
    policies.replace('[[policies.api.rules]]\nname = "a"\nlimit = "1/s"\nkey = "all"')
    assert limiter.version.attributes == {"ip"}
    policies.remove_override("one")
    assert limiter.version.attributes == frozenset()


def test_a_prepared_request_is_decided_by_its_version_to_the_end(policies, limiter):
    request = prepared(limiter, {"tenant": "acme", "user": "ada"}, 2)
    policies.replace(POLICIES.replace("3/minute", "1/hour"))
    taken = limiter.take(request)
    assert (taken.decision.limit, taken.decision.remaining) == (3, 1)
    assert limiter.peek(request).remaining == 1
    taken.give_back()
    assert limiter.peek(request).remaining == 3
    assert limiter.hit(request, 99).remaining == 1  # its cost was prepared, too
    assert limiter.hit({"tenant": "acme", "user": "ada"}).limit == 1


def test_the_hook_gets_the_attributes(policies):
    seen = []
    limiter = policies.limiter("api", on_decision=lambda key, _: seen.append(key))
    limiter.hit(prepared(limiter, {"tenant": "acme", "user": "ada"}))
    assert seen == [{"tenant": "acme", "user": "ada"}]


def test_a_missing_attribute_may_be_shared_by_all_requests_without_it(limiter):
    with pytest.raises(InvalidAttribute, match="'user' is missing"):
        prepared(limiter, {"tenant": "acme"})
    request = prepared(limiter, {"tenant": "acme"}, 2, "shared")
    assert request.applied.lacking == [("user", "user", False, True)]
    assert limiter.hit(request).remaining == 1
    assert remaining(limiter, prepared(limiter, {"tenant": "acme", "plan": "free"}, 1, "shared")) == {"user": 1}
    for other in ({"tenant": "acme", "user": ""}, {"user": "acme"}, {"user": ""}, {}):
        assert remaining(limiter, prepared(limiter, other, 1, "shared")) == {"user": 3}


def test_a_cost_that_is_missing_or_none_is_1_if_it_is_no_error(limiter):
    for given in ({}, {"header:x-tokens": "many"}, {"header:x-tokens": "-5"}):
        request = prepared(limiter, {"tenant": "acme", "user": "ada", "path": "/llm"} | given, 1, "shared")
        assert {demand.binding.name: demand.cost for demand in request.applied} == {"user": 1, "tokens": 1}
        assert request.applied.lacking == [("tokens", "header:x-tokens", True, True)]
    request = prepared(limiter, {"path": "/llm"}, {"tokens": 7}, "shared")
    assert [demand.cost for demand in request.applied] == [1, 7]
    request = prepared(limiter, {"path": "/llm"}, {"user": 0, "tokens": 0}, "shared")
    assert (list(request.applied), request.applied.lacking) == ([], [])


def test_a_rule_whose_key_is_missing_may_be_left_out_but_none_whose_cost_is(limiter):
    for given, cost in (({"header:X-TOKENS": 5}, 5), ({}, 1), ({"header:x-tokens": "none"}, 1)):
        request = prepared(limiter, {"path": "/llm", **given}, 1, "skipped")
        assert [(demand.binding.name, demand.cost) for demand in request.applied] == [("tokens", cost)]
        assert [lack.rule for lack in request.applied.lacking] == ["user"] + ["tokens"] * (cost == 1)


def test_a_rule_that_is_blocked_needs_no_attribute(limiter):
    request = prepared(limiter, {"plan": "pro", "path": "/llm", "header:x-tokens": 1}, 1, "shared")
    assert request.applied.lacking == []
    assert not limiter.hit(request)
    assert not limiter.peek(request)


def test_a_claim_is_compared_as_it_is_written_and_counted_as_something_else():
    policies = Policies.load("""
    policies:
      api:
        rules:
          - {name: ip, limit: fixed-window 3/minute, key: "{ip}"}
          - {name: path, limit: fixed-window 5/minute, key: "{path}", when: {path: /A/../b}}
        overrides:
          - {when: {ip: "2001:db8::1"}, limits: {ip: fixed-window 9/minute}}
    """)
    limiter = policies.limiter("api", clock=ManualClock(0))
    network = "2001:db8::/64"
    assert limiter.hit({"ip": Claim("2001:db8::1", network)}).remaining == 8
    assert limiter.hit({"ip": Claim("2001:db8::2", network)}).remaining == 1
    assert limiter.peek({"ip": network}).remaining == 1
    limiter.hit({"ip": "::1", "path": Claim("/b", "/c")}, {"ip": 0})
    assert limiter.peek({"ip": "::1", "path": Claim("/B", "/c")}).layers["path"].remaining == 4
    assert limiter.peek({"ip": "::1", "path": Claim("/a/../b", "/c")}).rule == "ip"  # as it is written


def test_a_limiter_may_try_out_more_than_its_policy_says(policies):
    limiter = policies.limiter("api", shadow=["user"])
    request = {"tenant": "acme", "user": "ada"}
    assert [limiter.hit(request, 2).shadow_denied for _ in range(2)] == [(), ("user",)]
    policies.replace(POLICIES.replace("3/minute", "1/minute"))
    assert limiter.hit(request | {"plan": "pro"}).shadow_denied == ("user",)
    policies.replace(POLICIES.replace('"user"', '"other"').replace("user =", "other ="))
    assert limiter.hit(request, 4).shadow_denied == ()
    assert policies.limiter("api", shadow=True).hit(request, 4).shadow_denied == ("other",)
    assert not policies.explain("api", request).rules[0].shadow  # as the policy says
    with pytest.raises(InvalidRule, match="shadow names an unknown rule 'usr'"):
        policies.limiter("api", shadow=["usr"])


def test_other_limiters_have_no_version():
    assert Limiter("1/s").version is None
