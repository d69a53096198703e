"""The routes of the playground, over a real socket."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

import httpx
import pytest

import ratekeeper.algorithms
import ratekeeper.playground
from ratekeeper import Limiter
from tests import servers
from tests.playground.serving import served
from tests.proxy import Proxy

ALGORITHMS = ["fixed-window", "sliding-window-log", "sliding-window-counter", "token-bucket", "leaky-bucket"]
LONG = {  # rules that hardly move while a test runs
    "fixed-window": {"maxRequests": 5, "windowSeconds": 80_000},
    "sliding-window-log": {"maxRequests": 5, "windowSeconds": 80_000},
    "sliding-window-counter": {"maxRequests": 5, "windowSeconds": 80_000},
    "token-bucket": {"maxTokens": 5, "refillRate": 0.0001},
    "leaky-bucket": {"capacity": 5, "leakRate": 0.0001},
}
STATIC = Path(ratekeeper.playground.__file__).parent / "static"


@pytest.fixture(scope="module")
def site():
    with served() as url:
        yield url


@pytest.fixture
def visitor(site):
    with httpx.Client(base_url=site) as client:
        yield client


@pytest.fixture(params=["memory", "redis"])
def anywhere(request, site):
    """A visitor of a service in memory, and of one on Redis."""
    if request.param == "memory":
        with httpx.Client(base_url=site) as client:
            yield client
    else:
        with served(servers.shared(servers.newest()).url) as url, httpx.Client(base_url=url) as client:
            yield client


def post(client, path, body=None, **options):
    return client.post(f"/api/rate-limit/{path}", json={} if body is None else body, **options)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_first_request_is_allowed_and_says_all_there_is_to_say(anywhere, algorithm):
    answer = post(anywhere, algorithm, {"config": LONG[algorithm]})
    assert answer.status_code == 200
    assert answer.json() == {"allowed": True, "remaining": 4, "limit": 5, "retryAfter": None, "delay": 0.0}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_denied_request_is_answered_with_200_too_and_says_when_to_retry(anywhere, algorithm):
    post(anywhere, f"{algorithm}/burst", {"config": LONG[algorithm], "count": 5})
    answer = post(anywhere, algorithm, {"config": LONG[algorithm]})
    assert answer.status_code == 200
    assert answer.json()["allowed"] is False
    assert answer.json()["retryAfter"] > 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_empty_body_means_ten_in_ten_seconds(visitor, algorithm):
    answer = visitor.post(f"/api/rate-limit/{algorithm}").json()
    assert (answer["limit"], answer["remaining"]) == (10, 9)


@pytest.mark.parametrize("concurrent", [False, True])
def test_a_burst_is_ten_requests_and_no_more_pass_than_the_limit(anywhere, concurrent):
    body = {"config": LONG["token-bucket"], "concurrent": concurrent}
    answers = post(anywhere, "token-bucket/burst", body).json()
    assert [answer["allowed"] for answer in answers].count(True) == 5
    assert len(answers) == 10


def test_shaping_delays_what_it_queues(visitor):
    config = {"mode": "shaping", "capacity": 5, "leakRate": 0.001}
    answers = post(visitor, "leaky-bucket/burst", {"config": config, "count": 3}).json()
    assert [round(answer["delay"], -1) for answer in answers] == [0, 1000, 2000]


def test_a_cost_takes_that_much(visitor):
    assert post(visitor, "fixed-window", {"config": LONG["fixed-window"], "cost": 3}).json()["remaining"] == 2


def test_a_cost_that_never_fits_has_no_time_to_retry(visitor):
    answer = post(visitor, "fixed-window", {"config": LONG["fixed-window"], "cost": 6}).json()
    assert (answer["allowed"], answer["retryAfter"]) == (False, None)


def test_reset_forgets_every_rule_that_the_visitor_has_used(anywhere):
    for algorithm in ALGORITHMS:
        post(anywhere, f"{algorithm}/burst", {"config": LONG[algorithm]})
    assert post(anywhere, "reset").json() == {"ok": True}
    left = [post(anywhere, algorithm, {"config": LONG[algorithm]}).json()["remaining"] for algorithm in ALGORITHMS]
    assert left == [4, 4, 4, 4, 4]


def test_reset_forgets_what_was_used_however_many_rules_were_looked_at_since(visitor):
    post(visitor, "fixed-window/burst", {"config": LONG["fixed-window"]})
    for limit in range(20, 100):
        post(visitor, "fixed-window/state", {"config": LONG["fixed-window"] | {"maxRequests": limit}})
    post(visitor, "reset")
    assert post(visitor, "fixed-window", {"config": LONG["fixed-window"]}).json()["remaining"] == 4


def test_what_was_reset_while_redis_was_away_is_reset_again_when_it_is_back():
    body = {"config": LONG["fixed-window"]}
    with (
        Proxy(servers.shared(servers.newest()).port) as proxy,
        served(proxy.url) as url,
        httpx.Client(base_url=url) as visitor,
    ):
        post(visitor, "fixed-window/burst", body)
        proxy.refuse()
        assert post(visitor, "reset").json() == {"ok": True}
        proxy.mode = "pass"
        give_up = time.monotonic() + servers.PATIENCE
        while visitor.get("/readyz").json() != {"status": "healthy"}:
            assert time.monotonic() < give_up
            time.sleep(0.05)
        post(visitor, "reset")
        assert post(visitor, "fixed-window", body).json()["remaining"] == 4


def test_visitors_do_not_see_each_other(site, visitor):
    post(visitor, "token-bucket/burst", {"config": LONG["token-bucket"]})
    with httpx.Client(base_url=site) as other:
        assert post(other, "token-bucket", {"config": LONG["token-bucket"]}).json()["remaining"] == 4


def test_a_visitor_cannot_reset_another(site, visitor):
    post(visitor, "token-bucket/burst", {"config": LONG["token-bucket"]})
    with httpx.Client(base_url=site) as other:
        post(other, "reset")
    assert post(visitor, "token-bucket", {"config": LONG["token-bucket"]}).json()["allowed"] is False


def test_a_session_is_random_and_out_of_reach_for_scripts_and_other_sites(site):
    cookies = [httpx.post(f"{site}/api/rate-limit/fixed-window").headers["set-cookie"] for _ in range(2)]
    assert cookies[0] != cookies[1]
    pattern = r"ratekeeper_visitor=[0-9a-f]{32}\.\d+\.[0-9a-f]{64}; Path=/api; Max-Age=86400; HttpOnly; SameSite=Strict"
    assert re.fullmatch(pattern, cookies[0])


def test_a_known_visitor_gets_no_new_session(visitor):
    post(visitor, "fixed-window")
    assert "set-cookie" not in post(visitor, "fixed-window").headers


@pytest.mark.parametrize(
    "forge",
    [
        lambda name, expires, signature: f"{'0' * 32}.{expires}.{signature}",
        lambda name, expires, signature: f"{name}.{int(expires) + 1}.{signature}",
        lambda name, expires, signature: f"{name}.{expires}.{'0' * 64}",
        lambda name, expires, signature: "nonsense",
    ],
)
def test_a_session_that_we_did_not_sign_is_a_new_visitor(visitor, site, forge):
    post(visitor, "fixed-window")
    forged = forge(*visitor.cookies["ratekeeper_visitor"].split("."))
    answer = httpx.post(f"{site}/api/rate-limit/fixed-window", headers={"cookie": f"ratekeeper_visitor={forged}"})
    assert "set-cookie" in answer.headers


def test_an_expired_session_is_a_new_visitor(visitor, monkeypatch):
    post(visitor, "fixed-window")
    later = time.time_ns() + 86_401 * 1_000_000_000
    monkeypatch.setattr("ratekeeper.playground.visitors.wall_clock", lambda: later)
    assert "set-cookie" in post(visitor, "fixed-window").headers


def test_two_hundred_visitors_at_once_each_get_a_full_limit(site):
    async def click():
        async with httpx.AsyncClient(base_url=site, timeout=30) as client:
            return await client.post("/api/rate-limit/token-bucket/burst", json={"config": LONG["token-bucket"]})

    async def all_click():
        return await asyncio.gather(*(click() for _ in range(200)))

    allowed = [[answer["allowed"] for answer in answers.json()].count(True) for answers in asyncio.run(all_click())]
    assert allowed == [5] * 200


@pytest.mark.parametrize("path", ["leapfrog", "leapfrog/burst", "leapfrog/state"])
def test_an_unknown_algorithm_is_400_and_says_which_there_are(visitor, path):
    answer = post(visitor, path)
    assert answer.status_code == 400
    known = ", ".join(algorithm.algorithm for algorithm in ratekeeper.algorithms.ALGORITHMS)
    assert answer.json()["error"] == f"unknown algorithm 'leapfrog'; use {known}"


@pytest.mark.parametrize(
    ("algorithm", "body", "field", "error"),
    [
        ("fixed-window", {"config": {"maxRequests": 0}}, "config.maxRequests", "maxRequests must be from 1 to "),
        ("fixed-window", {"config": {"maxRequests": "ten"}}, "config.maxRequests", "maxRequests must be "),
        ("fixed-window", {"config": {"maxRequests": True}}, "config.maxRequests", "maxRequests must be "),
        ("sliding-window-log", {"config": {"windowSeconds": -1}}, "config.windowSeconds", "windowSeconds must be "),
        ("sliding-window-log", {"config": {"windowSeconds": None}}, "config.windowSeconds", "windowSeconds must be "),
        ("sliding-window-log", {"config": {"windowSeconds": "soon"}}, "config.windowSeconds", "windowSeconds: cannot "),
        (
            "sliding-window-log",
            {"config": {"maxRequests": 10_001}},
            "config.maxRequests",
            "maxRequests must be at most 10000 for a sliding-window-log, not 10001",
        ),
        ("token-bucket", {"config": {"maxTokens": 1.5}}, "config.maxTokens", "maxTokens must be "),
        ("token-bucket", {"config": {"refillRate": 0}}, "config.refillRate", "refillRate must be "),
        ("fixed-window", {"config": {"windowSeconds": 86_401}}, "config.windowSeconds", "windowSeconds must be "),
        ("sliding-window-log", {"config": {"windowSeconds": "25h"}}, "config.windowSeconds", "windowSeconds must be "),
        ("token-bucket", {"config": {"refillRate": 0.0001}}, "config.refillRate", "refillRate must be fast enough to "),
        ("leaky-bucket", {"config": {"capacity": 86_401}}, "config.leakRate", "leakRate must be "),
        ("leaky-bucket", {"config": {"leakRate": "x"}}, "config.leakRate", "leakRate"),
        ("leaky-bucket", {"config": {"mode": "hoping"}}, "config.mode", "mode must be 'policing' or 'shaping'"),
        (
            "leaky-bucket",
            {"config": {"size": 1}},
            "config.size",
            "unknown config 'size'; leaky-bucket takes capacity, ",
        ),
        ("leaky-bucket", {"config": []}, "config", "config must be an object, not []"),
        ("fixed-window", {"cost": 0}, "cost", "cost must be a whole number from 1 to "),
        ("fixed-window", [], None, "the body must be an object, not []"),
        ("fixed-window/burst", {"count": 51}, "count", "count must be a whole number from 1 to 50, not 51"),
        ("fixed-window/burst", {"concurrent": 1}, "concurrent", "concurrent must be true or false"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_field_to_blame(visitor, algorithm, body, field, error):
    answer = post(visitor, algorithm, body)
    assert (answer.status_code, answer.json().get("field")) == (400, field)
    assert answer.json()["error"].startswith(error)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"] == answer.json()["error"]


@pytest.mark.parametrize(
    ("algorithm", "config"),
    [
        ("fixed-window", {"windowSeconds": 86_400}),
        ("sliding-window-log", {"windowSeconds": "24h"}),
        ("sliding-window-counter", {"windowSeconds": 86_400}),
        ("token-bucket", {"maxTokens": 864, "refillRate": 0.01}),
        ("leaky-bucket", {"capacity": 86_400}),
    ],
)
def test_a_rule_may_last_a_day_as_a_session_does(visitor, algorithm, config):
    assert post(visitor, algorithm, {"config": config}).json()["allowed"] is True


def test_what_is_refused_consumes_nothing(visitor):
    post(visitor, "fixed-window/burst", {"config": LONG["fixed-window"], "count": 51})
    assert post(visitor, "fixed-window", {"config": LONG["fixed-window"]}).json()["remaining"] == 4


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_state_agrees_with_a_peek_and_changes_nothing(anywhere, algorithm):
    body = {"config": LONG[algorithm], "cost": 1}
    post(anywhere, f"{algorithm}/burst", body | {"count": 2})
    first, second = (post(anywhere, f"{algorithm}/state", body).json() for _ in range(2))
    assert first["peek"]["remaining"] == second["peek"]["remaining"] == 3
    words = {"token-bucket": "tokens", "leaky-bucket": "level"}
    used = second["state"][words.get(algorithm, "count")]
    assert round(5 - used if algorithm == "token-bucket" else used, 1) == 2


def test_the_state_shows_the_key_as_it_is_on_redis():
    server = servers.shared(servers.newest())
    with served(server.url) as url, httpx.Client(base_url=url) as visitor:
        body = {"config": LONG["fixed-window"]}
        post(visitor, "fixed-window", body)
        seen = post(visitor, "fixed-window/state", body).json()
        name = visitor.cookies["ratekeeper_visitor"].split(".")[0]
        with Limiter("fixed-window 5/80000s", server.url, prefix="ratekeeper:playground", on_error="raise") as limiter:
            (held,) = limiter.inspect(name).values()
    assert (seen["store"], seen["key"]) == ("Redis", held.name)
    assert seen["bytes"] == held.bytes
    assert (seen["state"]["count"], seen["raw"]) == (1, ascii(held.raw.decode("latin-1"))[1:-1])


def test_an_untouched_key_takes_no_room(anywhere):
    seen = post(anywhere, "token-bucket/state", {"config": LONG["token-bucket"]}).json()
    assert (seen["raw"], seen["ttl"], seen["bytes"]) == (None, None, 0)


def test_while_redis_is_away_the_state_says_so_and_requests_are_still_decided():
    server = servers.RedisServer(servers.programs()[servers.newest()])
    with served(server.url) as url, httpx.Client(base_url=url) as visitor:
        post(visitor, "fixed-window")
        server.stop()
        assert post(visitor, "fixed-window", {"config": LONG["fixed-window"] | {"maxRequests": 10}}).json()["allowed"]
        seen = post(visitor, "fixed-window/state", {"config": LONG["fixed-window"] | {"maxRequests": 10}}).json()
    assert (seen["degraded"], seen["state"], seen["peek"]["remaining"]) == (True, None, 9)


def test_on_a_file_the_state_is_shown_as_the_file_has_it(tmp_path):
    with served(f"sqlite:///{tmp_path}/limits.db") as url, httpx.Client(base_url=url) as visitor:
        post(visitor, "token-bucket", {"config": LONG["token-bucket"]})
        seen = post(visitor, "token-bucket/state", {"config": LONG["token-bucket"]}).json()
    assert (seen["store"], seen["degraded"]) == ("SQLite", False)
    assert len(seen["raw"].split()) == 3


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_script_is_the_lua_that_runs(visitor, algorithm):
    answer = visitor.get(f"/api/script/{algorithm}")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    from ratekeeper.stores.redis.script import TEXT

    assert answer.text in TEXT
    assert "function" in answer.text


def test_there_is_no_script_of_an_unknown_algorithm(visitor):
    assert visitor.get("/api/script/leapfrog").status_code == 400


def test_decisions_of_the_demo_count_in_the_live_chart(visitor):
    before = visitor.get("/v1/live").json()
    post(visitor, "token-bucket/burst", {"config": LONG["token-bucket"]})
    after = visitor.get("/v1/live").json()
    assert (after["admitted"] - before["admitted"], after["denied"] - before["denied"]) == (5, 5)


def test_the_page_and_all_that_it_loads_are_under_150_kb(visitor):
    page = visitor.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    names = set(re.findall(r"/static/[a-z]+\.[a-z]+", page.text))
    files = {name: visitor.get(name) for name in names}
    assert {answer.status_code for answer in files.values()} == {200}
    assert len(page.content) + sum(len(answer.content) for answer in files.values()) < 150_000


def test_the_page_names_every_module_that_it_loads(visitor):
    text = visitor.get("/").text
    assert [path.name for path in STATIC.glob("*.js") if f"/static/{path.name}" not in text] == []


def test_the_page_allows_only_what_comes_from_here(visitor):
    policy = visitor.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


@pytest.mark.parametrize("path", ["/", "/static/main.js", "/static/style.css", "/static/icon.svg"])
def test_a_browser_that_has_a_file_is_told_so(visitor, path):
    etag = visitor.get(path).headers["etag"]
    again = visitor.get(path, headers={"if-none-match": etag})
    assert (again.status_code, again.content) == (304, b"")


def test_only_files_of_the_page_are_served(visitor):
    assert visitor.get("/static/package.json").status_code == 404
    assert visitor.get("/static/../routes.py").status_code == 404


@pytest.mark.parametrize("path", ["rate-limit/fixed-window", "rate-limit/reset", "rate-limit/fixed-window/state"])
def test_a_page_of_another_site_cannot_ask_anything(visitor, path):
    foreign = {"origin": "https://evil.example", "sec-fetch-site": "cross-site"}
    assert visitor.post(f"/api/{path}", json={}, headers=foreign).status_code == 403
    assert visitor.post(f"/api/{path}", content="{}", headers={"content-type": "text/plain"}).status_code == 415
    assert visitor.post(f"/api/{path}", json={}, headers={"host": "evil.example"}).status_code == 421
