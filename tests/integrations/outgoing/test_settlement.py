"""The real cost of a request, once its response has been read."""

import asyncio
import concurrent.futures
import gzip
import json
import logging
import threading
from contextlib import suppress

import anyio
import pytest
from requests.adapters import HTTPAdapter

from ratekeeper import FixedWindow, Limiter, SlidingWindowLog
from ratekeeper.flows import run
from ratekeeper.http import settlement
from tests import servers
from tests.integrations.outgoing.faces import FACES, awaited
from tests.integrations.outgoing.origin import Said
from tests.waiters import PATIENCE, Call, until

BUDGET = {"requests": FixedWindow(10, 60), "tokens": FixedWindow(1000, 60)}
ESTIMATE = {"requests": 1, "tokens": 400}


def tokens_used(answer):
    return {"tokens": answer.json()["tokens"]}


def used(tokens):
    return Said(body=json.dumps({"tokens": tokens}).encode())


def remaining(face, budget):
    return {name: layer.remaining for name, layer in face.peek(budget, "k").layers.items()}


@pytest.mark.parametrize(("tokens", "left"), [(100, 900), (400, 600), (900, 100), (1500, 0), (0, 1000)])
def test_the_real_cost_replaces_the_estimate(tokens, left, client, limiter, face, origin, store):
    budget = limiter(BUDGET, store)
    to = client(budget, key=lambda _: "k", cost=ESTIMATE, settle=tokens_used)
    origin.says.append(used(tokens))
    assert json.loads(to.request("GET", origin.url).body) == {"tokens": tokens}
    assert remaining(face, budget) == {"requests": 9, "tokens": left}


def test_a_real_cost_without_names_is_for_every_rule(client, limiter, face, origin):
    budget = limiter(BUDGET)
    to = client(budget, key=lambda _: "k", cost=ESTIMATE, settle=lambda _: 0)
    to.request("GET", origin.url)
    assert remaining(face, budget) == {"requests": 10, "tokens": 1000}


def test_a_rule_that_the_estimate_left_out_can_be_charged(client, limiter, face, origin):
    budget = limiter(BUDGET)
    to = client(budget, key=lambda _: "k", cost={"tokens": 0}, settle=tokens_used)
    origin.says.append(used(70))
    to.request("GET", origin.url)
    assert remaining(face, budget) == {"requests": 9, "tokens": 930}


def test_none_leaves_the_estimate(client, limiter, face, origin):
    budget = limiter(BUDGET)
    to = client(budget, key=lambda _: "k", cost=ESTIMATE, settle=lambda _: None)
    to.request("GET", origin.url)
    assert remaining(face, budget) == {"requests": 9, "tokens": 600}


@pytest.mark.parametrize("wrong", [tokens_used, lambda _: {"no such rule": 1}, lambda _: -1, lambda _: "many"])
def test_a_settlement_that_fails_leaves_the_estimate_and_says_so_once(wrong, client, limiter, face, origin, caplog):
    budget = limiter(BUDGET)
    to = client(budget, key=lambda _: "k", cost=ESTIMATE, settle=wrong)
    with caplog.at_level(logging.WARNING, "ratekeeper"):
        assert [to.request("GET", origin.url).body for _ in range(2)] == [b"ok", b"ok"]
    assert remaining(face, budget) == {"requests": 8, "tokens": 200}
    said = [record.message for record in caplog.records if record.name == "ratekeeper"]
    assert said == ["the settlement failed; the request keeps its estimated cost; this is logged once"]


def test_what_counted_in_a_window_that_is_over_is_not_given_back_to_the_next(client, limiter, face, origin, clock):
    budget = limiter(BUDGET)

    def meanwhile():
        clock.advance(60)
        face.hit(budget, "k", {"requests": 1, "tokens": 300})

    to = client(budget, key=lambda _: "k", cost=ESTIMATE, settle=tokens_used)
    origin.says.append(used(100)._replace(before=meanwhile))
    to.request("GET", origin.url)
    assert remaining(face, budget) == {"requests": 9, "tokens": 700}


def test_nobody_elses_units_are_given_back(client, limiter, face, origin, clock, store):
    budget = limiter(SlidingWindowLog(10, 60), store)

    def meanwhile():
        clock.advance(1)
        face.hit(budget, "k", 4)

    to = client(budget, key=lambda _: "k", cost=5, settle=lambda _: 2)
    origin.says.append(Said(before=meanwhile))
    to.request("GET", origin.url)
    assert face.peek(budget, "k").remaining == 4
    clock.advance(59)  # the request's own are over, the others count for another second
    assert face.peek(budget, "k").remaining == 6


