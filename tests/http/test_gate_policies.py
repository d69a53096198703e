"""Policies at both gates: the attributes of a request, what is missing, and paths that are written in unusual ways."""

import asyncio
import json
import logging
import threading
import time

import pytest

from ratekeeper import FixedWindow, InvalidRule
from ratekeeper.http import Headers, Route, by_address, by_user, digest, first_of
from ratekeeper.policies import InvalidPolicies, Policies
from ratekeeper.stores import MemoryStore
from ratekeeper.testing import ManualClock
from tests.http import test_gate
from tests.http.requests import a_request
from tests.http.test_gate import NOW, verdicts

gate = test_gate.gate  # a fixture
LONG = "400 days"
FAR = "2001:db8:0:1::1"


def rules(*each, overrides=(), **policy):
    """A policy of these rules; a limit is so many in a window that does not end."""
    named = [
        {"name": name, "limit": f"fixed-window {limit}/400d" if isinstance(limit, int) else limit, "key": key} | more
        for name, limit, key, more in each
    ]
    return {"rules": named, "overrides": list(overrides), **policy}


def policies(**given):
    return Policies.load(json.dumps({"policies": given}))


def one(limit, key, **more):
    return policies(api=rules(("one", limit, key, more)))


def told(gate, request):
    """The decision on a request, and the headers that report it."""
    admission = gate.admit(request)
    return admission.decision, dict(gate.report({}, admission).fields())


# --- what a request says of itself


def test_each_attribute_is_that_of_the_request(gate):
    found = policies(
        api=rules(
            ("method", 9, "{method}", {}),
            ("path", 8, "{path}", {}),
            ("ip", 7, "{ip}", {}),
            ("user", 6, "{user|nobody}", {}),
            ("tenant", 5, "{header:X-Tenant|none}", {}),
        )
    )
    limited = gate(policies=found, policy="api")

    def left(**request):
        decision, _ = told(limited, a_request(**request))
        return {name: layer.remaining for name, layer in decision.layers.items()}

    assert left() == {"method": 8, "path": 7, "ip": 6, "user": 5, "tenant": 4}
    assert left(method="POST", path="/a", peer="192.0.2.2", user="ada", headers={"X-Tenant": "acme"}) == left(
        method="PUT", path="/b", peer="192.0.2.3", user="eve", headers={"x-tenant": "evil"}
    )
    assert left(method="get", path="//", user="ada") == {"method": 7, "path": 6, "ip": 5, "user": 4, "tenant": 3}


def test_a_head_counts_as_a_get_and_methods_that_clients_make_up_as_one(gate):
    limited = gate(policies=one(1, "{method}"), policy="api")
    methods = ["GET", "HEAD", "POST", *(f"MADE{number}" for number in range(5)), "OTHER"]
    assert verdicts(limited, *(a_request(method=each) for each in methods)) == [True, False, True, True] + [False] * 5
    limited = gate(policies=one(1, "all", when={"method": ["GET", "PROPFIND"]}), policy="api")
    methods = ["HEAD", "PROPFIND", "get", "POST", "MADE"]
    assert verdicts(limited, *(a_request(method=each) for each in methods)) == [True, False, False, None, None]


def test_an_address_is_compared_as_it_is_and_counted_as_its_network(gate):
    found = policies(
        api=rules(
            ("one", 1, "{ip}", {}),
            overrides=[{"when": {"ip": ["10.0.0.0/8", FAR]}, "limits": "unlimited"}],
        )
    )
    limited = gate(policies=found, policy="api")
    peers = ["192.0.2.1", "192.0.2.2", "192.0.2.1", "::ffff:192.0.2.2", FAR, "2001:db8:0:1::2", "2001:db8:0:1::3"]
    assert verdicts(limited, *(a_request(peer=each) for each in peers)) == [True, True, False, False, None, True, False]
    assert verdicts(limited, a_request(peer="10.1.2.3"), a_request(peer="testclient")) == [None, True]


