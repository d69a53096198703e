import math

import pytest

from ratekeeper.inspections import inspection_fields
from ratekeeper.stores.protocol import Inspection

TWO_A_DAY = {"algorithm": "fixed-window", "limit": 2, "window": 86_400}
SIX = {
    "fixed-window 5/day": {"algorithm": "fixed-window", "limit": 5, "window": "1d"},
    "sliding-window-log 5/day": {"algorithm": "sliding-window-log", "limit": 5, "window": 86_400},
    "sliding-window-counter 5/day": {"algorithm": "sliding-window-counter", "limit": 5, "window": "24h"},
    "token-bucket 5/day burst 5": {"algorithm": "token-bucket", "capacity": 5, "refill_rate": "5/day"},
    "leaky-bucket 5/day burst 5": {"algorithm": "leaky-bucket", "capacity": 5, "leak_rate": "5/day"},
    "leaky-bucket 5/day burst 5 shaping": {
        "algorithm": "leaky-bucket",
        "capacity": 5,
        "leak_rate": "5/day",
        "mode": "shaping",
    },
}
OPERATIONS = ["hit", "peek", "charge", "refund", "reset", "inspect"]


def post(service, operation, body, query=""):
    return service.ask("POST", f"/v1/{operation}{query}", json=body)


def test_a_hit_is_admitted_with_200_and_the_complete_decision(service, key):
    answer = post(service, "hit", {"key": key, **TWO_A_DAY})
    decision = answer.json()
    assert answer.status_code == 200
    assert 0 < decision.pop("reset_after") <= 86_400
    assert decision == {
        "allowed": True,
        "limit": 2,
        "remaining": 1,
        "retry_after": 0.0,
        "delay": 0.0,
        "rule": "fixed-window 2/day",
        "layers": {},
        "degraded": False,
        "shadow_denied": [],
    }


def test_a_hit_is_denied_with_429_the_same_decision_and_when_to_come_back(service, key):
    for _ in range(2):
        post(service, "hit", {"key": key, **TWO_A_DAY})
    answer = post(service, "hit", {"key": key, **TWO_A_DAY})
    decision = answer.json()
    assert answer.status_code == 429
    assert (decision["allowed"], decision["remaining"]) == (False, 0)
    assert int(answer.headers["retry-after"]) == math.ceil(decision["retry_after"])


def test_an_answer_has_the_rate_limit_headers(service, key):
    headers = post(service, "hit", {"key": key, **TWO_A_DAY}).headers
    assert headers["ratelimit-policy"] == '"fixed-window 2/day";q=2;w=86400'
    assert headers["ratelimit"].startswith('"fixed-window 2/day";r=1;t=')
    assert (headers["x-ratelimit-limit"], headers["x-ratelimit-remaining"]) == ("2", "1")
    assert headers["content-type"] == "application/json"
    assert headers["cache-control"] == "no-store"


def test_a_caller_that_reads_the_body_only_gets_200_for_a_denial(service, key):
    answer = post(service, "hit", {"key": key, "cost": 3, **TWO_A_DAY}, "?always_200=1")
    assert (answer.status_code, answer.json()["allowed"]) == (200, False)
    assert post(service, "hit", {"key": key, "cost": 3, **TWO_A_DAY}, "?always_200=0").status_code == 429


def test_a_time_that_never_comes_is_null(service, key):
    answer = post(service, "hit", {"key": key, "cost": 3, **TWO_A_DAY})
    assert answer.json()["retry_after"] is None
    assert "retry-after" not in answer.headers


@pytest.mark.parametrize("name", SIX)
def test_every_algorithm_is_hit_by_its_fields(service, key, name):
    decision = post(service, "hit", {"key": key, "cost": 2, **SIX[name]}).json()
    assert (decision["rule"], decision["remaining"]) == (name, 3)


@pytest.mark.parametrize("name", SIX)
def test_fields_and_text_of_a_rule_mean_the_same(service, key, name):
    post(service, "hit", {"key": key, **SIX[name]})
    assert post(service, "hit", {"key": key, "rule": name}).json()["remaining"] == 3


