"""GET /v1/forward-auth/{policy}: what proxies say of their clients' requests, and how the service answers."""

import json
import logging
import socket

import pytest

from ratekeeper import InvalidRule
from ratekeeper.policies import Policies
from ratekeeper.service.app import create_app
from tests.service.serving import InProcess, Served

RULES = [
    {"name": "ip", "limit": "fixed-window 3/400d", "key": "{ip}"},
    {"name": "login", "limit": "fixed-window 1/400d", "key": "all", "when": {"method": "POST", "path": "/login"}},
    {"name": "host", "limit": "fixed-window 2/400d", "key": "{host}", "when": {"host": "*.example"}},
    {"name": "tenant", "limit": "fixed-window 1/400d", "key": "{header:X-Tenant}", "when": {"header:x-tenant": "*"}},
]
OVERRIDES = [
    {"when": {"ip": "10.0.0.0/8"}, "limits": "unlimited"},
    {"when": {"ip": "203.0.113.0/24"}, "limits": "blocked"},
    {"when": {"path": "/calm"}, "limits": {"ip": "leaky-bucket 20/s burst 5 shaping"}},
]
POLICIES = json.dumps({"policies": {"api": {"rules": RULES, "overrides": OVERRIDES}}})
ASKED = {"X-Forwarded-For": "198.51.100.1", "X-Forwarded-Method": "GET", "X-Forwarded-Uri": "/items"}


@pytest.fixture
def service():
    service = InProcess(policies=POLICIES)
    yield service
    service.stop()


def ask(service, query="", path="/v1/forward-auth/api", **said):
    headers = ASKED | {name.replace("_", "-"): value for name, value in said.items()}
    return service.ask(
        "GET", path + query, headers={name: value for name, value in headers.items() if value is not None}
    )


def statuses(service, *requests):
    return [ask(service, **request).status_code for request in requests]