def test_an_address_is_found_past_the_proxies_that_the_key_trusts(gate):
    behind = {"X-Forwarded-For": "198.51.100.7"}
    asked = [a_request(headers=behind, peer=peer) for peer in ("192.0.2.1", "192.0.2.2", "203.0.113.1")]
    for key in (by_address(["192.0.2.0/24"]), first_of(by_user(), by_address(["192.0.2.0/24"]))):
        assert verdicts(gate(policies=one(1, "{ip}"), policy="api", key=key), *asked) == [True, False, True]
        route = Route("/*", policy="api", key=key)
        assert verdicts(gate(policies=one(1, "{ip}"), routes=[route]), *asked) == [True, False, True]
    assert verdicts(gate(policies=one(1, "{ip}"), policy="api"), *asked) == [True] * 3
    own = {"ip": by_address(["203.0.113.0/24"])}
    limited = gate(policies=one(1, "{ip}"), policy="api", attributes=own)
    assert verdicts(limited, *asked, a_request(peer="198.51.100.7")) == [True, True, True, False]


def test_the_application_gives_attributes_of_its_own(gate, caplog):
    seen = []

    def plan(request):
        seen.append(request.path)
        return {"/pro": "pro", "/7": 7, "/none": None}.get(request.path, request)

    found = policies(
        api=rules(
            ("one", 1, "all", {}),
            overrides=[
                {"when": {"plan": "pro"}, "limits": {"one": "fixed-window 5/400d"}},
                {"when": {"plan": 7}, "limits": "blocked"},
                {"when": {"plan": "*"}, "limits": "unlimited"},
            ],
        )
    )
    limited = gate(policies=found, policy="api", attributes={"plan": plan})
    asked = [a_request(path=path) for path in ("/none", "/pro", "/7", "/wrong")]
    assert verdicts(limited, *asked) == [True, True, False, False]
    assert "policy 'api': the function for the attribute 'plan' failed: it counts as missing" in caplog.text
    found.replace(one(1, "all").text)
    assert verdicts(limited, *asked) == [False] * 4
    assert len(seen) == 4  # only while the policy needed it


def test_an_attribute_may_be_awaited():
    async def user(request):
        await asyncio.sleep(0)
        return request.path[1:]

    limited = test_gate.Awaited(policies=one(1, "{user}"), policy="api", attributes={"user": user})
    assert verdicts(limited, *(a_request(path=path) for path in ("/ada", "/eve", "/ada"))) == [True, True, False]
    with pytest.raises(TypeError, match=r"attributes\['user'\] is a coroutine function"):
        test_gate.Gate(policies=one(1, "{user}"), policy="api", attributes={"user": user})


@pytest.mark.parametrize(
    ("attributes", "error", "said"),
    [
        (["plan"], TypeError, "attributes must be a mapping of names to functions"),
        ({"plan": "pro"}, TypeError, r"attributes\['plan'\] must be a callable"),
        ({"plan": by_user}, TypeError, "must be what by_user"),
        ({"header:x-plan": lambda request: "pro"}, InvalidRule, "attributes cannot have 'header:x-plan'"),
        ({"": lambda request: "pro"}, InvalidRule, "attributes cannot have ''"),
    ],
)
def test_bad_attributes_are_refused(gate, attributes, error, said):
    with pytest.raises(error, match=said):
        gate(policies=one(1, "all"), policy="api", attributes=attributes)


def test_only_the_attributes_that_the_policy_needs_are_found(gate):
    class Watched:
        """A request that tells what was asked of it."""

        def __init__(self):
            self.asked = []

        def __getattr__(self, name):
            self.asked.append(name)
            return getattr(a_request(user="ada", headers={"x-a": "1"}), name)

    found = policies(api=rules(("one", 9, "{header:x-a}", {"when": {"method": "GET"}})))
    limited = gate(policies=found, policy="api", headers=Headers.off())
    request = Watched()
    assert limited.admit(request).decision.allowed
    assert set(request.asked) == {"method", "header"}
    found.set_override("o", policy="api", when={"user": "ada"}, limits="unlimited", expires_in=60)
    request = Watched()
    assert limited.admit(request) is None
    assert set(request.asked) == {"method", "header", "user_id"}


def test_a_header_that_is_given_twice_or_empty_is_missing(gate):
    found = policies(
        api=rules(("one", 1, "all", {}), overrides=[{"when": {"header:x-plan": "*"}, "limits": "unlimited"}])
    )
    limited = gate(policies=found, policy="api")
    for headers in ([("x-plan", "a"), ("x-plan", "a")], [("x-plan", " ")], []):
        assert limited.admit(a_request(headers=headers)) is not None
    assert limited.admit(a_request(headers=[("x-plan", "\ta ")])) is None


# --- what is missing


