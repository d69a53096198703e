"""What an outgoing request waits for: the budget of its key."""

import asyncio
import math
from collections import Counter

import pytest
import requests

from ratekeeper import FixedWindow, LeakyBucket, Limiter, RateLimited, SlidingWindowLog, TokenBucket
from tests import servers
from tests.integrations.outgoing.faces import FACES, loop
from tests.integrations.outgoing.origin import Origin, Said
from tests.waiters import PATIENCE, Call, until

ONE_A_MINUTE = FixedWindow(1, 60)


def test_what_the_budget_admits_is_sent_at_once(client, limiter, origin, store):
    to = client(limiter("fixed-window 3/minute", store))
    assert [to.request("GET", origin.url).body for _ in range(3)] == [b"ok"] * 3
    assert origin.times == [0, 0, 0]


def test_what_exceeds_the_budget_waits_until_there_is_more(client, limiter, origin, store, clock, sleepers):
    to = client(limiter(ONE_A_MINUTE, store))
    to.request("GET", origin.url)
    second = Call(to.request, "GET", origin.url)
    sleepers.until(1)
    clock.advance(60)
    assert second.outcome().status == 200
    assert origin.times == [0, 60]


def test_a_bucket_that_shapes_spreads_what_is_sent(client, limiter, origin, store, clock, sleepers):
    to = client(limiter(LeakyBucket(10, 1, mode="shaping"), store))
    calls = [Call(to.request, "GET", origin.url) for _ in range(4)]
    for sent in (1, 2, 3):
        until(lambda sent=sent: len(origin.arrivals) == sent, "the next to arrive")
        sleepers.until(4 - sent)
        clock.advance(1)
    assert [call.outcome().status for call in calls] == [200] * 4
    assert origin.times == [0, 1, 2, 3]


def test_without_patience_no_delay_is_waited_through_and_no_place_is_taken(client, limiter, face, origin, store):
    budget = limiter(LeakyBucket(10, 1, mode="shaping"), store)
    to = client(budget, key=lambda _: "k", timeout=0)
    to.request("GET", origin.url)
    with pytest.raises(RateLimited) as refused:
        to.request("GET", origin.url)
    assert refused.value.decision.retry_after == 1
    assert face.peek(budget, "k").remaining == 9
    assert len(origin.arrivals) == 1


def test_a_wait_that_would_be_too_long_is_refused_before_anything_is_sent(client, limiter, origin, store):
    to = client(limiter(ONE_A_MINUTE, store), timeout=59.9)
    to.request("GET", origin.url)
    with pytest.raises(RateLimited) as refused:
        to.request("GET", origin.url)
    assert refused.value.decision.retry_after == 60
    assert len(origin.arrivals) == 1


def test_what_can_never_fit_is_refused_at_once(client, limiter, origin, store):
    to = client(limiter(ONE_A_MINUTE, store), cost=2)
    with pytest.raises(RateLimited) as refused:
        to.request("GET", origin.url)
    assert refused.value.decision.retry_after == math.inf
    assert origin.arrivals == []


def test_headroom_makes_the_rules_stricter(client, origin):
    to = client(FixedWindow(10, 86_400), headroom=0.2, timeout=0)
    for _ in range(8):
        to.request("GET", origin.url)
    with pytest.raises(RateLimited):
        to.request("GET", origin.url)


def test_each_host_has_a_budget_of_its_own(client, limiter, origin):
    to = client(limiter(ONE_A_MINUTE), timeout=0)
    other = Origin()
    try:
        to.request("GET", origin.url)
        to.request("GET", other.url)
        with pytest.raises(RateLimited):
            to.request("GET", other.url)
    finally:
        other.stop()
    assert (len(origin.arrivals), len(other.arrivals)) == (1, 1)


def test_any_key_can_be_counted_by(client, limiter, origin):
    to = client(limiter(ONE_A_MINUTE), key=lambda request: str(request.url)[-1], timeout=0)
    to.request("GET", origin.url + "/a")
    to.request("GET", origin.url + "/b")
    with pytest.raises(RateLimited):
        to.request("GET", origin.url + "/a")


def test_each_rule_may_have_a_key_and_a_cost_of_its_own(client, limiter, origin, face):
    budget = limiter({"requests": FixedWindow(9, 60), "tokens": FixedWindow(1000, 60)})
    keys = {"requests": "all", "tokens": "model"}
    to = client(budget, key=lambda _: keys, cost=lambda request: {"requests": 1, "tokens": 400})
    to.request("GET", origin.url)
    assert {name: layer.remaining for name, layer in face.peek(budget, keys).layers.items()} == {
        "requests": 8,
        "tokens": 600,
    }


