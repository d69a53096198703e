"""The permissions in docs/redis.md: with them all works, and without one of them the log says what is missing."""

import re
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import redis
from flask import Flask

from ratekeeper import (
    FixedWindow,
    LeakyBucket,
    Limiter,
    SlidingWindowCounter,
    SlidingWindowLog,
    StoreUnavailable,
    TokenBucket,
)
from ratekeeper.http import Gate, Route
from ratekeeper.integrations.flask import RateLimiter
from ratekeeper.stores import AsyncRedisStore, RedisStore
from tests import clusters, inside, servers
from tests.faces import FACES, loop
from tests.http.requests import a_request
from tests.service.serving import Served

STRICT = {"on_error": "raise", "deadline": 30}
DOCUMENT = Path(__file__).parents[3] / "docs" / "redis.md"
LINE = re.compile(r"^ACL SETUSER limiter on >password (.*)$", re.MULTILINE)
PERMISSIONS = LINE.search(DOCUMENT.read_text("utf-8"))[1].split()
KEYS = "~ratekeeper:*"
FOR_INSPECTIONS = ("+lrange", "+pttl")  # and forecasts
FOR_FLEETS = "+getrange"  # and what they share
MISSING = "degraded: the Redis user lacks a permission; give it those in docs/redis.md"
ALL = {
    "f": FixedWindow(100, 86_400),
    "l": SlidingWindowLog(100, 86_400),
    "c": SlidingWindowCounter(100, 86_400),
    "t": TokenBucket(100, "1/day"),
    "b": LeakyBucket(100, "1/day"),
}


@pytest.fixture(params=FACES)
def face(request):
    return request.param


@pytest.fixture(params=servers.programs())
def each(request):
    """A client of each server; the server is empty and has no users."""
    server = servers.RedisServer(servers.programs()[request.param])
    with redis.Redis(port=server.port) as client:
        yield client
    server.stop()


def user(client, permissions):
    """Make a user with these permissions and no others; return a URL with that user."""
    client.flushall()
    client.script_flush()
    client.execute_command("ACL", "SETUSER", "limiter", "reset", "on", ">password", *permissions)
    return f"redis://limiter:password@127.0.0.1:{client.connection_pool.connection_kwargs['port']}"


@contextmanager
def limiter_on(face, url, rules=ALL, **options):
    limiter = FACES[face](rules, url, **{**STRICT, **options})
    try:
        yield limiter
    finally:
        limiter.close()


def do_everything(limiter):
    """Make the store use all of its commands; return how many bytes the keys take."""
    for _ in range(70):  # more entries than a block of a log has
        limiter.hit("k")
    limiter.peek("k")
    limiter.charge("k", 10)
    limiter.refund("k", 60)  # a whole block and more
    seen = limiter.inspect("k")
    limiter.reset("k")
    return [inspection.bytes for inspection in seen.values()]


def share(store):
    """Read and replace what processes share."""
    before = store.read_shared("of the fleet").content
    assert store.replace_shared("of the fleet", before[:1], b"1")
    return store.read_shared("of the fleet", 5).content


def do_everything_and_share(limiter):
    do_everything(limiter)
    share(limiter.store)


def without(*left_out):
    return [permission for permission in PERMISSIONS if permission not in left_out]


def the_line(caplog, beginning):
    """Return the only line in the log that begins so."""
    (line,) = (record.getMessage() for record in caplog.records if record.getMessage().startswith(beginning))
    return line


def names(client):
    """Return the beginnings of the names of all keys, up to the algorithm."""
    return {re.sub(rb":[a-z]{2}:.*", b"", name).decode() for name in client.scan_iter()}


def test_a_user_with_the_documented_permissions_can_do_everything(face, each, caplog):
    with limiter_on(face, user(each, PERMISSIONS)) as limiter:
        assert min(do_everything(limiter)) > 0
        assert limiter.wait("k", timeout=1).allowed
        assert limiter.take("k").decision.allowed
        assert limiter.notices.counts["degraded"] == 0
    assert names(each) == {"ratekeeper"}
    assert not caplog.records


def test_on_a_cluster_too(face):
    cluster = clusters.shared_cluster(servers.newest())
    for server in cluster.servers:
        with redis.Redis(port=server.port) as client:
            permissions = [*PERMISSIONS, "+cluster|slots", "+asking"]
            client.execute_command("ACL", "SETUSER", "limiter", "reset", "on", ">password", *permissions)
    with limiter_on(face, cluster.url.replace("//", "//limiter:password@")) as limiter:
        assert min(do_everything(limiter)) > 0
        assert limiter.wait("of the cluster", timeout=1).allowed


def test_the_routes_of_a_gate_are_within_the_documented_permissions(each, caplog):
    gate = Gate("fixed-window 5/day", routes=[Route("/login", "fixed-window 3/day")], store=user(each, PERMISSIONS))
    admitted = [gate.admit(a_request(path=path)).decision for path in ("/", "/login", "/login")]
    gate.close()
    assert [(decision.remaining, decision.degraded) for decision in admitted] == [(4, False), (2, False), (1, False)]
    assert (gate.notices.counts["degraded"], names(each)) == (0, {"ratekeeper", "ratekeeper:/login"})
    assert not caplog.records


def test_the_scopes_of_flask_are_within_the_documented_permissions(each, caplog):
    store = RedisStore(user(each, PERMISSIONS))
    limiter = RateLimiter(default="fixed-window 1/day", application="fixed-window 9/day", store=store, deadline=30)
    app = Flask(__name__)
    limiter.init_app(app)
    app.add_url_rule("/a", "a", lambda: "a")
    app.add_url_rule("/b", "b", limiter.limit("fixed-window 2/day", name="of b")(lambda: "b"))
    browser = app.test_client()
    assert [browser.get(path).status_code for path in ("/a", "/a", "/b", "/b", "/b")] == [200, 429, 200, 200, 429]
    store.close()
    assert names(each) == {"ratekeeper", "ratekeeper:a", "ratekeeper:of b"}
    assert not caplog.records


