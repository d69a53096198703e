"""Tokens for callers: of the service, and of each policy."""

import pytest

from ratekeeper.cli import main
from ratekeeper.policies import InvalidPolicies, Policies
from ratekeeper.policies.caller_hashes import caller_hash
from tests.service.serving import InProcess

POLICIES = """
[[policies.open.rules]]
name = "user"
limit = "fixed-window 1000/day"
key = "{{user}}"

[policies.billing]
callers = ["{billing}", "{other}"]

[[policies.billing.rules]]
name = "user"
limit = "fixed-window 1000/day"
key = "{{user}}"
"""
INLINE = {"key": "ada", "rule": "fixed-window 1000/day"}
OPEN, BILLING = ({"policy": policy, "attributes": {"user": "ada"}} for policy in ("open", "billing"))


def policies(billing=b"billing", other=b"other"):
    return POLICIES.format(billing=caller_hash(billing), other=caller_hash(other))


def service(**options):
    return InProcess(policies=Policies.load(policies()), playground=False, **options)


def statuses(service, token, call="hit"):
    """Ask inline, by the open policy, and by the one with callers of its own; return the statuses."""
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    return [
        service.ask("POST", f"/v1/{call}", json=body, headers=headers).status_code for body in (INLINE, OPEN, BILLING)
    ]


@pytest.mark.parametrize("call", ["hit", "peek"])
@pytest.mark.parametrize(
    ("token", "expected"),
    [
        (None, [200, 200, 401]),
        ("wrong", [200, 200, 401]),
        ("billing", [200, 200, 200]),
        ("other", [200, 200, 200]),
        ("operator", [200, 200, 200]),
    ],
)
def test_a_policy_is_for_its_callers_alone(token, expected, call):
    assert statuses(service(token="operator"), token, call) == expected


@pytest.mark.parametrize("call", ["hit", "peek"])
@pytest.mark.parametrize(
    ("token", "expected"),
    [
        (None, [401, 401, 401]),
        ("caller", [200, 200, 401]),
        ("billing", [401, 401, 200]),
        ("operator", [200, 200, 200]),
    ],
)
def test_a_token_of_the_service_is_for_all_that_has_no_callers_of_its_own(token, expected, call):
    assert statuses(service(token="operator", caller_token="caller"), token, call) == expected


def test_who_has_no_token_uses_up_nothing_and_is_told_how_to_send_one():
    served = service(token="operator")
    refused = served.ask("POST", "/v1/hit", json=BILLING)
    assert refused.headers["www-authenticate"] == "Bearer"
    assert refused.json()["detail"] == (
        "policy 'billing' is for callers with a token; send the header Authorization: Bearer TOKEN"
    )
    assert refused.json()["field"] == "policy"
    left = served.ask("POST", "/v1/peek", json=BILLING, headers={"authorization": "bearer billing"})
    assert left.json()["remaining"] == 1000


def test_each_hit_of_a_batch_needs_its_token():
    served = service(caller_token="caller")
    batch = {"requests": [INLINE, BILLING, OPEN]}
    answer = served.ask("POST", "/v1/hit/batch", json=batch, headers={"authorization": "Bearer billing"})
    assert [each.get("allowed") for each in answer.json()["decisions"]] == [None, True, None]
    assert "inline rules are for callers with a token" in answer.json()["decisions"][0]["error"]


def test_callers_do_not_operate():
    served = service(token="operator", caller_token="caller")
    for token in ("caller", "billing"):
        headers = {"authorization": f"Bearer {token}"}
        assert served.ask("POST", "/v1/reset", json=OPEN, headers=headers).status_code == 401


def test_new_callers_count_from_the_next_request_on():
    known = Policies.load(policies())
    served = InProcess(policies=known, playground=False)
    assert statuses(served, "billing")[2] == 200
    known.replace(policies(billing=b"renewed"))
    assert [statuses(served, token)[2] for token in ("billing", "renewed", "other")] == [401, 200, 200]


@pytest.mark.parametrize(
    ("callers", "reason"),
    [
        ("[]", "policies.api.callers: names nobody; to let everybody call, leave it out"),
        ('"all"', "policies.api.callers: must be a list"),
        ('["s3cret"]', "policies.api.callers[0]: must be the hash of a token, as ratekeeper token prints it"),
        ("[1]", "policies.api.callers[0]: must be the hash of a token, as ratekeeper token prints it"),
    ],
)
def test_a_mistake_in_callers_is_told_without_their_secrets(callers, reason):
    rule = '[[policies.api.rules]]\nname = "user"\nlimit = "1/s"\nkey = "all"\n'
    with pytest.raises(InvalidPolicies) as refused:
        Policies.load(f"[policies.api]\ncallers = {callers}\n{rule}")
    assert reason in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_a_new_token_comes_with_what_the_file_says_of_it(capsys):
    assert main(["token"]) == 0
    token, callers = (line.split(maxsplit=1)[1] for line in capsys.readouterr().out.splitlines())
    assert callers == f'["{caller_hash(token.encode())}"]'
    assert main(["token"]) == 0
    assert token not in capsys.readouterr().out


def test_the_token_of_operators_is_not_for_callers(capsys, monkeypatch):
    monkeypatch.setenv("RATEKEEPER_TOKEN", "one")
    monkeypatch.setenv("RATEKEEPER_CALLER_TOKEN", "one")
    assert main(["serve"]) == 2
    assert capsys.readouterr().err == (
        "ratekeeper serve: the callers' token is the operators' token as well; give callers another one\n"
    )
