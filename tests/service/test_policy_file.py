"""A policy file that changes while the service runs: followed, reloaded, or refused as a whole."""

import asyncio
import os

import pytest

from ratekeeper.policies import Policies
from tests.service.operating import Process, text


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "limits.toml"
    path.write_text(text())
    return path


@pytest.fixture
def process(path):
    process = Process(policies=path)
    process.look()
    process.look()  # now it knows the file
    return process


def refused(process):
    return process.get("/v1/policies").json()["refused"]


def test_a_changed_file_is_in_force_once_two_looks_have_found_the_same(process, path):
    process.hit(cost=2)
    path.write_text(text("fixed-window 9/day"))
    process.look()
    assert process.remaining() == 3
    process.look()
    assert process.remaining() == 7
    assert process.in_force() == 2


def test_half_of_a_file_is_not_taken_even_if_it_is_valid(process, path):
    whole = text("fixed-window 9/day") + text("1/s", name="web")
    path.write_text(whole[: len(text("fixed-window 9/day"))])
    process.look()
    path.write_text(whole)
    process.look()
    assert process.in_force() == 1
    process.look()
    assert list(process.get("/v1/policies").json()["policies"]) == ["api", "web"]


def test_a_change_that_keeps_size_and_time_of_a_file_is_found_at_the_second_look(process, path):
    path.write_text(text("fixed-window 7/day"))
    process.look()
    before = path.stat()
    path.write_text(text("fixed-window 8/day"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    process.look()
    process.look()
    assert process.remaining() == 8


def test_a_bad_file_is_refused_with_its_reasons_and_the_last_good_one_goes_on(process, path):
    path.write_text(text("fixed-window 9/dya", key="{user"))
    process.look()
    process.look()
    assert process.remaining() == 5
    shown = process.get("/v1/policies").json()
    assert (shown["version"], shown["text"]) == (1, text())
    reasons = shown["refused"]["reasons"]
    assert [(each["line"], each["place"]) for each in reasons] == [
        (4, "policies.api.rules[0].limit"),
        (5, "policies.api.rules[0].key"),
    ]
    assert reasons[0]["suggestion"] == "day"
    path.write_text(text())
    process.look()
    process.look()
    assert refused(process) is None
    assert process.in_force() == 1


def test_a_file_that_is_gone_is_refused_and_taken_when_it_is_back(process, path):
    path.unlink()
    process.look()
    process.look()
    assert refused(process)["reasons"][0]["reason"] == "cannot be read: No such file or directory"
    assert process.remaining() == 5
    path.write_text(text("fixed-window 9/day"))
    process.look()
    process.look()
    assert refused(process) is None
    assert process.remaining() == 9


def test_a_reload_takes_a_file_at_once(process, path):
    path.write_text(text("fixed-window 9/day"))
    answer = process.post("/v1/policies/reload").json()
    assert (answer["changed"], answer["version"]) == (True, 2)
    assert process.remaining() == 9
    assert process.post("/v1/policies/reload").json()["changed"] is False


def test_a_reload_of_a_bad_file_changes_nothing_and_says_why(process, path):
    path.write_text(text("5/dya") + text("5/dya", name="web"))
    answer = process.post("/v1/policies/reload")
    assert answer.status_code == 400
    assert [each["line"] for each in answer.json()["reasons"]] == [4, 9]
    assert answer.json()["detail"].endswith("(and 1 more)")
    assert process.remaining() == 5


def test_a_signal_reloads(process, path):
    path.write_text(text("fixed-window 9/day"))
    asyncio.run(process.app.reload())
    assert process.remaining() == 9
    assert process.get("/v1/audit").json()["entries"][0]["from"] == "SIGHUP"


def test_a_policy_comes_and_goes_with_the_file(process, path):
    path.write_text(text(name="web"))
    process.post("/v1/policies/reload")
    assert process.hit("api").json()["field"] == "policy"
    assert process.hit("web").status_code == 200
    path.write_text(text())
    process.post("/v1/policies/reload")
    assert process.hit("api").status_code == 200


def test_the_policies_of_a_file_are_not_replaced_over_http(process):
    answer = process.put_policies(text(), 1)
    assert answer.status_code == 409
    assert "limits.toml" in answer.json()["detail"]


def test_what_is_in_force_is_shown_with_its_version_and_where_it_is_from(process, path):
    answer = process.get("/v1/policies")
    shown = answer.json()
    assert answer.headers["etag"] == '"1"'
    assert shown["source"] == {"kind": "file", "path": str(path)}
    assert shown["policies"]["api"]["rules"][0]["limit"] == "fixed-window 5/day"
    assert (shown["text"], shown["format"], shown["refused"]) == (text(), "toml", None)


def test_the_last_twenty_versions_of_a_file_are_known(process, path):
    for limit in range(1, 25):
        path.write_text(text(f"fixed-window {limit}/day"))
        process.post("/v1/policies/reload")
    versions = process.get("/v1/policies/history").json()["versions"]
    assert [each["version"] for each in versions] == list(range(25, 5, -1))
    assert process.get("/v1/policies/history/6").json()["text"] == text("fixed-window 5/day")
    assert process.get("/v1/policies/history/5").status_code == 404


def test_what_the_embedding_program_changes_is_shown_and_is_its_own_affair():
    policies = Policies.load(text())
    process = Process(policies=policies)
    policies.replace(text("fixed-window 9/day"))
    process.look()
    shown = process.get("/v1/policies").json()
    assert (shown["version"], shown["source"]) == (2, {"kind": "program"})
    assert process.post("/v1/policies/reload").status_code == process.put_policies(text(), 2).status_code == 409
    versions = process.get("/v1/policies/history").json()["versions"]
    assert [each["version"] for each in versions] == [2, 1]


def test_without_policies_nothing_is_in_force():
    process = Process(policies=None)
    shown = process.get("/v1/policies").json()
    assert (shown["version"], shown["policies"], shown["source"]) == (0, {}, {"kind": "none"})
    for method, path in [("GET", "/v1/policies/history"), ("POST", "/v1/policies/reload"), ("GET", "/v1/audit")]:
        assert process.ask(method, path).status_code == 409


def test_the_version_in_force_and_all_reloads_are_counted(process, path):
    for limit in ("fixed-window 9/day", "fixed-window 9/dya", "fixed-window 8/day"):
        path.write_text(text(limit))
        process.post("/v1/policies/reload")
    figures = process.get("/metrics").text
    assert "ratekeeper_policies_version 3.0" in figures
    assert 'ratekeeper_policies_reloads_total{result="ok"} 2.0' in figures
    assert 'ratekeeper_policies_reloads_total{result="error"} 1.0' in figures
