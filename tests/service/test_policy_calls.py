"""Calls by policy: the service decides as the library does, and says what is wrong with a request."""

import itertools
import subprocess

import pytest

from ratekeeper.policies import Policies
from tests import servers
from tests.service.serving import COMMAND, InProcess, Served

POLICIES = """
[[policies.api.rules]]
name = "user"
limit = "fixed-window 5/day"
key = "{user}"

[[policies.api.rules]]
name = "writes"
limit = "sliding-window-log 3/hour"
key = "{tenant|none}/{user}"
when = { method = ["POST", "PUT"] }

[[policies.api.overrides]]
when = { plan = "free for all" }
limits = "unlimited"

[[policies.api.overrides]]
when = { plan = "none" }
limits = "blocked"

[[policies.api.overrides]]
when = { plan = "pro" }
limits = { user = "fixed-window 50/hour", writes = "blocked" }

[[policies.llm.rules]]
name = "tokens"
limit = { algorithm = "token-bucket", capacity = 1000, refill_rate = 10 }
key = "all"
cost = "{tokens}"

[[policies.tried.rules]]
name = "all"
limit = "fixed-window 1/day"
key = "{user}"
shadow = true
"""
_users = itertools.count()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("policies") / "limits.toml"
    path.write_text(POLICIES)
    return path


@pytest.fixture(scope="module", params=["in process", "memory", "Redis"])
def service(request, path):
    if request.param == "in process":
        service = InProcess(playground=False, policies=path)
    else:
        url = "memory://" if request.param == "memory" else servers.shared(servers.newest()).url
        service = Served(url, "--policies", str(path))
    yield service
    service.stop()


@pytest.fixture
def user():
    """A user that nobody has been."""
    return f"user {next(_users)}"


def ask(service, operation, attributes, policy="api", **more):
    return service.ask("POST", f"/v1/{operation}", json={"policy": policy, "attributes": attributes, **more})


def problem(answer):
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.status_code, answer.json()["field"], answer.json()["detail"]


def test_the_rules_of_a_policy_decide_together(service, user):
    answer = ask(service, "hit", {"user": user, "method": "post"}, cost=2)
    assert answer.status_code == 200
    assert {name: layer["remaining"] for name, layer in answer.json()["layers"].items()} == {"user": 3, "writes": 1}
    denied = ask(service, "hit", {"user": user, "method": "POST"}, cost=2)
    assert (denied.status_code, denied.json()["rule"], denied.json()["degraded"]) == (429, "writes", False)
    assert ask(service, "peek", {"user": user}).json()["remaining"] == 3
    assert ask(service, "hit", {"user": user, "method": "POST"}, cost={"user": 3, "writes": 0}).status_code == 200


def test_the_headers_report_the_rules_that_the_request_meets(service, user):
    headers = ask(service, "hit", {"user": user}).headers
    assert headers["ratelimit-policy"] == '"user";q=5;w=86400'
    assert headers["x-ratelimit-limit"] == "5"
    headers = ask(service, "hit", {"user": user, "method": "PUT"}).headers
    assert headers["ratelimit-policy"] == '"user";q=5;w=86400, "writes";q=3;w=3600'
    assert headers["ratelimit"].startswith('"user";r=3;t=')
    assert headers["x-ratelimit-remaining"] == "2"
    headers = ask(service, "hit", {"user": user, "plan": "pro"}).headers
    assert headers["ratelimit-policy"] == '"user";q=50;w=3600'
    denied = ask(service, "hit", {"user": user, "method": "PUT"}, cost=3)
    assert 0 < int(denied.headers["retry-after"]) <= 3600


def test_without_limits_nothing_is_reported(service, user):
    answer = ask(service, "hit", {"user": user, "plan": "free for all"})
    assert answer.json()["allowed"]
    assert answer.json()["limit"] is answer.json()["remaining"] is None
    assert "ratelimit" not in answer.headers


def test_a_blocked_request_is_denied_for_ever(service, user):
    for attributes in ({"plan": "none"}, {"user": user, "plan": "pro", "method": "PUT"}):
        answer = ask(service, "hit", attributes)
        assert (answer.status_code, answer.json()["limit"], answer.json()["retry_after"]) == (429, 0, None)
        assert "retry-after" not in answer.headers
    assert ask(service, "peek", {"user": user, "plan": "pro"}).json()["remaining"] == 50


def test_a_charge_is_made_whatever_is_blocked(service, user):
    answer = ask(service, "charge", {"user": user, "plan": "pro", "method": "PUT"}, cost=3)
    assert (answer.status_code, answer.json()["rule"], "ratelimit" in answer.headers) == (200, "writes", False)
    assert ask(service, "peek", {"user": user, "plan": "pro"}).json()["remaining"] == 47


def test_a_rule_in_the_shadow_denies_nothing(service, user):
    for denied in ([], ["all"]):
        answer = ask(service, "hit", {"user": user}, "tried")
        assert (answer.status_code, answer.json()["shadow_denied"]) == (200, denied)
        assert "ratelimit" not in answer.headers


def test_a_cost_comes_from_an_attribute(service):
    before = ask(service, "peek", {"tokens": 1}, "llm").json()["remaining"]
    answer = ask(service, "hit", {"tokens": "100"}, "llm")
    assert before - 100 <= answer.json()["remaining"] <= before - 99