def test_a_stream_comes_chunk_by_chunk_and_is_settled_at_its_end(client, limiter, face, origin):
    budget = limiter(BUDGET)
    to = client(budget, key=lambda _: "k", cost=ESTIMATE, settle=lambda answer: {"tokens": len(answer.content)})
    read = threading.Event()

    def chunks(send):
        send(b"one")
        read.wait(30)
        send(b"two")

    origin.says.append(Said(body=chunks))
    stream = to.stream(origin.url)
    assert next(stream) == b"one"
    assert remaining(face, budget)["tokens"] == 600
    read.set()
    assert list(stream) == [b"two"]
    assert remaining(face, budget)["tokens"] == 994


def test_a_stream_that_is_left_early_is_settled_with_what_was_read(client, limiter, face, origin):
    budget = limiter(BUDGET)
    seen = []

    def settle(answer):
        seen.append((answer.content, answer.request.url))
        return {"tokens": len(answer.content)}

    to = client(budget, key=lambda _: "k", cost=ESTIMATE, settle=settle)
    may_end = threading.Event()
    origin.says.append(Said(body=lambda send: [send(b"one"), may_end.wait(PATIENCE), send(b"two")]))
    assert list(to.stream(origin.url, most=1)) == [b"one"]
    may_end.set()
    assert remaining(face, budget)["tokens"] == 997
    assert [(body, str(url).rstrip("/")) for body, url in seen] == [(b"one", origin.url)]


def test_a_stream_that_is_left_before_it_tells_its_cost_costs_the_estimate(client, limiter, face, origin, caplog):
    budget = limiter(BUDGET)
    to = client(budget, key=lambda _: "k", cost=ESTIMATE, settle=tokens_used)
    may_end = threading.Event()
    origin.says.append(Said(body=lambda send: [send(b'{"tokens"'), may_end.wait(PATIENCE), send(b": 5}")]))
    assert list(to.stream(origin.url, most=1)) == [b'{"tokens"']
    may_end.set()
    assert remaining(face, budget)["tokens"] == 600
    assert "the settlement failed; the request keeps its estimated cost" in caplog.text


def test_a_body_is_settled_once(client, limiter, origin):
    seen = []
    to = client(limiter(BUDGET), settle=lambda answer: seen.append(answer.content))
    origin.says.append(Said(body=lambda send: [send(b"one "), send(b"two")]))
    assert b"".join(to.stream(origin.url)) == b"one two"  # and closes it
    assert seen == [b"one two"]


@pytest.mark.parametrize("name", ["httpx async", "httpx2 async"])
@pytest.mark.parametrize("by", ["asyncio", "anyio"])
def test_a_task_that_is_cancelled_while_it_reads_is_settled(name, by, origin):
    face = FACES[name]
    budget = face.limiter_class(BUDGET, servers.shared(servers.newest()).url, prefix=f"cancelled {name} {by}")
    to = face(budget, key=lambda _: "k", cost=ESTIMATE, settle=lambda answer: {"tokens": len(answer.content)})

    async def read():
        with anyio.CancelScope() as scope:
            async with to.client.stream("GET", origin.url) as response:
                async for chunk in response.aiter_bytes():
                    assert chunk == b"one"
                    scope.cancel() if by == "anyio" else asyncio.current_task().cancel()
                    await asyncio.sleep(PATIENCE)

    may_end = threading.Event()
    origin.says.append(Said(body=lambda send: [send(b"one"), may_end.wait(PATIENCE)]))
    with suppress(asyncio.CancelledError, concurrent.futures.CancelledError):
        awaited(read())
    may_end.set()
    until(lambda: remaining(face, budget)["tokens"] == 997, "the settlement")
    to.close()
    awaited(budget.close())


@pytest.mark.parametrize("name", [name for name in FACES if name != "requests"])
def test_an_answer_that_was_read_already_is_settled(name):
    face = FACES[name]
    budget = face.limiter_class(BUDGET)
    seen = []

    def settle(answer):
        seen.append((answer.json(), str(answer.request.url)))
        return {"tokens": answer.json()["tokens"]}

    packed = gzip.compress(b'{"tokens": 5}')
    mock = face.library.MockTransport(
        lambda _: face.library.Response(200, headers={"Content-Encoding": "gzip"}, content=packed)
    )
    to = face(budget, key=lambda _: "k", cost=ESTIMATE, settle=settle, transport=mock)
    assert to.request("GET", "http://mock/path").body == b'{"tokens": 5}'
    assert remaining(face, budget)["tokens"] == 995
    assert seen == [({"tokens": 5}, "http://mock/path")]
    to.close()


def test_an_answer_that_an_inner_adapter_has_read_is_settled(origin):
    class Reading(HTTPAdapter):
        def send(self, *args, **options):
            response = super().send(*args, **options)
            assert response.json() == {"tokens": 5}
            return response

    face = FACES["requests"]
    budget = Limiter(BUDGET)
    to = face(budget, key=lambda _: "k", cost=ESTIMATE, settle=tokens_used, adapter=Reading())
    origin.says.append(used(5))
    assert to.request("GET", origin.url).status == 200
    assert remaining(face, budget)["tokens"] == 995
    to.close()