def test_requests_without_an_attribute_share_a_key_and_that_is_told(gate, caplog):
    limited = gate(policies=one(1, "{user}"), policy="api")
    asked = [a_request(), a_request(peer="192.0.2.9"), a_request(user="ada"), a_request(user="eve")]
    assert verdicts(limited, *asked) == [True, False, True, True]
    assert limited.notices.counts["shared"] == 2
    said = "policy 'api', rule 'one': the attribute 'user' is missing; its key needs it or a default: all such requests"
    assert [said in record.getMessage() for record in caplog.records] == [True]


def test_they_may_be_denied_or_not_limited_instead(gate, caplog):
    found = policies(api=rules(("one", 1, "{user}", {}), ("all", 2, "all", {})))
    denies = gate(policies=found, policy="api", unidentified="deny")
    decision, headers = told(denies, a_request())
    assert (decision.allowed, decision.rule, decision.retry_after, headers) == (False, "one", float("inf"), {})
    assert verdicts(denies, a_request(user="ada"), a_request(user="eve"), a_request(user="eva")) == [True, True, False]
    skips = gate(policies=found, policy="api", unidentified="skip")
    assert verdicts(skips, a_request(), a_request(), a_request()) == [True, True, False]
    assert (denies.notices.counts["skipped"], skips.notices.counts["skipped"]) == (0, 3)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    skips = gate(policies=one(1, "{user}"), policy="api", unidentified="skip")
    assert verdicts(skips, a_request(), a_request()) == [None, None]
    assert skips.notices.counts | {"skipped": 2} == skips.notices.counts


def test_a_rule_in_shadow_denies_nobody_for_what_is_missing(gate):
    found = policies(api=rules(("one", 1, "{user}", {"shadow": True}), ("all", 2, "all", {})))
    limited = gate(policies=found, policy="api", unidentified="deny")
    assert verdicts(limited, a_request(), a_request(), a_request()) == [True, True, False]
    assert limited.notices.counts["shadow_denied"] == 3


def test_a_cost_that_is_missing_is_1_whoever_asks(gate, caplog):
    found = policies(api=rules(("one", 10, "all", {"cost": "{header:x-cost}"})))
    for unidentified, expected in (("shared", [7, 6, 5, 5]), ("skip", [7, 6, 5, 5]), ("deny", [7, 0, 0, 7])):
        limited = gate(policies=found, policy="api", unidentified=unidentified, store=MemoryStore())
        asked = [a_request(headers={"x-cost": cost} if cost else {}) for cost in ("3", "", "-1", "0")]
        decisions = [limited.admit(each) for each in asked]
        left = [0 if each is None else each.decision.remaining for each in decisions[:3]]
        assert left == expected[:3]
        assert decisions[3] is None  # 0 leaves the rule out
        assert limited.notices.counts["degraded"] == (0 if unidentified == "deny" else 2)
    assert "-1" not in caplog.text


def test_an_attribute_that_nothing_gives_is_told_once(gate, caplog):
    found = policies(api=rules(("one", 1, "all", {}), overrides=[{"when": {"plan": "pro"}, "limits": "unlimited"}]))
    limited = gate(policies=found, policy="api")
    assert verdicts(limited, a_request(), a_request()) == [True, False]
    said = (
        "policy 'api': no function provides the attribute 'plan': pass one in attributes={'plan': ...}; "
        "this is logged once"
    )
    assert [record.getMessage() for record in caplog.records] == [said]


def test_a_user_that_cannot_be_told_apart_is_missing(gate, caplog):
    class Broken:
        def __getattr__(self, name):
            if name == "user_id":
                raise TypeError("cannot tell users apart")
            return getattr(a_request(), name)

    limited = gate(policies=one(1, "{user}"), policy="api")
    assert verdicts(limited, Broken(), Broken()) == [True, False]
    assert "cannot tell users apart" in caplog.text


# --- paths that are written in unusual ways


OPEN = policies(
    api=rules(
        ("v1", 1, "{ip}", {"when": {"path": "/v1/*"}}),
        ("other", 2, "{path}", {"when": {"path": ["/other", "/a"]}}),
        overrides=[{"when": {"path": "/v1/open/*"}, "limits": "unlimited"}],
    )
)


@pytest.mark.parametrize("path", ["/v1", "/V1/a", "//v1//a", "/v1/a/", "/./v1/%", "/x/../v1/a", "\\v1\\a", "/v1/a\n"])
def test_a_path_meets_its_rule_however_it_is_written(gate, path):
    limited = gate(policies=OPEN, policy="api")
    assert verdicts(limited, a_request(path="/v1/a"), a_request(path=path)) == [True, False]