UNIFIED = {
    "fixed_window": "fixed-window 6/minute",
    "sliding_window_log": "sliding-window-log 6/minute",
    "sliding_window_counter": "sliding-window-counter 6/minute",
    "token_bucket": "token-bucket 6/minute burst 6",
    "leaky_bucket": "leaky-bucket 6/minute burst 6",
}


@pytest.mark.parametrize(("algorithm", "rule"), UNIFIED.items())
def test_an_algorithm_and_a_limit_are_enough(service, key, algorithm, rule):
    decision = post(service, "hit", {"key": key, "algorithm": algorithm, "limit": 6}).json()
    assert (decision["rule"], decision["limit"], decision["remaining"]) == (rule, 6, 5)
    assert post(service, "hit", {"key": key, "algorithm": rule.partition(" ")[0], "limit": 6}).json()["remaining"] == 4
    assert (
        post(service, "hit", {"key": key, "rules": {"a": {"algorithm": algorithm, "limit": 6}}}).json()["rule"] == "a"
    )
    assert post(service, "peek", {"key": key, "rule": rule}).json()["remaining"] == 3


@pytest.mark.parametrize("algorithm", UNIFIED)
def test_every_field_may_be_sent_with_its_default(service, key, algorithm):
    rates = {"capacity": None, "refill_rate": None, "leak_rate": None}
    body = {"key": key, "algorithm": algorithm, "limit": 6, "window": 60, "mode": "policing", **rates}
    assert post(service, "hit", body).json()["rule"] == UNIFIED[algorithm]


def test_a_peek_changes_nothing(service, key):
    answers = [post(service, "peek", {"key": key, **TWO_A_DAY}) for _ in range(3)]
    assert [(answer.status_code, answer.json()["remaining"]) for answer in answers] == [(200, 2)] * 3


def test_a_peek_at_what_would_be_denied_is_429(service, key):
    assert post(service, "peek", {"key": key, "cost": 3, **TWO_A_DAY}).status_code == 429


def test_a_charge_takes_without_asking(service, key):
    answer = post(service, "charge", {"key": key, "cost": 2, **TWO_A_DAY})
    assert (answer.status_code, answer.json()["allowed"]) == (200, False)  # it was done, and now nothing is left
    assert post(service, "hit", {"key": key, **TWO_A_DAY}).status_code == 429


def test_a_refund_gives_back(service, key):
    post(service, "hit", {"key": key, "cost": 2, **TWO_A_DAY})
    assert post(service, "refund", {"key": key, **TWO_A_DAY}).json()["remaining"] == 1


def test_a_reset_forgets_the_key(service, key):
    post(service, "hit", {"key": key, "cost": 2, **TWO_A_DAY})
    answer = post(service, "reset", {"key": key, **TWO_A_DAY})
    assert (answer.status_code, answer.json()) == (200, {"ok": True})
    assert post(service, "peek", {"key": key, **TWO_A_DAY}).json()["remaining"] == 2


def test_several_rules_are_decided_together_with_a_key_and_a_cost_for_each(service, key):
    body = {
        "rules": {"user": "fixed-window 10/day", "tokens": SIX["token-bucket 5/day burst 5"]},
        "keys": {"user": key, "tokens": f"{key} tokens"},
        "cost": {"user": 1, "tokens": 4},
    }
    first, second = (post(service, "hit", body) for _ in range(2))
    assert {name: layer["remaining"] for name, layer in first.json()["layers"].items()} == {"user": 9, "tokens": 1}
    assert (second.status_code, second.json()["rule"]) == (429, "tokens")
    assert second.json()["layers"]["user"]["remaining"] == 9


def test_one_key_is_for_all_rules(service, key):
    body = {"rules": {"day": "fixed-window 5/day", "week": "fixed-window 9/week"}, "key": key, "cost": 2}
    layers = post(service, "hit", body).json()["layers"]
    assert (layers["day"]["remaining"], layers["week"]["remaining"]) == (3, 7)


@pytest.mark.parametrize("made", [lambda key: key, lambda key: len(key) + 10**20, lambda key: [key, 7]])
def test_a_key_is_a_text_a_number_or_several(service, key, made):
    assert post(service, "hit", {"key": made(key), "rule": "fixed-window 5/week"}).status_code == 200


