"""`policies` and `policy` in every integration: the same attributes, decisions, headers and counts in each."""

import asyncio
import json
from typing import Annotated, Any

import django
import flask
import httpx
import pytest
from django.http import HttpResponse
from django.test import RequestFactory, override_settings
from fastapi import Depends, FastAPI

from ratekeeper import AsyncLimiter, FixedWindow, InvalidRule, Limiter
from ratekeeper.http import Notices, Route, by_address
from ratekeeper.integrations import django as for_django
from ratekeeper.integrations import fastapi, starlette
from ratekeeper.integrations.flask import RateLimiter
from ratekeeper.integrations.httpx import AsyncLimitedTransport, LimitedTransport
from ratekeeper.integrations.requests import LimitedAdapter
from ratekeeper.policies import Policies
from ratekeeper.testing import ManualClock
from tests.integrations.everywhere import PLACES

django.setup()

from ratekeeper.integrations.rest_framework import RateLimitThrottle  # noqa: E402 - only now there are settings

everywhere = pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
RULES = [
    {"name": "user", "limit": "fixed-window 3/400d", "key": "{user|nobody}"},
    {"name": "ip", "limit": "fixed-window 4/400d", "key": "{ip}"},
    {
        "name": "writes",
        "limit": "fixed-window 2/400d",
        "key": "{header:X-Tenant|none}",
        "when": {"method": "POST", "path": "/v1/*"},
    },
]
OVERRIDES = [
    {"when": {"ip": "10.0.0.0/8"}, "limits": "unlimited"},
    {"when": {"user": "mallory"}, "limits": "blocked"},
    {"when": {"header:x-plan": "pro"}, "limits": {"user": "fixed-window 30/400d", "ip": "unlimited"}},
]


def policies(rules=RULES, overrides=OVERRIDES, **more):
    api = {"rules": rules, "overrides": overrides} | more
    return Policies.load(json.dumps({"policies": {"api": api}}))


@everywhere
def test_a_request_is_known_by_its_attributes(place):
    with place(policies=policies(), policy="api") as ask:
        answers = [ask("/v1/a", "POST", user="ada") for _ in range(3)]
        assert [answer.status for answer in answers] == [200, 200, 429]
        assert answers[2].headers["x-ratelimit-limit"] == "2"
        assert int(answers[2].headers["retry-after"]) > 0
        assert ask("/v1/a", "POST", {"X-Tenant": "acme"}, "192.0.2.2", "ada").status == 200
        last = ask("/V1//a/../b", "POST", {"x-tenant": "acme"}, "192.0.2.2", "eve")
        assert (last.status, last.headers["x-ratelimit-remaining"]) == (200, "0")
        assert '"writes";r=0' in last.headers["ratelimit"]


@everywhere
def test_overrides_hold_for_the_requests_that_meet_them(place):
    notices = Notices()
    with place(policies=policies(), policy="api", notices=notices) as ask:
        free = [ask(peer="10.1.2.3") for _ in range(9)]
        assert {(answer.status, "ratelimit" in answer.headers) for answer in free} == {(200, False)}
        assert notices.counts["unlimited"] == 9
        blocked = ask(user="mallory")
        assert (blocked.status, "retry-after" in blocked.headers, "ratelimit" in blocked.headers) == (429, False, False)
        pro = [ask(user="ada", headers={"X-Plan": "pro"}) for _ in range(9)]
        assert [answer.status for answer in pro] == [200] * 9
        assert pro[-1].headers["ratelimit-policy"].startswith('"user";q=30;')
        assert pro[-1].headers["x-ratelimit-remaining"] == "21"


@everywhere
def test_a_missing_attribute_is_shared_and_told(place):
    notices = Notices()
    rules = [{"name": "user", "limit": "fixed-window 2/400d", "key": "{user}"}]
    with place(policies=policies(rules, []), policy="api", notices=notices) as ask:
        assert [ask(peer=f"192.0.2.{number}").status for number in range(3)] == [200, 200, 429]
        assert ask(user="ada").status == 200
    assert notices.counts["shared"] == 3


@everywhere
def test_a_policy_may_be_tried_out(place):
    notices = Notices()
    with place(policies=policies(shadow=True), policy="api", notices=notices) as ask:
        assert [ask(user=user).status for user in ["ada"] * 5 + ["mallory"]] == [200] * 6
    assert notices.counts["shadow_denied"] == 2 + 1 + 2  # by user, by ip; what is blocked is so by both


@everywhere
def test_a_change_is_followed_at_once_and_usage_is_kept(place):
    found = policies()
    with place(policies=found, policy="api") as ask:
        assert [ask(user="ada").status for _ in range(2)] == [200, 200]
        found.replace(policies([RULES[0] | {"limit": "fixed-window 2/400d"}], []))
        assert ask(user="ada").status == 429
        found.replace(policies([RULES[0] | {"limit": "fixed-window 5/400d"}], []))
        assert ask(user="ada").headers["x-ratelimit-remaining"] == "2"
        found.set_override("o", policy="api", when={"path": "/x"}, limits="blocked", expires_in=60)
        assert [ask(path, user="ada").status for path in ("/x", "/y")] == [429, 200]


