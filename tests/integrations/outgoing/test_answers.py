"""What the headers of a response do: delay later requests, and have a request sent again."""

import math
import threading

import pytest

from ratekeeper import FixedWindow, RateLimited, TokenBucket
from tests.integrations.outgoing.origin import Said
from tests.waiters import Call, until

PLENTY = TokenBucket(100, 100)


def later(seconds, status=429):
    return Said(status, {"Retry-After": str(seconds)})


@pytest.mark.parametrize(
    "said",
    [
        later(7),
        later(7, status=503),
        Said(429, {"Date": "Tue, 14 Nov 2023 22:14:00 GMT", "Retry-After": "Tue, 14 Nov 2023 22:14:07 GMT"}),
        Said(200, {"RateLimit": '"user";r=0;t=7'}),
        Said(200, {"RateLimit-Remaining": "0", "RateLimit-Reset": "7"}),
        Said(200, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "7"}),
        Said(200, {"X-Rate-Limit-Remaining": "0", "X-Rate-Limit-Reset": "7"}),
        Said(429, {"Retry-After": "8", "Retry-After-Ms": "7000"}),
        Said(
            200,
            {
                "x-ratelimit-limit-requests": "60",
                "x-ratelimit-remaining-requests": "0",
                "x-ratelimit-reset-requests": "7m0s",
            },
        ),
        Said(
            200,
            {
                "Date": "Tue, 14 Nov 2023 22:14:00 GMT",
                "anthropic-ratelimit-requests-limit": "60",
                "anthropic-ratelimit-requests-remaining": "0",
                "anthropic-ratelimit-requests-reset": "2023-11-14T22:21:00Z",
            },
        ),
    ],
    ids=lambda said: f"{said.status} {said.headers}",
)
def test_an_answer_that_says_to_wait_holds_back_what_follows(said, client, limiter, origin, clock, sleepers):
    to = client(limiter(PLENTY))
    origin.says.append(said)
    assert to.request("GET", origin.url).status == said.status
    second = Call(to.request, "GET", origin.url)
    sleepers.until(1)
    clock.advance(7)
    assert second.outcome().status == 200
    assert origin.times == [0, 7]


@pytest.mark.parametrize(
    "said",
    [
        Said(202, {"Retry-After": "7"}),  # when to ask for the result
        Said(200, {"RateLimit": '"user";r=1;t=7'}),
        Said(429, {"Retry-After": "soon"}),
        Said(429),
        later(0),
    ],
    ids=lambda said: f"{said.status} {said.headers}",
)
def test_an_answer_that_does_not_holds_back_nothing(said, client, limiter, origin):
    to = client(limiter(PLENTY), timeout=0)
    origin.says.append(said)
    to.request("GET", origin.url)
    assert to.request("GET", origin.url).status == 200


def test_other_keys_are_not_held_back(client, limiter, origin):
    to = client(limiter(PLENTY), key=lambda request: request.method, timeout=0)
    origin.says.append(later(7))
    to.request("GET", origin.url)
    assert to.request("POST", origin.url).status == 200
    with pytest.raises(RateLimited):
        to.request("GET", origin.url)


def test_a_hold_that_is_longer_than_the_timeout_is_refused_at_once(client, limiter, origin):
    to = client(limiter(PLENTY), timeout=6.9)
    origin.says.append(later(7))
    to.request("GET", origin.url)
    with pytest.raises(RateLimited, match=r"rate limit 'server' exceeded; try again in 7.000 s"):
        to.request("GET", origin.url)
    assert len(origin.arrivals) == 1


def test_what_can_never_fit_is_refused_at_once_during_a_hold(client, limiter, origin):
    to = client(limiter(PLENTY), cost=lambda request: 1000 if request.method == "POST" else 1)
    origin.says.append(later(7))
    to.request("GET", origin.url)
    with pytest.raises(RateLimited) as refused:
        to.request("POST", origin.url)
    assert refused.value.decision.retry_after == math.inf


