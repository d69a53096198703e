"""What operators see: what a request meets and how it stands, who changed what, and nobody without the token."""

import pytest

from ratekeeper.stores import MemoryStore
from tests.service.operating import Process, text

POLICIES = """
[[policies.api.rules]]
name = "user"
limit = "fixed-window 5/day"
key = "{tenant|none}/{user}"

[[policies.api.rules]]
name = "tried"
limit = "fixed-window 1/day"
key = "all"
shadow = true

[[policies.api.rules]]
name = "writes"
limit = "1/s"
key = "{user}"
when = { method = "POST" }

[[policies.api.overrides]]
when = { plan = "pro" }
limits = { user = "fixed-window 50/day" }
"""


@pytest.fixture
def process():
    process = Process(MemoryStore())
    process.put_policies(POLICIES, 0)
    return process


def explained(process, **attributes):
    return process.post("/v1/explain", json={"policy": "api", "attributes": {"user": "ada", **attributes}}).json()


def test_the_rules_keys_and_limits_that_a_request_meets_are_shown_with_how_each_stands(process):
    process.hit()
    process.hit()
    shown = explained(process, plan="pro")
    assert (shown["policy"], shown["override"]) == ("api", "overrides[0] (plan=pro)")
    user, tried, writes = shown["rules"]
    assert (user["applies"], user["limit"], user["key"], user["cost"]) == (
        True,
        "fixed-window 50/day",
        "none (default) / ada",
        1,
    )
    assert (user["standing"]["remaining"], user["standing"]["allowed"]) == (48, True)
    assert (tried["shadow"], tried["standing"]["allowed"], tried["standing"]["remaining"]) == (True, False, 0)
    assert (writes["applies"], writes["reason"], writes["standing"]) == (
        False,
        "its condition is not met: method=POST",
        None,
    )
    assert (shown["decision"]["remaining"], shown["decision"]["shadow_denied"]) == (48, ["tried"])


def test_explaining_changes_nothing(process):
    before = process.store.size
    assert explained(process) == explained(process)
    assert (process.store.size, process.remaining()) == (before, 5)


def test_an_override_at_run_time_is_named(process):
    body = {"policy": "api", "when": {"user": "ada"}, "limits": "blocked", "expires_in": 60}
    process.put("/v1/overrides/abuse", json=body)
    shown = explained(process)
    assert shown["override"] == "override 'abuse' (user=ada)"
    assert [rule["limit"] for rule in shown["rules"]][:2] == ["blocked", "blocked"]
    assert (shown["decision"]["allowed"], shown["decision"]["limit"]) == (False, 0)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"policy": "api"}, "attributes.user"),
        ({"policy": "apu", "attributes": {}}, "policy"),
        ({"policy": "api", "attributes": {"user": 1.5}}, "attributes.user"),
        ({"policy": "api", "attributes": {"user": "ada"}, "cost": 0}, "cost"),
        ({"key": "ada", "rule": "1/s"}, "policy"),
    ],
)
def test_what_a_hit_would_refuse_is_refused(process, body, field):
    answer = process.post("/v1/explain", json=body)
    assert (answer.status_code, answer.json()["field"]) == (400, field)


def test_the_audit_trail_says_when_what_was_changed_and_from_where(process):
    body = {"policy": "api", "when": {"user": "ada"}, "limits": "blocked", "expires_in": 60}
    process.put("/v1/overrides/abuse", json=body, peer="10.1.2.3")  # refused
    process.put("/v1/overrides/abuse", json=body)
    process.ask("DELETE", "/v1/overrides/abuse")
    process.put_policies(POLICIES, 7)  # refused
    process.put_policies("bad", 1)
    entries = process.get("/v1/audit").json()["entries"]
    assert [entry["what"] for entry in entries] == ["override removed", "override set", "policies replaced"]
    assert [entry["from"] for entry in entries] == ["127.0.0.1"] * 3
    assert entries[1]["when"] == {"user": ["ada"]}
    assert entries[1]["limits"] == "blocked"
    assert entries[2]["version"] == 1
    assert [entry["at"] for entry in entries] == sorted((entry["at"] for entry in entries), reverse=True)


def test_all_processes_share_one_trail(process):
    other = Process(process.store)
    other.put_policies(text(), 1)
    assert [entry["version"] for entry in process.get("/v1/audit").json()["entries"]] == [2, 1]


def test_a_file_that_each_process_reloads_is_noted_once(tmp_path):
    path = tmp_path / "limits.toml"
    path.write_text(text())
    store = MemoryStore()
    processes = [Process(store, policies=path) for _ in range(3)]
    path.write_text(text("fixed-window 9/day"))
    for process in processes:
        process.look()
        process.look()
    (entry,) = processes[0].get("/v1/audit").json()["entries"]
    assert (entry["what"], entry["from"]) == ("policies reloaded", f"file {path}")


def test_the_trail_is_bounded(process):
    note = process.administration.audit.note
    process.run(_noted(note, 1_005))
    entries = process.get("/v1/audit").json()["entries"]
    assert (len(entries), entries[0]["id"]) == (1_000, "1004")
    process.run(note("override set", "here", {"limits": "x" * 250_000}))
    assert len(process.get("/v1/audit").json()["entries"]) < 200


async def _noted(note, times):
    for number in range(times):
        await note("override set", "here", {"id": str(number)})


CALLS = [
    ("GET", "/v1/policies"),
    ("PUT", "/v1/policies"),
    ("POST", "/v1/policies/reload"),
    ("GET", "/v1/policies/history"),
    ("GET", "/v1/policies/history/1"),
    ("GET", "/v1/overrides"),
    ("PUT", "/v1/overrides/abuse"),
    ("DELETE", "/v1/overrides/abuse"),
    ("POST", "/v1/explain"),
    ("GET", "/v1/audit"),
]


@pytest.mark.parametrize(("method", "path"), CALLS)
def test_operators_calls_need_the_token_or_without_one_a_caller_on_this_machine(method, path):
    guarded = Process(MemoryStore(), token="secret")
    assert guarded.ask(method, path, json={}).status_code == 401
    assert guarded.ask(method, path, json={}, headers={"authorization": "Bearer wrong"}).status_code == 401
    assert guarded.ask(method, path, json={}, headers={"authorization": "Bearer secret"}).status_code not in (401, 403)
    unguarded = Process(MemoryStore())
    assert unguarded.ask(method, path, json={}, peer="10.1.2.3").status_code == 403
    assert unguarded.ask(method, path, json={}, headers={"x-forwarded-for": "10.1.2.3"}).status_code == 403


@pytest.mark.parametrize(("method", "path"), CALLS)
def test_pages_of_other_sites_cannot_make_operators_calls(method, path):
    process = Process(MemoryStore())
    for headers in ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}, {"host": "evil.example"}):
        assert process.ask(method, path, json={}, headers=headers).status_code in (403, 421)