@everywhere
def test_switched_off_a_policy_limits_nothing(place):
    notices = Notices()
    with place(policies=policies(), policy="api", enabled=False, notices=notices, store="redis://127.0.0.1:1") as ask:
        assert [ask(user="mallory").status for _ in range(5)] == [200] * 5
    assert notices.counts["unlimited"] == 5


@everywhere
def test_the_application_gives_attributes_and_says_which_proxies_it_trusts(place):
    rules = [{"name": "one", "limit": "fixed-window 1/400d", "key": "{ip}/{plan}"}]
    options = {"key": by_address(["192.0.2.0/24"]), "attributes": {"plan": lambda request: request.path.strip("/")}}
    with place(policies=policies(rules, []), policy="api", **options) as ask:
        asked = [("/a", "198.51.100.1"), ("/a", "198.51.100.2"), ("/b", "198.51.100.1"), ("/a", "198.51.100.1")]
        answers = [ask(path, headers={"X-Forwarded-For": address}) for path, address in asked]
    assert [answer.status for answer in answers] == [200, 200, 200, 429]


@everywhere
def test_a_limiter_by_policy_is_a_limit_like_any_other(place, request):
    found = policies()
    is_async = any(
        name in request.node.callspec.id for name in ("asgi", "starlette", "decorator", "dependency", "async")
    )
    limiter = found.async_limiter("api") if is_async else found.limiter("api")
    with place(limit=limiter) as ask:
        assert [ask(user="ada").status for _ in range(4)] == [200, 200, 200, 429]


@everywhere
def test_an_unknown_policy_is_refused_at_the_start(place):
    with (
        pytest.raises(InvalidRule, match="policy 'appi' is unknown; the policies are api; did you mean 'api'"),
        place(policies=policies(), policy="appi") as ask,
    ):
        ask()  # Starlette makes its middleware when the server first calls


# --- limits of single views


def test_a_policy_of_views_has_one_usage_and_no_other_name():
    found = policies([{"name": "ip", "limit": "fixed-window 2/400d", "key": "{ip}"}], [])
    app = FastAPI()
    limit = fastapi.RateLimit(policies=found, policy="api")
    app.get("/a")(fastapi.limited(limit=None, policies=found, policy="api")(lambda: "a"))
    app.get("/b", dependencies=[Depends(limit)])(lambda: "b")

    @app.get("/c")
    async def c(admission: Annotated[Any, Depends(limit)]):
        return admission.decision.remaining

    async def ask():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
            return [(await client.get(path)).status_code for path in ("/a", "/b", "/c")]

    assert asyncio.run(ask()) == [200, 200, 429]
    for make in (starlette.RateLimit, starlette.limited, fastapi.RateLimit):
        with pytest.raises(TypeError, match="a policy counts by its own keys"):
            make(policies=found, policy="api", name="x")


def test_the_user_of_a_dependency_is_the_user_of_the_policy():
    app = FastAPI()
    limit = fastapi.RateLimit(policies=policies(), policy="api", user=lambda name: name)
    app.get("/", dependencies=[Depends(limit)])(lambda: "hello")

    async def ask(*users):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
            return [(await client.get("/", params={"name": user})).status_code for user in users]

    assert asyncio.run(ask("ada", "ada", "ada", "mallory", "eve")) == [200, 200, 200, 429, 200]


TWO = [{"name": "two", "limit": "fixed-window 2/400d", "key": "{ip}"}]


def test_flask_has_a_policy_for_all_requests_beside_the_limits_of_views():
    found = policies(TWO, [])
    app = flask.Flask(__name__)
    limiter = RateLimiter(app, policies=found, policy="api", default=FixedWindow(1, "400 days"))
    app.get("/a")(limiter.limit(FixedWindow(5, "400 days"))(lambda: "a"))
    app.add_url_rule("/b", "b", lambda: "b")
    client = app.test_client()
    assert [client.get(path).status_code for path in ("/b", "/b", "/nowhere", "/a")] == [200, 429, 429, 429]
    with pytest.raises(InvalidRule, match="application and policy cannot be combined"):
        RateLimiter(flask.Flask(__name__), policies=found, policy="api", application="1/s")