def test_the_budget_still_counts_when_a_hold_ends(client, limiter, origin, store, clock, sleepers):
    to = client(limiter(FixedWindow(2, 60), store))
    origin.says.append(later(60))
    to.request("GET", origin.url)
    calls = [Call(to.request, "GET", origin.url) for _ in range(5)]
    for sent in (3, 5):
        sleepers.until(8 - sent)
        clock.advance(60)
        until(lambda sent=sent: len(origin.arrivals) == sent, "what the budget admits")
    sleepers.until(1)
    clock.advance(60)
    assert [call.outcome().status for call in calls] == [200] * 5
    assert origin.times == [0, 60, 60, 120, 120, 180]


def test_who_waits_for_the_budget_heeds_an_answer_that_comes_meanwhile(
    client, limiter, face, origin, store, clock, sleepers
):
    budget = limiter(FixedWindow(1, 60), store)
    to = client(budget, key=lambda _: "k")
    may_answer = threading.Event()
    origin.says.append(later(90)._replace(before=may_answer.wait))
    first = Call(to.request, "GET", origin.url)
    until(lambda: origin.arrivals, "the first to arrive")
    second = Call(to.request, "GET", origin.url)
    sleepers.until(1)  # until the next minute
    may_answer.set()
    first.outcome()
    clock.advance(60)
    until(lambda: face.peek(budget, "k").remaining == 1, "what it took to be given back")
    sleepers.until(1)
    clock.advance(30)
    assert second.outcome().status == 200
    assert origin.times == [0, 90]


def test_a_refused_request_is_sent_again_when_it_may_be(client, limiter, origin, clock, sleepers):
    to = client(limiter(PLENTY), retries=2)
    origin.says += [later(3), later(4, status=503), Said(body=b"at last")]
    call = Call(to.request, "PUT", origin.url, body=b"what is put")
    for seconds in (3, 4):
        sleepers.until(1)
        clock.advance(seconds)
        until(lambda: not sleepers.asleep, "it woke")
    assert call.outcome().body == b"at last"
    assert origin.times == [0, 3, 7]
    assert {arrival.body for arrival in origin.arrivals} == {b"what is put"}


def test_retries_are_bounded_and_then_the_answer_is_what_it_is(client, limiter, origin):
    to = client(limiter(PLENTY), retries=2)
    origin.says += [later(0)._replace(body=b"%d" % number) for number in range(5)]
    assert to.request("GET", origin.url) == (429, b"2")
    assert len(origin.arrivals) == 3


def test_every_retry_takes_from_the_budget(client, limiter, face, origin):
    budget = limiter(FixedWindow(10, 60))
    to = client(budget, key=lambda _: "k", retries=2)
    origin.says += [later(0), later(0)]
    to.request("GET", origin.url)
    assert face.peek(budget, "k").remaining == 7


def test_without_being_asked_nothing_is_sent_again(client, limiter, origin):
    to = client(limiter(PLENTY))
    origin.says.append(later(0))
    assert to.request("GET", origin.url).status == 429


@pytest.mark.parametrize(
    ("method", "body", "said"),
    [
        ("POST", lambda: b"an order", later(0)),
        ("PUT", lambda: iter([b"a body that is read once"]), later(0)),
        ("GET", lambda: None, Said(429)),  # which does not say when
        ("GET", lambda: None, Said(500, {"Retry-After": "0"})),
        ("GET", lambda: None, later(8)),  # too late
    ],
    ids=["not idempotent", "streamed", "no time", "another status", "too late"],
)
def test_what_cannot_be_repeated_is_not(method, body, said, client, limiter, origin):
    to = client(limiter(PLENTY), retries=3, timeout=7)
    origin.says.append(said)
    assert to.request(method, origin.url, body=body()).status == said.status
    assert len(origin.arrivals) == 1


def test_other_methods_are_repeated_if_asked_for(client, limiter, origin):
    to = client(limiter(PLENTY), retries=1, retry_methods=["post"])
    origin.says.append(later(0))
    assert to.request("POST", origin.url, body=b"an order").status == 200
    assert [arrival.body for arrival in origin.arrivals] == [b"an order"] * 2