def test_the_service_and_its_playground_are_within_the_documented_permissions(each):
    service = Served(user(each, PERMISSIONS))
    assert service.ask("GET", "/readyz").json() == {"status": "healthy"}
    hit = {"key": "ada", "algorithm": "fixed-window", "limit": 3, "window": 86_400}
    decision = service.ask("POST", "/v1/hit", json=hit).json()
    assert (decision["remaining"], decision["degraded"]) == (2, False)
    config = {"config": {"windowSeconds": 86_400}}
    assert service.ask("POST", "/api/rate-limit/fixed-window", json=config).json()["remaining"] == 9
    seen = service.ask("POST", "/api/rate-limit/fixed-window/state", json=config).json()
    assert (seen["store"], seen["degraded"]) == ("Redis", False)
    service.stop()
    assert names(each) == {"ratekeeper", "ratekeeper:playground"}


def test_what_a_fleet_shares_is_within_the_documented_permissions(each):
    store = RedisStore(user(each, PERMISSIONS))
    assert [share(store), share(store)] == [b"1", b"1"]
    store.close()


@pytest.mark.parametrize("left_out", without("+memory|usage"))
def test_each_documented_permission_is_needed(server, client, left_out):
    with (
        Limiter(ALL, user(client, without(left_out)), **STRICT) as limiter,
        pytest.raises(StoreUnavailable, match=r"permission|can't run this command"),
    ):
        do_everything_and_share(limiter)


@pytest.mark.parametrize("left_out", without("+memory|usage", FOR_FLEETS, *FOR_INSPECTIONS))
def test_a_permission_that_is_missing_is_logged_once_and_what_it_degrades_is_counted(face, each, caplog, left_out):
    rules = {"f": FixedWindow(100, 86_400), "l": SlidingWindowLog(100, 86_400)}
    with limiter_on(face, user(each, without(left_out)), rules, on_error="local") as limiter:
        decisions = [limiter.hit("k") for _ in range(70)]
        decisions += [limiter.charge("k", 10), limiter.refund("k", 60), limiter.peek("k")]
        limiter.reset("k")
        degraded = sum(decision.degraded for decision in decisions)
        assert degraded <= limiter.notices.counts["degraded"] <= degraded + 1  # a reset has no decision to look at
        assert limiter.notices.counts["degraded"] > 0
    line = the_line(caplog, MISSING)
    assert re.search(r"NoPermissionError|can't run this command|no permissions to", line)


@pytest.mark.parametrize("left_out", FOR_INSPECTIONS)
def test_a_forecast_that_may_not_look_says_so_once(server, client, caplog, left_out):
    url = user(client, without(left_out))
    with Limiter(SlidingWindowLog(2, 3_600), url, deadline=30) as limiter:
        with pytest.raises(StoreUnavailable, match="NoPermissionError"):
            limiter.inspect("k")
        for _ in range(2):  # as a wait with other callers ahead does
            with suppress(StoreUnavailable):
                inside.below(limiter).snapshot(inside.demands(limiter, "k"))
    assert "NoPermissionError" in the_line(caplog, MISSING)


def test_a_user_who_may_not_ask_for_memory_is_told_of_no_bytes(server, client, caplog):
    with Limiter("fixed-window 100/day", user(client, without("+memory|usage")), **STRICT) as limiter:
        assert [do_everything(limiter) for _ in range(2)] == [[0], [0]]
    assert "grant +memory|usage" in the_line(caplog, "RedisStore(")


def test_a_user_who_decides_only_needs_fewer_permissions(server, client):
    with Limiter("fixed-window 100/day", user(client, PERMISSIONS[:-3]), **STRICT) as limiter:
        assert limiter.hit("k").remaining == 99


def test_a_log_that_may_not_be_given_a_time_to_live_is_charged_once(server, client):
    with Limiter("sliding-window-log 100/day", user(client, without("+pexpire")), **STRICT) as limiter:
        with pytest.raises(StoreUnavailable, match=r"permission|can't run this command"):
            limiter.hit("k")
        assert limiter.store.is_away  # for everybody: that is logged
    with Limiter("sliding-window-log 100/day", server.url, **STRICT) as limiter:
        assert limiter.peek("k").remaining == 99


def test_a_user_of_another_prefix_decides_alone_and_says_so(face, server, client, caplog):
    with limiter_on(face, user(client, PERMISSIONS), "fixed-window 9/day", on_error="local", prefix="other") as limiter:
        assert [limiter.hit("k").degraded for _ in range(3)] == [True] * 3
        assert limiter.notices.counts["degraded"] == 3
        assert not limiter.store.is_away  # it decides on other keys
    assert "NoPermissionError" in the_line(caplog, MISSING)


@pytest.mark.parametrize("store", [RedisStore, AsyncRedisStore])
def test_a_rule_that_the_server_permits_nobody_leaves_the_others_alone(server, client, store):
    kind = {RedisStore: "Limiter", AsyncRedisStore: "AsyncLimiter"}[store]
    made = store(user(client, PERMISSIONS))
    with (
        limiter_on(kind, made, "fixed-window 5/year") as good,
        limiter_on(kind, made, "fixed-window 5/year", prefix="bad") as bad,
    ):
        good.hit("k")
        with pytest.raises(StoreUnavailable, match="NoPermissionError"):
            bad.hit("k")
        assert good.hit("k").remaining == 3
    if store is AsyncRedisStore:
        loop.run_until_complete(made.close())
    else:
        made.close()