def test_views_of_flask_share_the_usage_of_their_policy():
    limiter = RateLimiter(policies=policies(TWO, []))
    app, blueprint = flask.Flask(__name__), flask.Blueprint("blue", __name__)
    blueprint.get("/c")(lambda: "c")
    limiter.limit(policy="api")(blueprint)
    app.get("/a")(limiter.limit(policy="api")(lambda: "a"))

    @app.get("/b")
    def b():
        with limiter.limit(policy="api") as decision:
            return str(decision.remaining)

    app.register_blueprint(blueprint)
    limiter.init_app(app)
    client = app.test_client()
    assert [client.get(path).status_code for path in ("/a", "/b", "/c")] == [200, 200, 429]
    with pytest.raises(TypeError, match="a policy counts by its own keys"):
        limiter.limit(policy="api", name="x")
    with pytest.raises(InvalidRule, match="policy 'appi' is unknown"):
        app.add_url_rule("/d", "d", limiter.limit(policy="appi")(lambda: "d"))


def test_flask_s_default_may_be_a_policy():
    app = flask.Flask(__name__)
    limiter = RateLimiter(app, policies=policies(TWO, []), default=Route("*", policy="api"))
    app.add_url_rule("/a", "a", lambda: "a")
    app.add_url_rule("/b", "b", lambda: "b")
    app.add_url_rule("/c", "c", limiter.limit(FixedWindow(1, "400 days"))(lambda: "c"))
    client = app.test_client()
    assert [client.get(path).status_code for path in ("/a", "/b", "/a", "/c")] == [200, 200, 429, 200]


def test_views_of_django_share_the_usage_of_their_policy():
    def hello(request):
        return HttpResponse("hello")

    with override_settings(RATEKEEPER={"policies": policies(TWO, [])}):
        views = [for_django.limited(policy="api")(hello) for _ in range(2)]
        throttle = type("Throttle", (RateLimitThrottle,), {"policy": "api"})
        assert [view(RequestFactory().get("/")).status_code for view in views] == [200, 200]
        assert not throttle().allow_request(RequestFactory().get("/"), flask.Response())
        with pytest.raises(TypeError, match="a policy counts by its own keys"):
            for_django.limited(policy="api", name="x")
        with pytest.raises(InvalidRule, match="policy 'appi' is unknown"):
            type("Unknown", (RateLimitThrottle,), {"policy": "appi"})
        with pytest.raises(InvalidRule, match="policy 'appi' is unknown"):
            for_django.limited(policy="appi")(hello)


def test_django_reads_a_file_once_and_functions_by_name(tmp_path):
    path = tmp_path / "limits.json"
    path.write_text(policies(TWO, []).text)
    settings = {
        "policies": path,
        "policy": "api",
        "attributes": {"ip": "tests.integrations.test_policies_everywhere.an_ip"},
    }
    with override_settings(RATEKEEPER=settings):
        middleware = for_django.RateLimitMiddleware(lambda _: HttpResponse("hello"))
        view = for_django.limited(policy="api")(lambda _: HttpResponse("hello"))
        path.unlink()
        served = [(middleware, "192.0.2.1"), (view, "192.0.2.2"), (view, "192.0.2.3")]
        asked = [serve(RequestFactory().get("/", REMOTE_ADDR=peer)) for serve, peer in served]
        assert [answer.status_code for answer in asked] == [200, 200, 429]
    with override_settings(RATEKEEPER={"policies": path, "policy": "api"}):
        assert "cannot be read" in for_django.check_settings()[0].msg


def an_ip(request):
    return "198.51.100.1"


# --- outgoing requests


def by_host_and_path(request):
    return {"host": request.url.host, "path": request.url.path} if hasattr(request.url, "host") else {"host": "x"}


OUTGOING = """
[[policies.out.rules]]
name = "host"
limit = "fixed-window 1/minute"
key = "{host}"
"""


def test_outgoing_requests_follow_a_limiter_by_policy_whose_key_is_the_attributes():
    found, clock = Policies.load(OUTGOING), ManualClock()
    limiter = found.limiter("out", clock=clock)
    sent = []
    answer = httpx.MockTransport(lambda request: sent.append(request) or httpx.Response(200))
    with httpx.Client(transport=LimitedTransport(limiter, key=by_host_and_path, transport=answer, timeout=0)) as client:
        client.get("http://a/")
        with pytest.raises(Exception, match="rate limit 'host' exceeded"):
            client.get("http://a/x")
        client.get("http://b/")
        found.replace(OUTGOING.replace("1/minute", "2/minute"))
        client.get("http://a/")
    assert len(sent) == 3


@pytest.mark.parametrize(
    ("make", "limiter"),
    [(LimitedTransport, "limiter"), (LimitedAdapter, "limiter"), (AsyncLimitedTransport, "async_limiter")],
)
def test_a_limiter_by_policy_needs_attributes_for_outgoing_requests(make, limiter):
    with pytest.raises(InvalidRule, match="a limiter by policy needs a key function that returns attributes"):
        make(getattr(Policies.load(OUTGOING), limiter)("out"))


def test_the_policy_of_a_limiter():
    found = policies()
    assert (found.limiter("api").policy, found.async_limiter("api").policy) == ("api", "api")
    assert (Limiter("1/s").policy, AsyncLimiter("1/s").policy) == ("", "")
