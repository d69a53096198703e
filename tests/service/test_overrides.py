"""Overrides at run time: kept in the store, in force in every process, and gone by themselves."""

import asyncio
import time
from datetime import datetime

import msgspec
import pytest
import redis

from ratekeeper.stores import AsyncRedisStore, MemoryStore
from tests.service.operating import Process, rewrite, text
from tests.waiters import until

BLOCKED = {"policy": "api", "when": {"user": "ada"}, "limits": "blocked", "expires_in": 60}
MORE = BLOCKED | {"limits": {"user": "fixed-window 50/day"}}


@pytest.fixture(params=["file", "store"])
def fleet(request, tmp_path):
    store = MemoryStore()
    if request.param == "file":
        path = tmp_path / "limits.toml"
        path.write_text(text())
        return [Process(store, policies=path) for _ in range(2)]
    processes = [Process(store) for _ in range(2)]
    processes[0].put_policies(text(), 0)
    processes[1].look()
    return processes


def override(process, name, body=MORE, **changes):
    return process.put(f"/v1/overrides/{name}", json=body | changes)


def ids(process):
    return [each["id"] for each in process.get("/v1/overrides").json()["overrides"]]


def test_an_override_is_in_force_here_at_once_and_elsewhere_after_a_look(fleet):
    one, other = fleet
    one.hit(cost=2)
    answer = override(one, "ada").json()
    assert (answer["id"], answer["when"], answer["limits"]) == (
        "ada",
        {"user": ["ada"]},
        {"user": "fixed-window 50/day"},
    )
    assert 59 < answer["expires_in"] <= 60
    assert (one.remaining(), one.remaining(user="bob")) == (48, 5)
    assert other.remaining() == 3
    other.look()
    assert other.remaining() == 48
    assert other.ask("DELETE", "/v1/overrides/ada").json() == {"ok": True}
    assert other.remaining() == 3
    one.look()
    assert one.remaining() == 3


def test_overrides_are_shared_on_every_store(stores):
    one, other = Process(stores()), Process(stores())
    one.put_policies(text(), 0)
    override(one, "ada")
    other.look()
    assert other.remaining() == 50
    assert ids(Process(stores())) == ["ada"]


def test_an_override_ends_by_itself_in_every_process(fleet):
    override(fleet[0], "ada", expires_in=0.3)
    fleet[1].look()
    assert [process.remaining() for process in fleet] == [50, 50]
    for process in fleet:
        until(lambda process=process: process.remaining() == 5, "the end of the override")
    assert ids(fleet[0]) == []


def test_all_processes_go_by_the_time_of_the_store():
    class Behind(MemoryStore):
        """Its clock is an hour behind those of the processes."""

        def read_shared(self, name, most=None):
            read = super().read_shared(name, most)
            return read._replace(now_us=read.now_us - 3_600_000_000)

    store = Behind()
    processes = [Process(store) for _ in range(2)]
    processes[0].put_policies(text(), 0)
    told = override(processes[0], "ada", expires_in=60).json()
    assert datetime.fromisoformat(told["expires_at"].replace("Z", "+00:00")).timestamp() < time.time() - 3_000
    processes[1].look()
    assert [process.remaining() for process in processes] == [50, 50]
    assert 59 < processes[1].get("/v1/overrides").json()["overrides"][0]["expires_in"] <= 60


def test_the_newest_override_counts_and_one_with_the_same_id_is_replaced(fleet):
    process = fleet[0]
    override(process, "all", when={})
    override(process, "ada", BLOCKED)
    assert process.hit().status_code == 429
    override(process, "all", when={})
    assert ids(process) == ["all", "ada"]
    assert process.remaining() == 50


def test_an_override_of_a_policy_that_is_gone_waits_for_it():
    process = Process(MemoryStore())
    process.put_policies(text(), 0)
    override(process, "ada")
    process.put_policies(text(name="web"), 1)
    assert ids(process) == ["ada"]
    process.put_policies(text(), 2)
    assert process.remaining() == 50