def test_a_request_without_a_key_is_not_limited(client, limiter, origin, caplog):
    budget = limiter(ONE_A_MINUTE)
    to = client(budget, key=lambda _: None, timeout=0)
    assert [to.request("GET", origin.url).status for _ in range(3)] == [200] * 3
    assert budget.notices.counts["skipped"] == 3
    assert [record.getMessage()[:8] for record in caplog.records if record.name == "ratekeeper"] == ["skipped:"]


def test_a_key_function_that_fails_fails_the_request_before_it_is_sent(client, limiter, origin):
    to = client(limiter(ONE_A_MINUTE), key=lambda request: request.no_such_thing)
    with pytest.raises(AttributeError, match="no_such_thing"):
        to.request("GET", origin.url)
    assert origin.arrivals == []


def test_a_limiter_that_is_switched_off_holds_nothing_back(client, limiter, origin):
    to = client(limiter(ONE_A_MINUTE, enabled=False), timeout=0, settle=lambda _: 5)
    assert [to.request("GET", origin.url).status for _ in range(3)] == [200] * 3


def test_rules_that_are_switched_off_hold_nothing_back(client, origin):
    to = client(ONE_A_MINUTE, "redis://127.0.0.1:1", enabled=False, timeout=0)
    assert [to.request("GET", origin.url).status for _ in range(3)] == [200] * 3


def test_the_hook_is_told_what_was_sent_and_what_was_refused(client, limiter, origin):
    told = []
    to = client(limiter(ONE_A_MINUTE, on_decision=lambda key, it: told.append((key, it.allowed))), timeout=0)
    to.request("GET", origin.url)
    with pytest.raises(RateLimited):
        to.request("GET", origin.url)
    host = origin.url.removeprefix("http://")
    assert told == [(f"host:{host}", True), (f"host:{host}", False)]


def test_a_body_that_is_streamed_arrives_as_it_is(client, limiter, origin):
    to = client(limiter(ONE_A_MINUTE))
    to.request("POST", origin.url, body=iter([b"one ", b"two ", b"three"]))
    assert [arrival.body for arrival in origin.arrivals] == [b"one two three"]


def test_what_never_left_is_given_back(client, limiter, face):
    budget = limiter(FixedWindow(5, 60))
    to = client(budget, key=lambda _: "k")
    with pytest.raises(face.connect_error):
        to.request("GET", f"http://127.0.0.1:{servers.free_port()}")
    assert face.peek(budget, "k").remaining == 5


def test_what_never_reached_its_proxy_is_given_back():
    budget = Limiter(FixedWindow(5, 60))
    to = FACES["requests"](budget, key=lambda _: "k")
    with pytest.raises(requests.exceptions.ProxyError):
        to.client.get("http://192.0.2.1/", proxies={"http": f"http://127.0.0.1:{servers.free_port()}"})
    assert budget.peek("k").remaining == 5
    to.close()


def test_what_may_have_arrived_is_not_given_back(client, limiter, face, origin):
    budget = limiter(FixedWindow(5, 60))
    to = client(budget, key=lambda _: "k")
    origin.says.append(Said(status=None))
    with pytest.raises(face.cut_off):
        to.request("GET", origin.url)
    assert face.peek(budget, "k").remaining == 4


def test_a_task_that_is_cancelled_while_it_waits_takes_nothing(limiter, origin, sleepers, clock):
    face = FACES["httpx async"]
    budget = face.limiter_class(SlidingWindowLog(1, 60), clock=clock)
    to = face(budget, key=lambda _: "k")
    to.request("GET", origin.url)
    waiting = asyncio.run_coroutine_threadsafe(to.client.get(origin.url), loop)
    sleepers.until(1)
    waiting.cancel()
    sleepers.until(0)
    clock.advance(60)
    assert face.peek(budget, "k").remaining == 1
    assert len(origin.arrivals) == 1
    to.close()


def test_requests_are_sent_while_the_store_is_away(client, limiter, origin):
    away = f"redis://127.0.0.1:{servers.free_port()}"
    to = client(limiter(TokenBucket(1, 1), away, on_error="local"), timeout=0)
    assert to.request("GET", origin.url).status == 200
    with pytest.raises(RateLimited):
        to.request("GET", origin.url)


def test_rules_make_a_limiter_that_is_closed_with_the_client(face, origin):
    to = face("fixed-window 5/minute", servers.shared(servers.newest()).url)
    assert to.request("GET", origin.url).status == 200
    to.close()


def test_many_threads_share_one_budget(client, limiter, origin, store):
    to = client(limiter("fixed-window 10/hour", store), timeout=0)
    calls = [Call(to.request, "GET", origin.url) for _ in range(30)]
    for call in calls:
        call.join(PATIENCE)
    assert Counter(type(call.error) for call in calls) == {type(None): 10, RateLimited: 20}
    assert len(origin.arrivals) == 10
