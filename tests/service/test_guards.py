"""A page of another site can neither change nor read anything; a program, and our own page, can."""

import pytest

from tests.service.serving import InProcess, Served

HIT = {"key": "guarded", "rule": "fixed-window 1000/day"}
CROSS_SITE = {  # what a browser sends on behalf of a page of evil.example
    "fetch with JSON": {"origin": "http://evil.example", "sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"},
    "fetch from a sandboxed frame": {"origin": "null"},
    "an old browser": {"origin": "http://evil.example"},
    "another port of this host": {"origin": "http://127.0.0.1:1", "sec-fetch-site": "same-site"},
    "an image or a script": {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"},
    "a frame": {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"},
    "a name that was made to point here": {"host": "evil.example", "origin": "http://evil.example"},
    "such a name with our port": {"host": "evil.example:8080", "sec-fetch-site": "same-origin"},
    "a name that looks like ours": {"host": "localhost.evil.example"},
    "a name that looks like an address": {"host": "127.0.0.1.evil.example"},
    "no name": {"host": ""},
}
every_attack = pytest.mark.parametrize("headers", CROSS_SITE.values(), ids=CROSS_SITE)


@every_attack
@pytest.mark.parametrize("operation", ["hit", "peek", "charge", "refund", "reset", "inspect"])
def test_a_page_of_another_site_cannot_ask_for_anything(service, headers, operation):
    answer = service.ask("POST", f"/v1/{operation}", json=HIT, headers=headers)
    assert answer.status_code in (403, 421)
    assert answer.headers["content-type"] == "application/problem+json"


@every_attack
def test_what_is_refused_consumes_nothing(service, headers, key):
    body = {"key": key, "rule": "fixed-window 5/day"}
    service.ask("POST", "/v1/hit", json=body, headers=headers)
    assert service.ask("POST", "/v1/peek", json=body).json()["remaining"] == 5


@every_attack
@pytest.mark.parametrize("path", ["/v1/live", "/readyz", "/openapi.json"])
def test_a_page_of_another_site_cannot_read_anything(service, headers, path):
    assert service.ask("GET", path, headers=headers).status_code in (403, 421)


@pytest.mark.parametrize("origin", [None, "http://evil.example"])
def test_no_answer_lets_another_site_read_it(service, origin):
    answer = service.ask("OPTIONS", "/v1/hit", headers={} if origin is None else {"origin": origin})
    assert answer.status_code in (403, 405)
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "content_type",
    ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain", "", "application/jsonp"],
)
def test_what_a_form_can_send_is_refused(service, content_type, key):
    content = f'{{"key": "{key}", "rule": "fixed-window 5/day"}}'.encode()
    headers = {"content-type": content_type}
    answer = service.ask("POST", "/v1/hit", content=content, headers=headers)
    assert (answer.status_code, answer.json()["field"]) == (415, "content-type")
    assert service.ask("POST", "/v1/peek", content=content, headers=headers).status_code == 415


def test_a_body_without_a_content_type_is_refused(service):
    assert service.ask("POST", "/v1/hit", content=b"{}").status_code == 415


@pytest.mark.parametrize("content_type", ["application/json", "application/json; charset=utf-8", "Application/JSON"])
def test_json_is_taken_however_it_is_spelled(service, content_type):
    content = b'{"key": "k", "rule": "fixed-window 1000/day"}'
    assert service.ask("POST", "/v1/hit", content=content, headers={"content-type": content_type}).status_code == 200


GIVEN_TWICE = {
    "another host": [("host", "localhost"), ("host", "evil.example")],
    "another host before": [("host", "evil.example"), ("host", "localhost")],
    "the same host": [("host", "localhost"), ("Host", "localhost")],
    "another origin": [("origin", "http://evil.example"), ("origin", "http://localhost")],
    "another site": [("sec-fetch-site", "cross-site"), ("sec-fetch-site", "same-origin")],
    "another token": [("authorization", "Bearer a"), ("authorization", "Bearer b")],
    "another type": [("content-type", "text/plain"), ("content-type", "application/json")],
}


@pytest.mark.parametrize("headers", GIVEN_TWICE.values(), ids=GIVEN_TWICE)
def test_what_decides_must_be_said_once(headers):
    app = InProcess(playground=False)
    content = b'{"key": "k", "rule": "fixed-window 5/day"}'
    given = headers if headers[0][0] == "content-type" else [*headers, ("content-type", "application/json")]
    answer = app.ask("POST", "/v1/hit", content=content, headers=given)
    assert (answer.status_code, answer.json()["field"]) == (400, headers[0][0])
    assert answer.json()["detail"] == f"the header {headers[0][0]} is given more than once"
    assert app.app.service.store.size == 0


def test_other_headers_may_be_given_twice(service):
    headers = [
        ("accept", "text/html"),
        ("accept", "application/json"),
        ("x-forwarded-for", "a"),
        ("x-forwarded-for", "b"),
    ]
    assert service.ask("POST", "/v1/hit", json=HIT, headers=headers).status_code == 200


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8080", "127.0.0.1:8080", "[::1]:8080", "[::1]", "10.1.2.3"])
def test_our_own_page_can_ask_by_whatever_name_it_was_opened(service, host):
    headers = {"host": host, "origin": f"http://{host}", "sec-fetch-site": "same-origin"}
    assert service.ask("POST", "/v1/hit", json=HIT, headers=headers).status_code == 200


def test_a_page_behind_tls_can_ask(service):
    headers = {"host": "localhost", "origin": "https://localhost"}
    assert service.ask("POST", "/v1/hit", json=HIT, headers=headers).status_code == 200


def test_a_link_from_another_site_opens_the_page(served):
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert served.ask("GET", "/", headers=headers).status_code == 200


def test_a_link_cannot_do_anything(service):
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert service.ask("POST", "/v1/reset", json=HIT, headers=headers).status_code == 403


@pytest.mark.parametrize("path", ["/", "/healthz", "/nothing"])
def test_every_answer_forbids_what_it_does_not_need(served, path):
    headers = served.ask("GET", path).headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none';")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"


@pytest.fixture(scope="module", params=["in process", "served"])
def guarded(request):
    if request.param == "in process":
        guarded = InProcess(token="open sesame", hosts=["limits.example"], playground=False)
    else:
        guarded = Served("memory://", "--allow-host", "limits.example", RATEKEEPER_TOKEN="open sesame")
    yield guarded
    guarded.stop()


NEED_THE_TOKEN = ["charge", "refund", "reset", "inspect"]


@pytest.mark.parametrize("operation", NEED_THE_TOKEN)
@pytest.mark.parametrize(
    "authorization", [None, "", "Bearer", "Bearer open", "Basic open sesame", "open sesame", "Bearer é"]
)
def test_what_changes_or_shows_more_than_a_hit_needs_the_token(guarded, operation, authorization):
    headers = {} if authorization is None else {"authorization": authorization.encode()}
    answer = guarded.ask("POST", f"/v1/{operation}", json=HIT, headers=headers)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")


@pytest.mark.parametrize("operation", NEED_THE_TOKEN)
@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
def test_who_has_the_token_may_do_it(guarded, operation, scheme):
    headers = {"authorization": f"{scheme} open sesame"}
    assert guarded.ask("POST", f"/v1/{operation}", json=HIT, headers=headers).status_code == 200


@pytest.mark.parametrize("operation", ["hit", "peek"])
def test_a_hit_and_a_peek_need_no_token(guarded, operation):
    assert guarded.ask("POST", f"/v1/{operation}", json=HIT).status_code == 200


def test_a_name_that_was_allowed_is_answered(guarded):
    assert guarded.ask("GET", "/healthz", headers={"host": "limits.example:8080"}).status_code == 200
    assert guarded.ask("GET", "/healthz", headers={"host": "other.example:8080"}).status_code == 421


NOT_LOCAL = {  # what a service without a token sees of a caller that is somewhere else
    "another machine": {"peer": "192.0.2.1"},
    "another machine, over IPv6": {"peer": "2001:db8::1"},
    "an unknown peer": {"peer": ""},
    "who says that it is local": {"peer": "192.0.2.1", "headers": {"x-forwarded-for": "127.0.0.1"}},
    "a proxy": {"headers": {"x-forwarded-for": "192.0.2.1"}},
    "a proxy that believes its caller": {"headers": {"x-forwarded-for": "127.0.0.1", "host": "localhost"}},
    "a proxy that speaks of itself": {"headers": {"via": "1.1 proxy"}},
    "a proxy of today": {"headers": {"forwarded": "for=127.0.0.1"}},
    "nginx": {"headers": {"x-real-ip": "127.0.0.1"}},
    "Cloudflare": {"headers": {"cf-connecting-ip": "127.0.0.1"}},
    "a proxy that hands on the host": {"headers": {"host": "limits.example"}},
    "a proxy that hands on an address": {"headers": {"host": "192.0.2.1:8080"}},
    "the address of all": {"headers": {"host": "0.0.0.0:8080"}},
}


@pytest.mark.parametrize("operation", NEED_THE_TOKEN)
@pytest.mark.parametrize("asked", NOT_LOCAL.values(), ids=NOT_LOCAL)
def test_without_a_token_only_callers_on_this_machine_may_do_it(asked, operation):
    app = InProcess(hosts=["limits.example"], playground=False)
    answer = app.ask("POST", f"/v1/{operation}", json=HIT, **asked)
    assert (answer.status_code, answer.headers["content-type"]) == (403, "application/problem+json")
    assert answer.json()["detail"].startswith("without a token, this call is for callers on this machine only")
    assert app.ask("POST", "/v1/hit", json=HIT, **asked).status_code == 200


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8080", "127.0.0.1:8080", "127.1.2.3", "[::1]:8080", "[::1]"])
def test_a_caller_on_this_machine_needs_no_token_if_there_is_none(peer, host):
    app = InProcess(playground=False)
    assert app.ask("POST", "/v1/reset", json=HIT, peer=peer, headers={"host": host}).status_code == 200


@pytest.mark.parametrize("header", ["x-forwarded-for", "forwarded", "via", "x-real-ip", "X-Forwarded-Host"])
def test_a_server_knows_a_proxy_on_its_machine_by_its_headers(served, header):
    assert served.ask("POST", "/v1/inspect", json=HIT).status_code == 200
    assert served.ask("POST", "/v1/inspect", json=HIT, headers={header: "127.0.0.1"}).status_code == 403
