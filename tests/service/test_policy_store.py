"""Policies that a fleet keeps in its store: replaced by one process, followed by all, and never lost to a restart."""

import asyncio

import pytest
import redis

from ratekeeper.stores import AsyncRedisStore, MemoryStore
from tests.service.operating import Process, rewrite, text
from tests.service.serving import InProcess
from tests.waiters import until


@pytest.fixture
def fleet():
    store = MemoryStore()
    return Process(store), Process(store)


def detail(answer):
    return answer.status_code, answer.json()["detail"]


def test_what_one_process_stores_is_in_force_in_all_of_them(stores):
    one, other = Process(stores()), Process(stores())
    assert one.put_policies(text(), 0).json()["version"] == 1
    one.hit(cost=2)
    other.look()
    assert other.remaining() == 3
    assert other.put_policies(text("fixed-window 9/day"), 1).headers["etag"] == '"2"'
    assert other.remaining() == 7
    one.look()
    assert (one.remaining(), one.in_force()) == (7, 2)
    late = Process(stores())
    late.look()
    assert late.remaining() == 7


def test_before_any_are_stored_the_answer_says_what_to_do(fleet):
    fleet[0].look()
    assert detail(fleet[0].hit()) == (400, "no policies are stored yet; PUT them to /v1/policies")
    shown = fleet[0].get("/v1/policies")
    assert (shown.json()["version"], shown.headers["etag"]) == (0, '"0"')


def test_whoever_replaces_policies_says_which_version(fleet):
    one, other = fleet
    assert one.put("/v1/policies", content=text().encode()).status_code == 428
    assert one.put_policies(text(), "*").status_code == one.put_policies(text(), "-1").status_code == 400
    assert one.put_policies(text(), 0).status_code == 200
    assert detail(other.put_policies(text(), 0)) == (412, "the stored policies have version 1, not 0")
    assert other.put_policies(text(), '"1"').status_code == 200


def test_of_those_who_replace_the_same_version_at_once_one_does(stores):
    processes = [Process(stores()) for _ in range(2)]
    changes = [(process, text(f"fixed-window {5 + at}/day")) for at, process in enumerate(processes * 2)]

    async def put():
        puts = [
            process.asking("PUT", "/v1/policies", content=content.encode(), headers={"if-match": "0"})
            for process, content in changes
        ]
        answers = await asyncio.gather(*puts)
        for process in processes:
            await process.app.close() if not isinstance(process.store, MemoryStore) else None
        return [answer.status_code for answer in answers]

    statuses = asyncio.run(put())
    assert sorted(statuses) == [200, 412, 412, 412]
    for process in processes:
        process.look()
        assert process.remaining() == 5 + statuses.index(200)


@pytest.mark.parametrize(
    ("content", "content_type"),
    [
        (text(), "application/toml"),
        (text(), "application/x-www-form-urlencoded"),  # which curl says if nobody tells it
        ('{"policies": {"api": {"rules": [{"name": "u", "limit": "5/day", "key": "{user}"}]}}}', "application/json"),
        ('{"policies": {"api": {"rules": [{"name": "u", "limit": "5/day", "key": "{user}"}]}}}', "text/plain"),
        ("policies:\n  api:\n    rules: [{name: u, limit: 5/day, key: '{user}'}]\n", "application/yaml; charset=utf-8"),
        ("policies:\n  api:\n    rules: [{name: u, limit: 5/day, key: '{user}'}]\n", "text/plain"),
    ],
)
def test_policies_come_in_toml_yaml_or_json(fleet, content, content_type):
    assert fleet[0].put_policies(content, 0, **{"content-type": content_type}).status_code == 200
    fleet[1].look()
    assert fleet[1].remaining() == 5
    assert fleet[1].get("/v1/policies").json()["text"] == content


def test_mistakes_are_refused_with_all_their_reasons_and_change_nothing(fleet):
    fleet[0].put_policies(text(), 0)
    answer = fleet[0].put_policies(text("5/dya", key="{user"), 1)
    assert answer.status_code == 400
    assert [each["place"] for each in answer.json()["reasons"]] == [
        "policies.api.rules[0].limit",
        "policies.api.rules[0].key",
    ]
    assert answer.json()["field"] == "policies.api.rules[0].limit"
    for bad in (b"\xff", b"", b"[", b"[policies]\n" * 400_000):
        answer = fleet[0].put_policies(bad, 1)
        assert answer.status_code in (400, 413)
    assert (fleet[0].in_force(), fleet[0].remaining()) == (1, 5)