def test_a_number_and_its_text_are_one_identity(service, user):
    number = 10**12 + int(user.removeprefix("user ")) + id(service)
    ask(service, "hit", {"user": number}, cost=4)
    assert ask(service, "peek", {"user": str(number)}).json()["remaining"] == 1


def test_usage_is_charged_given_back_forgotten_and_inspected(service, user):
    assert ask(service, "charge", {"user": user}, cost=4).json()["remaining"] == 1
    assert ask(service, "refund", {"user": user}, cost=2).json()["remaining"] == 3
    rules = ask(service, "inspect", {"user": user, "method": "PUT"}).json()["rules"]
    assert (set(rules), rules["user"]["state"]["count"]) == ({"user", "writes"}, 2)
    assert ask(service, "reset", {"user": user}).json() == {"ok": True}
    assert ask(service, "peek", {"user": user}).json()["remaining"] == 5


def test_a_batch_takes_policies_and_rules(service, user):
    hits = [
        {"policy": "api", "attributes": {"user": user}},
        {"key": user, "rule": "fixed-window 9/day"},
        {"policy": "api", "attributes": {"method": "GET"}},
        {"policy": "apy", "attributes": {"user": user}},
        {"policy": "api", "attributes": {"user": user}, "cost": 5},
    ]
    decided = service.ask("POST", "/v1/hit/batch", json={"requests": hits}).json()["decisions"]
    assert [each.get("allowed") for each in decided] == [True, True, None, None, False]
    assert [each["field"] for each in decided if "error" in each] == ["attributes.user", "policy"]


def test_an_unknown_policy_is_named_with_the_nearest_one(service):
    assert problem(ask(service, "hit", {}, "appi")) == (
        400,
        "policy",
        "policy 'appi' is unknown; the policies are api, llm, tried; did you mean 'api'?",
    )


def test_a_missing_attribute_is_named(service):
    status, field, detail = problem(ask(service, "hit", {"method": "GET"}))
    assert (status, field) == (400, "attributes.user")
    assert detail == "attribute 'user' is missing; the key '{user}' needs it"
    assert problem(service.ask("POST", "/v1/hit", json={"policy": "api"}))[1] == "attributes.user"
    assert problem(ask(service, "hit", {}, "llm"))[1] == "attributes.tokens"


@pytest.mark.parametrize("value", [None, True, 1.5, ["ada"], {"ada": 1}])
def test_an_attribute_is_a_text_or_an_integer(service, value):
    status, field, _ = problem(ask(service, "hit", {"user": value}))
    assert (status, field) == (400, "attributes.user")


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"key": "ada"}, "key"),
        ({"rule": "1/s"}, "rule"),
        ({"rules": {}}, "rules"),
        ({"limit": 5}, "limit"),
        ({"cost": 0}, "cost"),
        ({"cost": -1}, "cost"),
        ({"cost": {"usr": 1}}, "cost.usr"),
        ({"cost": 1.5}, "cost"),
        ({"attributes": "ada"}, "attributes"),
        ({"policy": 7}, "policy"),
        ({"tenant": "acme"}, "tenant"),
    ],
)
def test_what_does_not_fit_is_named(service, user, more, field):
    body = {"policy": "api", "attributes": {"user": user}, **more}
    assert problem(service.ask("POST", "/v1/hit", json=body))[:2] == (400, field)
    assert ask(service, "peek", {"user": user}).json()["remaining"] == 5


def test_attributes_need_a_policy(service):
    body = {"key": "ada", "rule": "1/s", "attributes": {"user": "ada"}}
    assert problem(service.ask("POST", "/v1/hit", json=body))[:2] == (400, "attributes")


def test_without_policies_the_answer_says_how_to_serve_them():
    status, field, detail = problem(ask(InProcess(playground=False), "hit", {}))
    assert (status, field) == (400, "policy")
    assert "--policies" in detail


def test_the_service_and_the_library_count_together():
    policies = Policies.load(POLICIES)
    service = InProcess(playground=False, policies=policies)
    limiter = policies.limiter("api", service.app.service.store)
    ask(service, "hit", {"user": "ada"}, cost=3)
    assert limiter.hit({"user": "ada"}).remaining == 1
    policies.replace(POLICIES.replace("5/day", "10/day"))
    assert ask(service, "peek", {"user": "ada"}).json()["remaining"] == 6


def test_a_policy_that_is_gone_is_unknown_and_one_that_came_is_known():
    policies = Policies.load(POLICIES)
    service = InProcess(playground=False, policies=policies)
    ask(service, "hit", {"user": "ada"})
    policies.replace(POLICIES.replace("policies.api.", "policies.web."))
    assert problem(ask(service, "hit", {"user": "ada"}))[:2] == (400, "policy")
    assert ask(service, "hit", {"user": "ada"}, "web").status_code == 200


def test_mistakes_in_the_file_stop_the_service_before_it_listens(tmp_path):
    path = tmp_path / "limits.toml"
    path.write_text(POLICIES.replace("5/day", "5/dya").replace('"{tokens}"', "true"))
    ended = subprocess.run([*COMMAND, "--policies", str(path)], check=False, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (2, "")
    mistakes = ended.stderr.splitlines()
    assert [mistake.partition(": policies.")[0] for mistake in mistakes] == [
        f"ratekeeper serve: {path}: line 4",
        f"ratekeeper serve: {path}: line 29",
    ]