def test_a_compressed_body_is_settled_by_what_it_says(client, limiter, face, origin):
    budget = limiter(BUDGET)
    to = client(budget, key=lambda _: "k", cost=ESTIMATE, settle=tokens_used)
    plain = json.dumps({"tokens": 5}).encode()
    origin.says.append(Said(headers={"Content-Encoding": "gzip"}, body=gzip.compress(plain)))
    assert to.request("GET", origin.url).body == plain
    assert remaining(face, budget)["tokens"] == 995


def test_a_settlement_sees_the_status_the_headers_and_the_request(client, limiter, origin):
    seen = []

    def settle(answer):
        seen.append((answer.status_code, answer.headers["X-Cost"], answer.request.method, str(answer.request.url)))

    to = client(limiter(BUDGET), settle=settle)
    origin.says.append(Said(404, {"X-Cost": "7"}))
    to.request("GET", origin.url + "/path")
    assert seen == [(404, "7", "GET", origin.url + "/path")]


def test_an_answer_without_a_body_is_settled(client, limiter, face, origin):
    budget = limiter(BUDGET)
    to = client(budget, key=lambda _: "k", cost=ESTIMATE, settle=lambda answer: {"tokens": len(answer.content)})
    to.request("HEAD", origin.url)
    assert remaining(face, budget)["tokens"] == 1000


def test_an_answer_that_is_asked_for_again_is_settled_too(client, limiter, face, origin):
    budget = limiter(BUDGET)
    to = client(
        budget,
        key=lambda _: "k",
        cost=ESTIMATE,
        settle=lambda answer: {"tokens": 0} if answer.status_code == 429 else None,
        retries=1,
    )
    origin.says.append(Said(429, {"Retry-After": "0"}))
    assert to.request("GET", origin.url).status == 200
    assert remaining(face, budget) == {"requests": 8, "tokens": 600}


def test_a_body_that_is_too_long_to_keep_passes_and_costs_the_estimate(
    client, limiter, face, origin, monkeypatch, caplog
):
    monkeypatch.setattr(settlement, "_MAX_BODY", 10)
    budget = limiter(BUDGET)
    to = client(budget, key=lambda _: "k", cost=ESTIMATE, settle=lambda _: 1)
    origin.says.append(Said(body=b"eleven byte"))
    assert to.request("GET", origin.url).body == b"eleven byte"
    assert remaining(face, budget)["tokens"] == 600
    assert "the body has 11 bytes; at most 10 are kept" in caplog.text


@pytest.mark.parametrize("tokens", [100, 900])
def test_a_store_that_is_away_at_the_settlement_does_not_cost_the_answer(tokens, client, limiter, origin, caplog):
    redis = servers.RedisServer(servers.programs()[servers.newest()])
    to = client(limiter(BUDGET, redis.url), cost=ESTIMATE, settle=tokens_used)
    origin.says.append(used(tokens)._replace(before=redis.stop))
    assert to.request("GET", origin.url).status == 200
    assert "the store is unavailable; a request was not settled" in caplog.text


def test_a_store_that_is_away_when_a_request_could_not_be_sent_is_told_of_once(caplog):
    redis = servers.RedisServer(servers.programs()[servers.newest()])
    limiter = Limiter(BUDGET, redis.url, on_error="raise", deadline=10)
    reservations = [limiter.take("k") for _ in range(2)]
    redis.stop()
    ledger = settlement.Ledger(None)
    for taken in reservations:
        run(ledger.give_back(taken))
    assert caplog.text.count("the store is unavailable; the cost of an unsent request was not given back") == 1


def test_who_waits_is_woken_by_what_is_given_back(client, limiter, origin, store, sleepers):
    to = client(limiter(FixedWindow(5, 60), store), cost=5, settle=lambda _: 0)
    may_answer = threading.Event()
    origin.says.append(Said(before=may_answer.wait))
    first = Call(to.request, "GET", origin.url)
    until(lambda: origin.arrivals, "the first to arrive")
    second = Call(to.request, "GET", origin.url)
    sleepers.until(1)
    may_answer.set()
    assert (first.outcome().status, second.outcome().status) == (200, 200)
    assert origin.times == [0, 0]


def test_the_raw_body_of_requests_is_still_there_and_costs_the_estimate(origin):
    face = FACES["requests"]
    budget = Limiter(BUDGET)
    to = face(budget, key=lambda _: "k", cost=ESTIMATE, settle=lambda _: 1)
    with to.client.get(origin.url, stream=True) as response:
        assert response.raw.status == 200
        assert response.raw.read() == b"ok"
    assert remaining(face, budget)["tokens"] == 600
    to.close()