@pytest.mark.parametrize("path", ["/v1/../b", "/v1/x/../../b", "/v1/./../b"])
def test_a_path_that_leads_elsewhere_meets_the_rules_of_both_views(gate, path):
    limited = gate(policies=OPEN, policy="api")
    assert verdicts(limited, a_request(path=path), a_request(path=path), a_request(path="/b")) == [True, False, None]
    assert limited.notices.counts["unlimited"] == 1


def test_both_views_are_charged_all_or_nothing(gate):
    limited = gate(policies=OPEN, policy="api")
    both = a_request(path="/v1/../other")
    admission = limited.admit(both)
    assert admission.decision.layers.keys() == {"v1", "other"}
    assert (admission.decision.rule, admission.decision.remaining) == ("v1", 0)
    assert verdicts(limited, both, a_request(path="/other")) == [False, True]  # the denied one has counted for nothing
    assert limited.admit(a_request(path="/other")).decision.allowed is False


def test_a_rule_with_a_limit_for_each_view_of_a_path_is_charged_for_both(gate):
    found = policies(
        api=rules(
            ("one", "fixed-window 10/hour", "all", {}),
            overrides=[{"when": {"path": "/v1/*"}, "limits": {"one": "fixed-window 4/400d"}}],
        )
    )
    limited = gate(policies=found, policy="api", cost=3, settle=lambda request, answer: answer.size)
    both = a_request(path="/v1/../x")
    admission = limited.admit(both)
    assert (admission.decision.rule, admission.decision.limit, admission.decision.remaining) == ("one", 4, 1)
    limited.settle(both, admission, test_gate.Answer(200, 2))
    left = [limited.admit(a_request(path=path)) for path in ("/x", "/v1/x")]
    assert [(each.decision.allowed, each.decision.remaining) for each in left] == [(True, 5), (False, 2)]
    assert limited.admit(both).decision.limit == 4
    found = policies(api=json.loads(found.text)["policies"]["api"] | {"shadow": True})
    limited = gate(policies=found, policy="api", cost=11)
    assert limited.admit(both).decision.shadow_denied == ("one",)


def test_an_unlimited_path_is_no_way_to_another(gate):
    limited = gate(policies=OPEN, policy="api")
    assert verdicts(limited, a_request(path="/v1/open/x"), a_request(path="/V1/open/x")) == [None, None]
    asked = [a_request(path=path) for path in ("/v1/open/../a", "/v1/a/../open/x", "/v1/a")]
    assert verdicts(limited, *asked) == [True, False, False]


def test_one_path_has_one_key_however_it_is_written(gate):
    limited = gate(policies=OPEN, policy="api")
    paths = ["/a", "/a/", "/./a", "/x/../a", "/x/y/../../a"]
    assert verdicts(limited, *(a_request(path=path) for path in paths)) == [True, True, False, False, False]


def test_a_path_below_a_mount_is_the_one_that_routes_see(gate):
    class Mounted(test_gate.a_request(path="/v1/a").__class__):
        root_path = "/api"

    assert verdicts(gate(policies=OPEN, policy="api"), Mounted(path="/v1/a"), Mounted(path="/v1/b")) == [True, False]


# --- headers, blocked and unlimited requests


def test_the_headers_report_the_rules_that_apply_to_the_request(gate):
    found = policies(
        api=rules(
            ("user", 5, "{user|nobody}", {}),
            ("writes", 2, "all", {"when": {"method": "POST"}}),
            overrides=[{"when": {"user": "ada"}, "limits": {"user": "fixed-window 9/400d"}}],
        )
    )
    limited = gate(policies=found, policy="api")
    decision, headers = told(limited, a_request())
    assert (decision.rule, headers["X-RateLimit-Limit"], headers["RateLimit-Policy"]) == (
        "user",
        "5",
        '"user";q=5;w=34560000',
    )
    decision, headers = told(limited, a_request(user="ada", method="POST"))
    assert (decision.rule, headers["X-RateLimit-Limit"]) == ("writes", "2")
    assert headers["RateLimit-Policy"] == '"user";q=9;w=34560000, "writes";q=2;w=34560000'
    told(limited, a_request(user="eve", method="POST"))
    decision, headers = told(limited, a_request(user="eve", method="POST"))
    assert (decision.allowed, decision.rule) == (False, "writes")
    assert int(headers["Retry-After"]) > 0


