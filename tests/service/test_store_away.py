"""Redis goes away and comes back while the service is up."""

import time

import pytest

from tests import servers
from tests.servers import PATIENCE, RedisServer
from tests.service.serving import Served

BODY = {"key": "k", "rule": "fixed-window 5/day"}


@pytest.fixture(scope="module")
def redis():
    redis = RedisServer(servers.programs()[servers.newest()])
    yield redis
    redis.stop()


@pytest.fixture(scope="module")
def on_redis(redis):
    served = Served(redis.url)
    yield served
    served.stop()


def wait_for(status, served):
    """Check until the store is in this state; while it is away, it is tried once a second."""
    give_up = time.monotonic() + PATIENCE
    while served.ask("GET", "/readyz").json() != {"status": status}:
        assert time.monotonic() < give_up
        time.sleep(0.05)


def test_the_service_goes_on_without_redis_says_so_and_finds_it_again(redis, on_redis):
    wait_for("healthy", on_redis)
    assert on_redis.ask("POST", "/v1/hit", json=BODY).json()["degraded"] is False
    redis.stop()
    wait_for("degraded", on_redis)
    answer = on_redis.ask("POST", "/v1/hit", json=BODY)
    assert (answer.status_code, answer.json()["degraded"]) == (200, True)
    assert on_redis.ask("GET", "/v1/live").json()["degraded"] >= 1
    assert on_redis.ask("GET", "/v1/live").json()["store"] == "degraded"
    inspection = on_redis.ask("POST", "/v1/inspect", json=BODY)
    assert (inspection.status_code, inspection.headers["content-type"]) == (503, "application/problem+json")
    redis.start()
    wait_for("healthy", on_redis)
    assert on_redis.ask("POST", "/v1/hit", json=BODY).json()["degraded"] is False


def test_an_inspection_names_the_key_in_redis(redis, on_redis):
    wait_for("healthy", on_redis)
    on_redis.ask("POST", "/v1/hit", json={**BODY, "key": "seen"})
    (seen,) = on_redis.ask("POST", "/v1/inspect", json={**BODY, "key": "seen"}).json()["rules"].values()
    assert redis.ask(b"KEYS *seen*\r\n").splitlines()[2] == seen["name"].encode()
