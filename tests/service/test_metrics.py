"""`/metrics` and `/v1/top`: what all workers have counted together."""

import asyncio
import os
import signal
import threading
from collections import Counter

import httpx
import pytest

from ratekeeper.metrics.families import POLICIES_RELOADS, STORE_CALLS, STORE_UP, WAITING
from ratekeeper.service.figures import Figures
from ratekeeper.service.service_counter import PROTOCOL
from ratekeeper.service.slabs import Slab
from ratekeeper.service.talkers import TalkerLabels, Talkers
from ratekeeper.service.worker import Worker
from ratekeeper.stores import MemoryStore
from tests import servers
from tests.metrics.figures import Page
from tests.service.serving import InProcess, Served
from tests.waiters import until

POLICIES = """
[[policies.api.rules]]
name = "user"
limit = "fixed-window 3/day"
key = "{user}"
[[policies.api.rules]]
name = "all"
limit = "token-bucket 1/s burst 50"
key = "{tenant|none}"
[[policies.api.overrides]]
when = { plan = "staff" }
limits = "unlimited"

[[policies.tried.rules]]
name = "user"
limit = "fixed-window 1/day"
key = "{user}"
shadow = true
[[policies.tried.rules]]
name = "off"
limit = "blocked"
key = "all"
when = { plan = "off" }
"""


@pytest.fixture
def app():
    return InProcess(playground=False, policies=POLICIES, shows_keys=True)


def hit(service, times=1, **body):
    """Hit; with user=..., by a policy."""
    if "user" in body:
        attributes = {name: body.pop(name) for name in ("user", "plan", "tenant") if name in body}
        body = {"policy": "api", "attributes": attributes} | body
    for _ in range(times):
        service.ask("POST", "/v1/hit?always_200=1", json=body).raise_for_status()


def page_of(service):
    return Page(service.ask("GET", "/metrics").text)


def top(service, by, **query):
    return service.ask("GET", "/v1/top", params={"by": by} | query).raise_for_status().json()


def test_decisions_are_counted_by_policy_rule_and_outcome_and_clients_rules_without_a_name(app):
    hit(app, 5, user="ada")
    hit(app, 2, user="bob", plan="staff")
    hit(app, 2, policy="tried", attributes={"user": "ada"})
    hit(app, policy="tried", attributes={"user": "cyd", "plan": "off"})
    hit(app, 3, key="ada", rule="2/minute")
    hit(app, key="ada", rules={"mine": "2/minute", "yours": "3/minute"})
    batch = [{"key": "bob", "rule": "2/minute"}] * 3 + [{"key": ""}]
    app.ask("POST", "/v1/hit/batch", json={"requests": batch})
    for call in ("peek", "charge", "refund", "reset"):
        app.ask("POST", f"/v1/{call}", json={"key": "ada", "rule": "2/minute"})
    assert page_of(app).decisions == {
        ("", "", "admitted"): 4,
        ("", "", "denied"): 3,
        ("api", "", "unlimited"): 2,
        ("api", "user", "admitted"): 3,
        ("api", "user", "denied"): 2,
        ("tried", "", "unlimited"): 2,
        ("tried", "off", "blocked"): 1,
        ("tried", "user", "shadow_denied"): 1,
    }


def test_other_figures_of_the_service(app):
    hit(app, 2, user="ada")
    page = page_of(app)
    assert page.of("ratekeeper_decision_seconds_count") == {("api", "http"): 2}
    assert page.of("ratekeeper_keys") == 2
    assert page.of("ratekeeper_store_up") == 1
    assert page.of("ratekeeper_evictions_total") == page.of("ratekeeper_waiting") == 0
    assert page.of("ratekeeper_limit") == {
        ("api", "all"): 50,
        ("api", "user"): 3,
        ("tried", "off"): 0,
        ("tried", "user"): 1,
    }
    assert page.of("ratekeeper_degraded_total") == {("api",): 0, ("tried",): 0}