def test_what_is_left_of_a_used_up_policy_tells_when_there_is_more(gate):
    found = policies(api=rules(("one", "token-bucket 60/minute burst 10", "all", {"cost": 10})))
    _, headers = told(gate(policies=found, policy="api"), a_request())
    assert headers["RateLimit"] == '"one";r=0;t=1'  # and not 10
    assert headers["X-RateLimit-Reset"] == str(NOW + 1)


def test_a_hash_of_the_key_may_be_reported(gate):
    limited = gate(policies=one(5, "{user}"), policy="api", headers=Headers(partition_key=digest))
    by_key = {user: told(limited, a_request(user=user))[1]["RateLimit"].partition("pk=")[2] for user in ("a", "b")}
    assert len(set(by_key.values())) == 2


def test_blocked_is_denied_for_ever_and_unlimited_is_counted(gate, caplog):
    found = policies(
        api=rules(
            ("one", 1, "{user}", {"when": {"path": "/a"}}),
            overrides=[
                {"when": {"user": "eve"}, "limits": "blocked"},
                {"when": {"user": "bot"}, "limits": "unlimited"},
            ],
        )
    )
    limited = gate(policies=found, policy="api")
    admission = limited.admit(a_request(user="eve", path="/a"))
    reply = limited.denial(a_request(), admission)
    assert (reply.status, [name for name, _ in reply.headers]) == (429, ["Content-Type", "Content-Length"])
    assert b"cannot be admitted" in reply.body
    asked = [a_request(user="eve", path="/b"), a_request(user="bot", path="/a")]
    assert verdicts(limited, *asked * 500) == [None] * 1000
    assert limited.notices.counts["unlimited"] == 1000
    assert len(caplog.records) == 1  # no flood


def test_a_policy_may_try_its_rules_out_and_so_may_a_gate(gate):
    found = policies(api=rules(("one", 1, "all", {"shadow": True}), ("two", 2, "all", {})))
    limited = gate(policies=found, policy="api")
    assert verdicts(limited, *[a_request()] * 3) == [True, True, False]
    assert limited.notices.counts["shadow_denied"] == 2
    tried = gate(policies=found, policy="api", shadow=["two"], store=MemoryStore())
    admissions = [tried.admit(a_request()) for _ in range(3)]
    assert [each.decision.shadow_denied for each in admissions] == [(), ("one",), ("one", "two")]
    assert tried.report({}, admissions[0]).fields() == []
    assert tried.notices.counts["unlimited"] == 0  # rules apply, in shadow


# --- costs, settlement, shaping, exemptions


def test_the_cost_is_that_of_the_request_for_rules_without_their_own(gate):
    found = policies(api=rules(("requests", 10, "all", {"cost": 1}), ("units", 10, "all", {}), ("x", 10, "x", {})))
    for cost in (3, lambda request: 3, {"units": 3, "x": 3, "gone": 7}, lambda request: {"units": 3, "x": 3}):
        limited = gate(policies=found, policy="api", cost=cost, store=MemoryStore())
        layers = limited.admit(a_request()).decision.layers
        assert {name: layer.remaining for name, layer in layers.items()} == {"requests": 9, "units": 7, "x": 7}


def test_a_bad_cost_costs_1_and_none_is_free(gate, caplog):
    found = one(10, "all")
    for cost in (lambda request: "three", lambda request: -1, lambda request: {"one": 1.5}, lambda request: 1 / 0):
        limited = gate(policies=found, policy="api", cost=cost, store=MemoryStore())
        assert limited.admit(a_request()).decision.remaining == 9
    assert caplog.text.count("the cost function failed; the request costs 1") == 4
    limited = gate(policies=found, policy="api", cost=lambda request: 0)
    assert (limited.admit(a_request()), limited.notices.counts["skipped"]) == (None, 1)
    for cost in (0, -1, "1", {"one": -1}):
        with pytest.raises((InvalidRule, TypeError), match="route '\\*': cost"):
            gate(policies=found, policy="api", cost=cost)