@pytest.mark.parametrize(
    ("changes", "places"),
    [
        ({"policy": "apj"}, ["policy"]),
        ({"policy": None, "expires_in": 0}, ["policy", "expires_in"]),
        ({"expires_in": "1h"}, ["expires_in"]),
        ({"expires_in": 1e12}, ["expires_in"]),
        ({"limits": {"usr": "1/s"}}, ["limits.usr"]),
        ({"limits": {"user": "1/sek"}}, ["limits.user"]),
        ({"limits": "block"}, ["limits"]),
        ({"limits": []}, ["limits"]),
        ({"when": {"user": []}, "limits": {}}, ["when.user", "limits"]),
        ({"when": "always"}, ["when"]),
        ({"until": 5}, ["until"]),
    ],
)
def test_all_mistakes_in_an_override_are_named(fleet, changes, places):
    answer = override(fleet[0], "ada", **changes)
    assert answer.status_code == 400
    assert [each["place"] for each in answer.json()["reasons"]] == places
    assert answer.json()["field"] == places[0]
    assert ids(fleet[0]) == []


def test_a_bad_id_or_body_is_refused(fleet):
    assert override(fleet[0], "x" * 65).json()["field"] == "id"
    assert override(fleet[0], "a%20b").json()["field"] == "id"
    for content in (b"", b"[]", b"7", b"{", b'{"policy": "api", "policy": "api"}'):
        assert fleet[0].put("/v1/overrides/ada", content=content).status_code == 400
    assert fleet[0].ask("DELETE", "/v1/overrides/ada").status_code == 404


def test_changes_by_several_processes_at_once_are_all_kept(fleet):
    async def change():
        coming = [
            process.asking("PUT", f"/v1/overrides/{at}-{number}", json=MORE | {"when": {"user": f"{at}-{number}"}})
            for at, process in enumerate(fleet)
            for number in range(15)
        ]
        return [answer.status_code for answer in await asyncio.gather(*coming)]

    assert set(asyncio.run(change())) == {200}
    assert len(ids(fleet[1])) == 30
    fleet[0].look()
    assert fleet[0].remaining(user="1-7") == 50


def test_there_are_at_most_10000_overrides(fleet):
    process = fleet[0]
    override(process, "0")

    def many(content):  # for 10,000 calls would take long
        (stored,) = msgspec.json.decode(content)
        return msgspec.json.encode([stored | {"id": str(n), "when": {"user": [f"user {n}"]}} for n in range(10_000)])

    rewrite(process, "overrides", many)
    process.look()
    assert (process.remaining(user="user 9999"), process.remaining()) == (50, 5)
    answer = override(process, "one more")
    assert (answer.status_code, answer.json()["field"]) == (400, "id")
    assert override(process, "42").status_code == 200
    assert process.remaining() == 50


def test_a_stored_override_that_cannot_be_read_is_left_out(fleet, caplog):
    process = fleet[0]
    override(process, "ada")

    def with_bob(content):
        (stored,) = msgspec.json.decode(content)
        return msgspec.json.encode(
            [stored | {"id": "bob", "when": {"user": ["bob"]}, "limits": {"user": "1/sek"}}, stored]
        )

    rewrite(process, "overrides", with_bob)
    process.look()
    assert (process.remaining(), process.remaining(user="bob")) == (50, 5)
    assert "'bob' cannot be read" in caplog.text


def test_a_store_that_has_lost_its_overrides_gets_them_back(server):
    process = Process(AsyncRedisStore(server.url))
    process.put_policies(text(), 0)
    override(process, "ada")
    redis.from_url(server.url).flushall()
    process.look()
    fresh = Process(AsyncRedisStore(server.url))
    fresh.look()
    assert fresh.remaining() == 50


def test_an_override_needs_policies():
    process = Process(MemoryStore())
    assert override(process, "ada").json()["field"] == "policy"
    assert override(Process(MemoryStore(), policies=None), "ada").status_code == 409