def test_a_rule_is_the_same_rule_under_any_name(service, key):
    answer = post(service, "hit", {"key": key, "rules": {"a": "fixed-window 5/month"}}).json()
    assert (answer["rule"], answer["remaining"]) == ("a", 4)
    assert post(service, "hit", {"key": key, "rules": {"b": "fixed-window 5/month"}}).json()["remaining"] == 3
    assert post(service, "hit", {"key": key, "rule": "fixed-window 5/month"}).json()["remaining"] == 2


def test_equal_rules_with_the_same_key_are_charged_together(service, key):
    rules = {"user": "fixed-window 5/month", "tenant": "fixed-window 5/month"}
    same = {"rules": rules, "keys": {"user": key, "tenant": key}, "cost": {"user": 1, "tenant": 2}}
    answer = post(service, "hit", same).json()
    assert {name: layer["remaining"] for name, layer in answer["layers"].items()} == {"user": 2, "tenant": 2}
    denied = post(service, "hit", same)
    assert (denied.status_code, denied.json()["remaining"]) == (429, 2)
    apart = {"rules": rules, "keys": {"user": key, "tenant": f"{key} tenant"}}
    answer = post(service, "hit", apart).json()
    assert {name: layer["remaining"] for name, layer in answer["layers"].items()} == {"user": 1, "tenant": 4}


@pytest.mark.parametrize("name", SIX)
def test_inspect_shows_the_state_and_what_the_store_holds(service, key, name):
    post(service, "hit", {"key": key, "cost": 2, **SIX[name]})
    (seen,) = post(service, "inspect", {"key": key, **SIX[name]}).json()["rules"].values()
    assert seen["rule"] == name
    assert seen["raw"]
    assert seen["encoding"] in ("json", "text", "base64")
    assert 0 < seen["ttl"] <= 2 * 86_400
    assert seen["bytes"] > 0
    assert seen["state"]


def test_inspect_shows_of_a_long_log_the_newest_entries():
    entries = [(second, 1) for second in range(5_000)]
    shown = inspection_fields(
        Inspection("100/s", {"count": 5_000, "entries": entries}, tuple(range(10_003)), 1.0, 80_000, 5e3)
    )
    assert shown["state"] == {"count": 5_000, "entries": entries[-1_000:]}
    assert shown["raw"] == tuple(range(9_003, 10_003))


def test_inspect_shows_an_untouched_key_as_nothing(service, key):
    (seen,) = post(service, "inspect", {"key": key, **TWO_A_DAY}).json()["rules"].values()
    assert (seen["raw"], seen["ttl"], seen["bytes"]) == (None, None, 0)
    assert seen["state"]["count"] == 0


def test_live_counts_hits_that_were_admitted_and_denied(service, key):
    before = service.ask("GET", "/v1/live").json()
    for operation in ("hit", "hit", "hit", "peek", "charge"):
        post(service, operation, {"key": key, **TWO_A_DAY})
    after = service.ask("GET", "/v1/live").json()
    counted = {name: after[name] - before[name] for name in ("admitted", "denied", "degraded")}
    assert counted == {"admitted": 2, "denied": 1, "degraded": 0}
    assert (len(after["seconds"]), after["store"]) == (120, "healthy")


def test_the_service_says_that_it_is_up_and_that_its_store_is_healthy(service):
    assert service.ask("GET", "/healthz").json() == {"status": "ok"}
    assert service.ask("GET", "/readyz").json() == {"status": "healthy"}


def test_what_is_not_there_is_a_problem(service):
    answer = service.ask("GET", "/v1/nothing")
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    assert answer.json() == {
        "type": "about:blank",
        "title": "Not Found",
        "status": 404,
        "detail": "/v1/nothing not found",
    }


@pytest.mark.parametrize(("method", "path", "allowed"), [("GET", "/v1/hit", "POST"), ("POST", "/healthz", "GET, HEAD")])
def test_another_method_is_a_problem_that_names_the_right_ones(service, method, path, allowed):
    answer = service.ask(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


def test_a_head_has_the_headers_and_no_body(service):
    answer = service.ask("HEAD", "/healthz")
    assert (answer.status_code, answer.content) == (200, b"")