def test_a_cost_is_settled_under_the_rules_that_charged_it(gate):
    found = one(100, "all")
    limited = gate(policies=found, policy="api", cost=50, settle=lambda request, answer: answer.size)
    admission = limited.admit(a_request())
    found.replace('[[policies.api.rules]]\nname = "other"\nlimit = "1/s"\nkey = "all"')
    limited.settle(a_request(), admission, test_gate.Answer(200, 7))
    found.replace(one(100, "all").text)
    assert limited.admit(a_request()).decision.remaining == 43
    second = limited.admit(a_request(path="/./x"))
    limited.correct(second, 1)
    assert limited.admit(a_request()).decision.allowed is False
    limited.correct(second, {"one": 0})


def test_a_shaping_policy_holds_requests_up_to_its_bounds(gate):
    shaper = ("slow", "leaky-bucket 1/minute burst 5 shaping", "{ip}", {})
    found = policies(api=rules(shaper, ("path", 99, "{path}", {})))
    limited = gate(policies=found, policy="api", max_waiters_per_key=1)
    held = [limited.admit(a_request(path=f"/{number}")) for number in range(3)]
    assert [each.decision.delay for each in held] == [0, 60, 0]
    assert [each.decision.allowed for each in held] == [True, True, False]
    assert [each.is_held for each in held] == [False, True, False]
    limited.leave(held[1])
    assert limited.admit(a_request(path="/x")).decision.delay == 120
    assert (limited.held.count, limited.held.refused) == (1, 1)
    free = gate(
        policies=policies(api=rules(("slow", shaper[1], "{ip}", {"shadow": True}))), policy="api", max_waiters=0
    )
    assert verdicts(free, *[a_request()] * 7) == [True] * 7


def test_exemptions_routes_and_policies_go_together(gate):
    found = policies(api=rules(("one", 1, "all", {})), login=rules(("login", 1, "{ip}", {})))
    limited = gate(
        policies=found,
        policy="api",
        exempt=["/healthz", lambda request: request.method == "PUT"],
        routes=[
            Route("/login", policy="login", methods=["POST"]),
            Route("/fixed", FixedWindow(1, LONG)),
            Route("/open", None),
        ],
    )
    asked = [a_request(path=path) for path in ("/a", "/b", "/healthz", "/open", "/fixed", "/fixed")]
    assert verdicts(limited, *asked) == [True, False, None, None, True, False]
    login = a_request(path="/login", method="POST")
    assert verdicts(limited, login, login, a_request(path="/login"), a_request(method="PUT")) == [
        True,
        False,
        False,
        None,
    ]


def test_a_policy_on_two_routes_has_one_usage_and_is_charged_once(gate):
    found = one(2, "all")
    limited = gate(policies=found, policy="api", routes=[Route("/a", policy="api"), Route("/b", policy="api")])
    asked = [a_request(path=path) for path in ("//a", "/b", "/c")]  # "//a" is one route as written, another as read
    assert verdicts(limited, *asked) == [True, True, False]


def test_a_limiter_by_policy_is_a_limit_like_any_other(gate):
    found = one(1, "{user}")
    limiter = found.limiter("api") if gate.kind is test_gate.Gate else found.async_limiter("api")
    limited = gate(limiter)
    assert verdicts(limited, a_request(user="ada"), a_request(user="eve"), a_request(user="ada")) == [True, True, False]
    limited = gate(None, routes=[Route("/a", limiter)])
    assert verdicts(limited, a_request(user="ada", path="/a"), a_request(user="ada", path="/b")) == [False, None]
    other = found.async_limiter("api") if gate.kind is test_gate.Gate else found.limiter("api")
    with pytest.raises(TypeError, match="limit must be rules or of type"):
        gate(other)
    with pytest.raises(InvalidRule, match="shadow cannot be combined with a limiter"):
        gate(limiter, shadow=True)


def test_switched_off_a_policy_is_read_and_limits_nothing(gate):
    limited = gate(policies=one(1, "all"), policy="api", enabled=False, store="redis://127.0.0.1:1")
    assert verdicts(limited, a_request(), a_request()) == [None, None]
    assert limited.notices.counts["unlimited"] == 2


def test_the_policy_says_what_happens_while_the_store_is_away_unless_the_gate_does(gate):
    away = "redis://127.0.0.1:1"
    found = policies(api=rules(("one", 1, "all", {}), on_error="closed"))
    assert verdicts(gate(policies=found, policy="api", store=away), a_request()) == [False]
    opened = gate(policies=found, policy="api", store=away, on_error="open")
    assert verdicts(opened, a_request(), a_request()) == [True, True]
    assert opened.notices.counts["degraded"] == 2
    assert verdicts(gate(FixedWindow(1, LONG), store=away), a_request(), a_request()) == [True, False]