def test_times_are_told_apart_by_what_has_asked(app):
    async def hit_by_another_protocol():
        PROTOCOL.set("resp")
        await app.app.service.policies.find("api").limiter.hit({"user": "ada"})

    asyncio.run(hit_by_another_protocol())
    hit(app, user="ada")
    assert page_of(app).of("ratekeeper_decision_seconds_count") == {("api", "http"): 1, ("api", "resp"): 1}


def test_prometheus_gets_the_format_that_it_asks_for(app):
    hit(app, user="ada")
    plain = app.ask("GET", "/metrics")
    assert plain.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    asked = {"accept": "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3"}
    openmetrics = app.ask("GET", "/metrics", headers=asked)
    assert openmetrics.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert openmetrics.text.endswith("# EOF\n")
    assert not plain.text.endswith("# EOF\n")
    assert plain.headers["cache-control"] == openmetrics.headers["cache-control"] == "no-store"


def test_no_label_has_what_a_client_sends(app):
    hit(app, key="secret-key", rules={"secret-name": "1/minute"})
    hit(app, user="secret-user", tenant="secret-tenant")
    app.ask("POST", "/v1/hit", json={"policy": "secret-policy", "attributes": {}})
    assert "secret" not in app.ask("GET", "/metrics").text


def test_pages_that_are_asked_for_at_the_same_time_are_made_together_and_none_is_old(app, monkeypatch):
    made = []
    samples = app.app.service.figures.samples
    monkeypatch.setattr(app.app.service.figures, "samples", lambda: made.append(1) or samples())

    async def ask(client, number):
        await client.post("/v1/hit", json={"key": f"k{number}", "rule": "1/day"})
        return Page((await client.get("/metrics")).text).decisions["", "", "admitted"], number

    async def main():
        transport = httpx.ASGITransport(app.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await asyncio.gather(*(ask(client, number) for number in range(40)))

    assert all(count >= 1 for count, _ in asyncio.run(main()))
    assert page_of(app).decisions["", "", "admitted"] == 40
    assert len(made) < 20


def test_top_talkers_are_by_the_cost_that_each_rule_admitted_or_denied(app):
    hit(app, 2, user="ada", cost=1)
    hit(app, user="bob", tenant="acme", cost=3)
    hit(app, 2, user="bob", tenant="acme", cost=2)
    hit(app, key=["a", 1], rule="5/day", cost=4)
    hit(app, key=["a", 1], rule="5/day", cost=2)
    admitted = top(app, "admitted")
    assert [tuple(each.values()) for each in admitted["keys"]] == [
        ("", "sliding-window-counter 5/day", ["a", 1], 4),
        ("api", "user", "bob", 3),
        ("api", "all", "acme", 3),
        ("api", "user", "ada", 2),
        ("api", "all", ["none", 1], 2),
    ]
    assert (admitted["cost"], admitted["missed"], admitted["hashed"], admitted["by"]) == (14, 0, False, "admitted")
    assert 60 <= admitted["seconds"] <= 120
    denied = top(app, "denied")
    assert [tuple(each.values()) for each in denied["keys"]] == [
        ("api", "user", "bob", 4),
        ("", "sliding-window-counter 5/day", ["a", 1], 2),
    ]
    assert [each["cost"] for each in top(app, "denied", n=1)["keys"]] == [4]


def test_what_limits_nothing_and_what_has_no_key_has_no_talkers(app):
    hit(app, user="ada", plan="staff")
    hit(app, 2, policy="tried", attributes={"user": "ada"})
    hit(app, policy="tried", attributes={"user": "cyd", "plan": "off"})
    assert top(app, "admitted")["keys"] == top(app, "denied")["keys"] == []


def test_keys_are_hashed_unless_the_operator_wants_to_see_them():
    hiding = InProcess(playground=False)
    for key in ("ada", "ada", "bob"):
        hit(hiding, key=key, rule="9/day")
    shown = top(hiding, "admitted")
    assert shown["hashed"]
    assert [each["cost"] for each in shown["keys"]] == [2, 1]
    first, second = (each["key"] for each in shown["keys"])
    assert first != second
    assert (len(first), set(first) <= set("0123456789abcdef")) == (16, True)
    assert "ada" not in str(shown)
    assert top(hiding, "admitted")["keys"] == shown["keys"]


@pytest.mark.parametrize(
    ("query", "field"), [("by=cost", "by"), ("n=0", "n"), ("n=1001", "n"), ("n=x", "n"), ("n=-1", "n"), ("n=²", "n")]
)
def test_a_query_that_is_invalid_names_its_field(app, query, field):
    answer = app.ask("GET", f"/v1/top?{query}")
    assert (answer.status_code, answer.json()["field"]) == (400, field)


def test_top_talkers_are_for_those_with_the_token():
    service = InProcess(playground=False, token="secret")
    assert service.ask("GET", "/v1/top").status_code == 401
    assert service.ask("GET", "/v1/top", headers={"authorization": "Bearer secret"}).status_code == 200
    assert service.ask("GET", "/metrics").status_code == 200
    without = InProcess(playground=False)
    assert without.ask("GET", "/v1/top", peer="192.0.2.1").status_code == 403


def test_without_metrics_nothing_is_counted_but_the_live_chart():
    service = InProcess(playground=False, metrics=False)
    hit(service, 3, key="ada", rule="2/day")
    for path in ("/metrics", "/v1/top"):
        answer = service.ask("GET", path)
        assert (answer.status_code, "--no-metrics" in answer.json()["detail"]) == (404, True)
    live = service.ask("GET", "/v1/live").json()
    assert (live["admitted"], live["denied"]) == (2, 1)


# Talkers by themselves


def note(noted, key, cost, now_ns):
    noted.begin(now_ns)
    noted.admitted.add(("api/user", key), cost)


MINUTE = 60 * 10**9


def costs(noted, now_ns):
    summaries = noted.latest("admitted", now_ns)
    return dict(sum((Counter({key: cost for (_, key), cost in each.weights.items()}) for each in summaries), Counter()))


def test_talkers_are_those_of_this_minute_and_the_one_before_it():
    noted = Talkers()
    note(noted, "a", 1, 10 * MINUTE)
    note(noted, "a", 2, 11 * MINUTE - 1)
    note(noted, "b", 4, 11 * MINUTE)
    assert costs(noted, 11 * MINUTE + 5) == {"a": 3, "b": 4}
    assert costs(noted, 12 * MINUTE) == {"b": 4}
    assert costs(noted, 13 * MINUTE) == {}
    note(noted, "c", 8, 13 * MINUTE)
    assert costs(noted, 13 * MINUTE) == {"c": 8}


def test_a_worker_goes_on_with_the_talkers_that_were_written_down(tmp_path):
    path = tmp_path / "talkers-0"
    assert costs(Talkers.read(path), 0) == {}
    noted = Talkers()
    note(noted, ("a", 1), 1, 10 * MINUTE)
    noted.write(path)
    replacement = Talkers.read(path)
    note(replacement, ("a", 1), 2, 10 * MINUTE + 1)
    note(replacement, b"b", 2, 11 * MINUTE)
    assert costs(replacement, 11 * MINUTE) == {("a", 1): 3, b"b": 2}
    replacement.write(path)
    assert costs(Talkers.read(path), 11 * MINUTE) == {("a", 1): 3, b"b": 2}


def test_labels_without_end_are_not_kept_without_end():
    labels = TalkerLabels("")
    for number in range(10_000):
        assert labels[f"rule {number}"] == f"/rule {number}"
    assert len(labels) <= 4_000


# Several workers


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    policies = tmp_path_factory.mktemp("policies") / "limits.toml"
    policies.write_text(POLICIES)
    served = Served(None, "--workers", "2", "--deadline", "30", "--show-keys", "--policies", str(policies))
    yield served
    served.stop()


def ask_afresh(served, path):
    """Ask over a connection of its own, which another worker may get."""
    return httpx.get(f"{served.url.rstrip('/')}{path}", timeout=60)


def hit_afresh(served, times, rule):
    for _ in range(times):
        httpx.post(f"{served.url}v1/hit", json={"key": "ada", "rule": rule}, timeout=60)


def test_every_worker_speaks_for_all_of_them(workers):
    before = ask_afresh(workers, "/v1/live").json()
    counted = Page(ask_afresh(workers, "/metrics").text).decisions.get(("", "", "admitted"), 0)
    hit_afresh(workers, 12, "fixed-window 1000/day")
    for _ in range(6):
        page = Page(ask_afresh(workers, "/metrics").text)
        assert page.decisions["", "", "admitted"] == counted + 12
        assert page.of("ratekeeper_store_up") == 1
        assert page.of("ratekeeper_limit")["api", "user"] == 3
        assert ask_afresh(workers, "/v1/live").json()["admitted"] == before["admitted"] + 12
    until(lambda: [each["cost"] for each in ask_afresh(workers, "/v1/top").json()["keys"]] == [12], "both are told")


def test_what_was_counted_by_a_worker_that_does_not_answer_is_there(workers):
    one, _ = workers.workers
    hit_afresh(workers, 4, "fixed-window 1000/day")
    before = Page(ask_afresh(workers, "/metrics").text).decisions
    os.kill(one, signal.SIGSTOP)
    try:
        pages = []

        def ask():
            with httpx.Client(timeout=1) as client:
                try:
                    pages.append(Page(client.get(f"{workers.url}metrics").text))
                except httpx.TimeoutException:
                    return False
            return True

        until(ask, "the other worker answers")
        assert pages[-1].decisions == before
    finally:
        os.kill(one, signal.SIGCONT)


def test_of_a_worker_that_gives_no_sign_of_life_only_what_it_counted_is_shown(tmp_path):
    dead = Slab(tmp_path, 1, clock=lambda: 0)
    for family, labels, number in ((WAITING, (), 5), (STORE_UP, (), 0), (STORE_CALLS, ("ok",), 7)):
        dead.cells[dead.at(family, labels)] = number
    figures = Figures(MemoryStore(), Worker(0, 2, tmp_path))
    figures.refresh()
    shown = {(sample.family, sample.labels): sample.values for sample in figures.samples()}
    assert [shown[WAITING, ()], shown[STORE_UP, ()], shown[STORE_CALLS, ("ok",)]] == [[0], [1], [7]]
    alive = Slab(tmp_path, 1)
    shown = {(sample.family, sample.labels): sample.values for sample in figures.samples()}
    assert [shown[WAITING, ()], shown[STORE_UP, ()], shown[STORE_CALLS, ("ok",)]] == [[5], [0], [7]]
    for each in (dead, alive, figures):
        each.close()


def test_without_room_for_its_files_a_worker_counts_for_itself_and_says_so(tmp_path, caplog):
    missing = tmp_path / "missing"
    figures = Figures(MemoryStore(), Worker(0, 2, missing))
    assert "the figures of worker 1 are not shared" in caplog.text
    figures.note_reload("ok")
    counts = {sample.labels: sample.values for sample in figures.samples() if sample.family is POLICIES_RELOADS}
    assert counts == {("ok",): [1], ("error",): [0]}


def test_a_store_on_redis_shows_its_batches_and_remembered_denials():
    served = Served(servers.shared(servers.newest()).url, "--deadline", "30")
    key = f"metrics {os.getpid()} {threading.get_ident()}"
    batch = [{"key": f"{key} {number}", "rule": "fixed-window 1/day"} for number in range(20)]
    try:
        for _ in range(3):
            served.ask("POST", "/v1/hit/batch", json={"requests": batch})
        page = page_of(served)
        assert page.decisions == {("", "", "admitted"): 20, ("", "", "denied"): 40}
        assert page.of("ratekeeper_remembered_denials_total") == 20
        assert page.of("ratekeeper_batch_size_sum") == 40
        assert page.of("ratekeeper_store_calls_total") == {
            ("error",): 0,
            ("ok",): page.of("ratekeeper_batch_size_count"),
        }
    finally:
        served.stop()