def test_a_request_is_admitted_with_204_and_denied_with_429_and_the_headers_of_a_decision(service):
    answers = [ask(service) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [204, 204, 204, 429]
    assert [answer.headers["x-ratelimit-remaining"] for answer in answers] == ["2", "1", "0", "0"]
    assert (answers[0].content, "content-type" in answers[0].headers) == (b"", False)
    assert answers[3].headers["ratelimit"].startswith('"ip";r=0;t=')
    assert int(answers[3].headers["retry-after"]) > 0
    assert answers[3].json()["violated-policies"] == ["ip"]
    assert answers[3].headers["content-type"] == "application/problem+json"


def test_a_denial_is_in_the_format_that_the_client_accepts(service):
    for _ in range(3):
        ask(service)
    assert ask(service, Accept="text/plain").text.startswith("Too many requests. Try again in")
    assert ask(service, Accept="text/html").headers["content-type"] == "text/html; charset=utf-8"


def test_the_status_of_a_denial_may_be_403(service):
    assert [ask(service, "?deny=403").status_code for _ in range(4)] == [204, 204, 204, 403]
    assert ask(service, "?deny=429").status_code == 429
    for wrong in ("?deny=200", "?deny=", "?deny=403&deny=500"):
        assert (ask(service, wrong).status_code, ask(service, wrong).json()["field"]) == (400, "deny")


def test_each_attribute_is_what_the_proxy_says(service):
    login = {"X_Forwarded_Method": "POST", "X_Forwarded_Uri": "/login?next=/"}
    assert statuses(service, login, login | {"X_Forwarded_For": "198.51.100.2"}) == [204, 429]
    asked = [{"X_Forwarded_Host": host} for host in ("Api.Example", "api.example.:443", "API.EXAMPLE:80")]
    assert statuses(service, *(each | {"X_Forwarded_For": f"198.51.101.{n}"} for n, each in enumerate(asked))) == [
        204,
        204,
        429,
    ]
    asked = [{"X_Tenant": tenant, "X_Forwarded_For": f"198.51.102.{n}"} for n, tenant in enumerate(["a", "a", "b"])]
    assert statuses(service, *asked) == [204, 429, 204]


def test_overrides_hold_for_the_addresses_that_are_forwarded(service):
    assert [ask(service, X_Forwarded_For="10.1.2.3").status_code for _ in range(5)] == [204] * 5
    assert "ratelimit" not in ask(service, X_Forwarded_For="10.1.2.3").headers
    blocked = ask(service, X_Forwarded_For="203.0.113.9")
    assert (blocked.status_code, "retry-after" in blocked.headers) == (429, False)


def test_the_address_is_read_from_the_right_past_the_proxies_that_are_trusted():
    service = InProcess(policies=POLICIES, trusted_proxies=["127.0.0.0/8", "192.0.2.0/24"])
    made_up = [f"1.2.3.{number}, 198.51.100.1, 192.0.2.7" for number in range(3)]
    assert statuses(service, *({"X_Forwarded_For": each} for each in made_up), {}) == [204, 204, 204, 429]


def test_ipv6_clients_are_counted_by_network(service):
    asked = [{"X_Forwarded_For": f"2001:db8::{number}"} for number in range(1, 5)]
    assert statuses(service, *asked, {"X_Forwarded_For": "2001:db8:0:1::1"}) == [204, 204, 204, 429, 204]


@pytest.mark.parametrize("header", [None, "unknown", ""])
def test_clients_whose_address_the_proxy_does_not_say_count_as_one_and_that_is_told(service, caplog, header):
    assert statuses(service, *[{"X_Forwarded_For": header}] * 4) == [204, 204, 204, 429]
    assert service.app.service.notices.counts["shared"] == 4
    assert "sends no address in X-Forwarded-For: all its clients count as one" in caplog.text


@pytest.mark.parametrize(
    "uri",
    [
        *("/login", "/login/", "//login", "/Login", "/%6cogin", "/./login", "/x/../login", "/login%0a", "/login#x"),
        *("/login?a=1", "/login%20", "\\login", "http://any.host/login", "HTTP://any.host:80/login?x", "/%2e/login"),
    ],
)
def test_a_path_meets_its_rule_however_it_is_written(service, uri):
    asked = [{"X_Forwarded_Method": "POST", "X_Forwarded_Uri": each} for each in ("/login", uri)]
    assert statuses(service, *asked) == [204, 429]


def test_a_path_is_decoded_once(service):
    asked = [{"X_Forwarded_Method": "POST", "X_Forwarded_Uri": each} for each in ("/%256cogin", "/login", "/login")]
    assert statuses(service, *asked) == [204, 204, 429]


@pytest.mark.parametrize("name", ["X_Forwarded_Method", "X_Forwarded_Uri"])
def test_what_the_proxy_does_not_say_matches_nothing_and_that_is_told(service, caplog, name):
    login = {"X_Forwarded_Method": "POST", "X_Forwarded_Uri": "/login", "X_Forwarded_Host": "a"}
    assert statuses(service, login | {name: None}, login | {name: ""}, login, login) == [204, 204, 204, 429]
    assert service.app.service.notices.counts["skipped"] == 2
    said = f"a proxy that asks /v1/forward-auth/ sends no {name.replace('_', '-')}: rules of policy 'api' that compare"
    assert [said in record.getMessage() for record in caplog.records].count(True) == 1


def test_a_missing_attribute_of_a_key_is_named():
    rules = [{"name": "tenant", "limit": "1/s", "key": "{header:x-tenant}"}]
    service = InProcess(policies=json.dumps({"policies": {"api": {"rules": rules}}}))
    answer = ask(service)
    assert (answer.status_code, answer.json()["field"]) == (400, "attributes.header:x-tenant")


@pytest.mark.parametrize("name", ["X-Forwarded-For", "X-Forwarded-Uri", "X-Forwarded-Method", "X-Forwarded-Host"])
def test_what_the_proxy_says_twice_is_refused(served_policies, name):
    lines = [f"{known}: {value}" for known, value in ASKED.items() if known != name]
    request = "\r\n".join(["GET /v1/forward-auth/api HTTP/1.1", "Host: localhost", "Connection: close", *lines])
    twice = f"\r\n{name}: 198.51.100.1\r\n{name}: 198.51.100.2\r\n\r\n"
    with socket.create_connection(("127.0.0.1", served_policies.port), timeout=30) as connection:
        connection.sendall((request + twice).encode())
        answer = connection.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 400")
    assert name.lower().encode() in answer


@pytest.fixture(scope="module")
def served_policies(tmp_path_factory):
    path = tmp_path_factory.mktemp("forward-auth") / "limits.json"
    path.write_text(POLICIES)
    served = Served("memory://", "--policies", str(path))
    yield served
    served.stop()


def test_it_works_through_a_server_as_well(served_policies):
    said = ASKED | {"X-Forwarded-For": "198.51.104.1"}
    answers = [served_policies.ask("GET", "/v1/forward-auth/api", headers=said) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [204, 204, 204, 429]
    assert served_policies.ask("HEAD", "/v1/forward-auth/api", headers=said).status_code == 429
    assert served_policies.ask("POST", "/v1/forward-auth/api", headers=said).status_code == 405


def test_only_trusted_proxies_are_answered(caplog):
    service = InProcess(policies=POLICIES, trusted_proxies=["192.0.2.1"])
    answers = [ask(service) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [403, 403]
    assert "trusted proxies" in answers[0].json()["detail"]
    told = [record for record in caplog.records if "--trusted-proxy" in record.getMessage()]
    assert [record.levelno for record in told] == [logging.WARNING]


def test_proxies_are_named_on_the_command_line(tmp_path):
    path = tmp_path / "limits.json"
    path.write_text(POLICIES)
    served = Served(
        "memory://", "--policies", str(path), "--trusted-proxy", "192.0.2.1", "--trusted-proxy", "10.0.0.0/8"
    )
    try:
        assert served.ask("GET", "/v1/forward-auth/api", headers=ASKED).status_code == 403
    finally:
        served.stop()


def test_a_proxy_that_is_no_address_is_refused_at_the_start():
    with pytest.raises(
        InvalidRule, match=r"trusted_proxies\[0\]: 'nginx' does not appear to be an IPv4 or IPv6 network"
    ):
        create_app(policies=POLICIES, trusted_proxies=["nginx"])


def test_an_unknown_policy_is_not_found(service):
    answer = ask(service, path="/v1/forward-auth/appi")
    assert (answer.status_code, answer.json()["field"]) == (404, "policy")
    assert "did you mean 'api'" in answer.json()["detail"]
    assert ask(InProcess(), path="/v1/forward-auth/api").status_code == 404


def test_the_headers_of_a_page_that_the_proxy_passes_on_are_the_client_s(service):
    page = {"Origin": "https://shop.example", "Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "cors"}
    assert ask(service, **page).status_code == 204
    # without a proxy, they are those of a page that asks the service itself
    for name in ("Origin", "Sec_Fetch_Site"):
        assert ask(service, X_Forwarded_Uri=None, **{name: page[name]}).status_code == 403
    assert ask(service, Host="shop.example").status_code == 421


def test_a_shaping_rule_holds_the_answer(service):
    asked = {"X_Forwarded_Uri": "/calm", "X_Forwarded_For": "198.51.105.1"}
    assert statuses(service, asked, asked, asked) == [204, 204, 204]
    assert statuses(service, *[asked] * 20) == [204] * 20  # each waits for its departure: the bucket is never full


def test_policies_change_for_proxies_as_for_all(service):
    assert [ask(service).status_code for _ in range(4)] == [204, 204, 204, 429]
    service.app.service.policies.policies.replace(Policies.load(POLICIES.replace("3/400d", "5/400d")))
    assert [ask(service).status_code for _ in range(3)] == [204, 204, 429]


def test_callers_may_need_a_token():
    service = InProcess(policies=POLICIES, caller_token="secret")
    assert statuses(service, {}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer secret"}) == [
        401,
        401,
        204,
    ]