def test_the_last_twenty_versions_are_kept(stores):
    process = Process(stores())
    for version in range(24):
        process.put_policies(text(f"fixed-window {version + 1}/day"), version)
    versions = process.get("/v1/policies/history").json()["versions"]
    assert [each["version"] for each in versions] == list(range(24, 4, -1))
    assert process.get("/v1/policies/history/5").json()["text"] == text("fixed-window 5/day")
    assert process.get("/v1/policies/history/24").json()["text"] == text("fixed-window 24/day")
    assert process.get("/v1/policies/history/4").status_code == 404


def test_a_store_that_has_lost_its_policies_gets_them_back(server):
    process = Process(AsyncRedisStore(server.url))
    process.put_policies(text(), 0)
    process.put_policies(text("fixed-window 9/day"), 1)
    server.stop()
    server.start()
    fresh = Process(AsyncRedisStore(server.url))
    fresh.look()
    assert fresh.in_force() is None
    process.look()
    fresh.look()
    assert (fresh.in_force(), fresh.remaining()) == (2, 9)


def test_a_store_that_has_lost_only_the_newest_version_gets_it_back(server):
    process, other = (Process(AsyncRedisStore(server.url)) for _ in range(2))
    process.put_policies(text(), 0)
    other.look()
    process.put_policies(text("fixed-window 9/day"), 1)
    redis.from_url(server.url).flushall()
    other.look()  # and writes version 1
    process.look()
    other.look()
    assert (process.in_force(), other.in_force(), other.remaining()) == (2, 2, 9)


def test_of_two_texts_with_one_version_the_stored_one_counts(server):
    process, other = (Process(AsyncRedisStore(server.url)) for _ in range(2))
    process.put_policies(text(), 0)
    redis.from_url(server.url).flushall()
    other.put_policies(text("fixed-window 9/day"), 0)
    process.look()
    assert (process.in_force(), process.remaining()) == (1, 9)


def test_a_damaged_value_changes_nothing_and_is_written_again(server):
    process = Process(AsyncRedisStore(server.url))
    process.put_policies(text(), 0)
    client = redis.from_url(server.url)
    kept = client.get("ratekeeper:shared:{policies}")
    for damaged in (b"", b"x", kept[:40], b"9" * 20 + kept[20:], kept[:19] + b"7" + kept[20:]):
        client.set("ratekeeper:shared:{policies}", damaged)
        process.look()
        assert process.remaining() == 5
        process.look()
        assert client.get("ratekeeper:shared:{policies}") == kept


def test_a_version_that_this_process_cannot_read_is_refused_here_and_the_last_good_one_goes_on(fleet):
    fleet[0].put_policies(text(), 0)
    fleet[1].look()
    rewrite(fleet[0], "policies", lambda content: content.replace(b"5/day", b"5/dya"))
    fleet[1].look()
    shown = fleet[1].get("/v1/policies").json()
    assert (shown["version"], shown["refused"]["version"]) == (1, 2)
    assert fleet[1].remaining() == 5
    assert fleet[1].put_policies(text("fixed-window 9/day"), 2).status_code == 200
    assert fleet[1].get("/v1/policies").json()["refused"] is None


def test_while_the_store_is_away_what_is_in_force_goes_on(server):
    process = Process(AsyncRedisStore(server.url))
    process.put_policies(text(), 0)
    server.stop()
    assert process.put_policies(text(), 1).status_code == 503
    answer = process.hit()
    assert (answer.status_code, answer.json()["degraded"], answer.json()["remaining"]) == (200, True, 4)
    late = Process(AsyncRedisStore(server.url))
    assert detail(late.hit()) == (503, "the policies have not been read from the store yet")
    server.start()
    until(lambda: process.put_policies(text("fixed-window 9/day"), 1).status_code == 200, "the store")
    assert late.hit().status_code == 503
    late.look()
    assert late.remaining() == 9


def test_a_store_that_cannot_share_values_is_refused():
    class Own(MemoryStore):
        read_shared = None

    with pytest.raises(ValueError, match="cannot share values"):
        InProcess(store=Own(), policies="store")