# --- how policies are given, and how they change


def test_policies_are_loaded_or_read_from_a_file_or_a_text(gate, tmp_path):
    found = one(1, "all")
    (tmp_path / "limits.json").write_text(found.text)
    for given in (found, found.text, tmp_path / "limits.json", str(tmp_path / "limits.json")):
        assert verdicts(gate(policies=given, policy="api"), a_request(), a_request()) == [True, False]


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"policy": "api"}, InvalidRule, r"route '\*': policy 'api' needs `policies`"),
        ({"policies": one(1, "a")}, InvalidRule, "policies needs policy, the name of one of them: api"),
        ({"policies": one(1, "a"), "policy": "appi"}, InvalidRule, "policy 'appi' is unknown.*did you mean 'api'"),
        ({"policies": one(1, "a"), "policy": 5}, TypeError, "policy must be the name of a policy, not 5"),
        ({"policies": 5, "policy": "api"}, TypeError, "policies must be Policies.load"),
        ({"policies": "[policies.api]", "policy": "api"}, InvalidPolicies, "line 1"),
        ({"policies": "nowhere.toml", "policy": "api"}, InvalidPolicies, "cannot be read"),
        (
            {"policies": one(1, "a"), "policy": "api", "limit": "1/s"},
            InvalidRule,
            "limit and policy cannot be combined",
        ),
        ({"policies": one(1, "a"), "policy": "api", "per_method": True}, InvalidRule, "per_method does not apply"),
        ({"policies": one(1, "a"), "policy": "api", "key": by_user()}, InvalidRule, "a policy has keys of its own"),
        (
            {"policies": one(1, "a"), "routes": [Route("/", policy="api", key=by_user())]},
            InvalidRule,
            "route '/': a policy has keys of its own",
        ),
    ],
)
def test_what_cannot_work_is_refused_at_the_start(gate, options, error, said):
    with pytest.raises(error, match=said):
        gate(**options)


def test_a_route_needs_a_limit_or_a_policy():
    with pytest.raises(TypeError, match="a route needs a limit, which may be None, or a policy"):
        Route("/")
    with pytest.raises(InvalidRule, match="limit and policy cannot be combined"):
        Route("/", "1/s", policy="api")
    with pytest.raises(InvalidRule, match=r"write \{method\} into them"):
        Route("/", policy="api", per_method=True)


def test_a_key_is_for_the_routes_that_have_rules(gate):
    limited = gate(policies=one(1, "all"), policy="api", key=by_user(), routes=[Route("/a", FixedWindow(1, LONG))])
    asked = [
        a_request(path=path, user=user) for path, user in (("/a", "ada"), ("/a", "eve"), ("/b", "ada"), ("/b", "eve"))
    ]
    assert verdicts(limited, *asked) == [True, True, True, False]


def test_services_with_prefixes_of_their_own_share_nothing(gate):
    shared = {"policies": one(1, "all"), "policy": "api", "store": MemoryStore(), "clock": ManualClock(NOW)}
    gates = [gate(prefix=prefix, **shared) for prefix in ("a", "b", "a")]
    assert [verdicts(each, a_request()) for each in gates] == [[True], [True], [False]]


def test_policies_change_while_requests_run(gate):
    """Each request is decided by one version, with the attributes that this version needs; none fails."""
    versions = [
        policies(api=rules(("a", 10**6, "{user}", {}), ("b", 10**6, "{header:x-a}", {}))).text,
        policies(api=rules(("c", 2 * 10**6, "{ip}", {}), ("d", 2 * 10**6, "{method}/{path}", {}))).text,
    ]
    found = Policies.load(versions[0])
    limited = gate(policies=found, policy="api")
    seen, done = [], threading.Event()

    def change():
        while not done.is_set():
            for version in versions:
                found.replace(version)

    changing = threading.Thread(target=change)
    changing.start()
    request = a_request(user="ada", headers={"x-a": "1"})
    give_up = time.monotonic() + 60
    try:
        while len(seen) < 20 and time.monotonic() < give_up:
            layers = limited.admit(request).decision.layers
            if not seen or tuple(layers) != seen[-1]:
                seen.append(tuple(layers))
    finally:
        done.set()
        changing.join()
    assert len(seen) == 20
    assert set(seen) == {("a", "b"), ("c", "d")}
    assert limited.notices.counts["shared"] == 0
