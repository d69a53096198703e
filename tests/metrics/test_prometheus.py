"""`ratekeeper.metrics.prometheus`: the figures of limiters in a registry."""

import asyncio
import gc
import os
import random
import subprocess
import sys
import threading
from collections import Counter

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from ratekeeper import AsyncLimiter, FixedWindow, Limiter, RateLimited
from ratekeeper.metrics import prometheus
from ratekeeper.metrics.families import MORE
from ratekeeper.policies import Policies
from ratekeeper.stores import MemoryStore, SqliteStore
from ratekeeper.testing import ManualClock
from tests import servers
from tests.metrics.figures import Page
from tests.waiters import Call, until

POLICIES = """
[[policies.api.rules]]
name = "user"
limit = "fixed-window 3/minute"
key = "{user}"
[[policies.api.rules]]
name = "all"
limit = "fixed-window 40/minute"
key = "all"
cost = "{cost|1}"
[[policies.api.rules]]
name = "tried"
limit = "fixed-window 2/minute"
key = "{user}"
shadow = true
[[policies.api.overrides]]
when = { plan = "free" }
limits = { user = "blocked" }
[[policies.api.overrides]]
when = { plan = "staff" }
limits = "unlimited"
[[policies.api.overrides]]
when = { plan = "banned" }
limits = "blocked"
"""


@pytest.fixture
def registry():
    return CollectorRegistry()


@pytest.fixture
def page(registry):
    return lambda: Page(generate_latest(registry).decode())


def test_decisions_are_counted_by_rule_and_outcome(registry, page):
    limiter = Limiter({"user": FixedWindow(2, 60), "all": FixedWindow(9, 60)})
    prometheus(limiter, registry=registry)
    for cost in (1, 1, 1, {"all": 9}):
        limiter.hit("a", cost)
    assert page().decisions == {("", "user", "admitted"): 2, ("", "user", "denied"): 2}
    assert page().of("ratekeeper_limit") == {("", "all"): 9, ("", "user"): 2}
    assert page().of("ratekeeper_degraded_total") == {("",): 0}


def independently(decision):
    """Return the names of what one decision counts, told from the decision alone."""
    result = {(True, True): "unlimited", (True, False): "admitted", (False, False): "denied", (False, True): "blocked"}
    yield decision.rule, result[decision.allowed, not decision.limit]
    for rule in decision.shadow_denied:
        yield rule, "shadow_denied"


def test_mixed_decisions_by_a_policy_agree_with_an_independent_count_in_many_threads(registry, page):
    limiter = Policies.load(POLICIES).limiter("api", clock=ManualClock())
    prometheus(limiter, registry=registry)
    counts = [Counter() for _ in range(4)]

    def hit(count, dice):
        for _ in range(500):
            request = {
                "user": dice.randrange(30),
                "plan": dice.choice(["pro", "pro", "pro", "free", "staff", "banned"]),
            }
            count.update(independently(limiter.hit(request, dice.randrange(1, 3))))

    threads = [threading.Thread(target=hit, args=(count, random.Random(seed))) for seed, count in enumerate(counts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = {("api", *named): times for named, times in sum(counts, Counter()).items()}
    assert page().decisions == expected
    assert {outcome for _, _, outcome in expected} == {"admitted", "denied", "unlimited", "blocked", "shadow_denied"}
    assert page().of("ratekeeper_decision_seconds_count") == {("api", "library"): 2_000}


def test_what_is_blocked_or_unlimited_as_a_whole_has_no_rule(registry, page):
    limiter = Policies.load(POLICIES).limiter("api")
    prometheus(limiter, registry=registry)
    for plan in ("staff", "banned", "free"):
        limiter.hit({"user": 1, "plan": plan})
    assert page().decisions == {
        ("api", "", "unlimited"): 1,
        ("api", "", "blocked"): 1,
        ("api", "user", "blocked"): 1,
        ("api", "tried", "shadow_denied"): 1,  # a ban is tried out by the rules that are
    }


def test_the_time_of_a_hit_is_counted_and_that_of_a_wait_is_not(registry, page):
    limiter = Limiter("fixed-window 2/day")
    prometheus(limiter, registry=registry)
    limiter.hit("a")
    limiter.wait("a")
    with pytest.raises(RateLimited):
        limiter.wait("a", timeout=0)
    seconds = page().of("ratekeeper_decision_seconds_bucket")
    assert [seconds["", "library", bound] for bound in ("1.0", "+Inf")] == [1, 1]
    assert 0 < page().of("ratekeeper_decision_seconds_sum")["", "library"] < 60
    assert page().decisions == {
        ("", "fixed-window 2/day", "admitted"): 2,
        ("", "fixed-window 2/day", "denied"): 1,
    }


def test_the_figures_of_stores(registry, page, tmp_path):
    full = Limiter("9/day", MemoryStore(max_keys=2))
    on_redis = Limiter(FixedWindow(1, 600), servers.shared(servers.newest()).url, prefix=tmp_path.name)
    for limiter in (full, on_redis):
        prometheus(limiter, registry=registry)
        for key in "aaabc":
            limiter.hit(key)
    on_redis.close()
    shown = page()
    assert shown.of("ratekeeper_store_up") == 1
    assert shown.of("ratekeeper_keys") == 2
    assert shown.of("ratekeeper_evictions_total") == 1
    assert shown.of("ratekeeper_remembered_denials_total") == 1
    assert shown.of("ratekeeper_store_calls_total") == {("error",): 0, ("ok",): 4}
    assert shown.of("ratekeeper_batch_size_bucket") == {("1.0",): 4} | {
        (bound,): 4 for bound in ("2.0", "4.0", "8.0", "16.0", "32.0", "64.0", "128.0", "+Inf")
    }
    assert shown.of("ratekeeper_batch_size_sum") == 4


def test_a_store_that_is_away_shows(registry, page):
    limiter = Limiter("9/day", f"redis://127.0.0.1:{servers.free_port()}", deadline=1)
    prometheus(limiter, policy="billing", registry=registry)
    assert limiter.hit("a").degraded
    assert page().of("ratekeeper_store_up") == 0
    assert page().of("ratekeeper_degraded_total") == {("billing",): 1}
    assert page().of("ratekeeper_store_calls_total") == {("error",): 1, ("ok",): 0}
    limiter.close()


def test_callers_that_wait_show(registry, page):
    limiter = Limiter("fixed-window 1/day")
    prometheus(limiter, registry=registry)
    limiter.hit("a")
    calls = [Call(limiter.wait, "a") for _ in range(2)]
    until(lambda: page().of("ratekeeper_waiting") == 2, "both wait")
    for left in (1, 0):
        limiter.reset("a")
        until(lambda left=left: page().of("ratekeeper_waiting") == left, "one is admitted")
    for call in calls:
        assert call.outcome().allowed


def test_limiters_are_told_apart_by_the_policy_and_a_limiter_counts_once(registry, page):
    first, second = Limiter("9/day"), Limiter("9/day")
    for _ in range(2):
        prometheus(first, policy="first", registry=registry)
        prometheus(second, policy="second", registry=registry)
    first.hit("a")
    second.hit("a")
    name = "sliding-window-counter 9/day"
    assert page().decisions == {("first", name, "admitted"): 1, ("second", name, "admitted"): 1}


def test_what_a_limiter_counted_stays_when_it_is_gone(registry, page):
    limiter = Limiter("1/day", MemoryStore(max_keys=1))
    prometheus(limiter, registry=registry)
    for key in "aab":
        limiter.hit(key)
    before = page().decisions
    del limiter
    gc.collect()
    assert page().decisions == before != {}
    assert page().of("ratekeeper_evictions_total") == 1
    assert page().of("ratekeeper_keys") is None
    assert page().of("ratekeeper_limit") is None


def test_async_limiters_are_counted(registry, page):
    async def main():
        limiter = AsyncLimiter("2/day")
        prometheus(limiter, registry=registry)
        for _ in range(3):
            await limiter.hit("a")

    asyncio.run(main())
    name = "sliding-window-counter 2/day"
    assert page().decisions == {("", name, "admitted"): 2, ("", name, "denied"): 1}


def test_rules_without_end_take_a_bounded_number_of_series(registry, page, monkeypatch):
    monkeypatch.setattr("ratekeeper.metrics.tallies.MAX_SERIES", 10)
    for number in range(1, 20):
        limiter = Limiter(FixedWindow(number, 60), MemoryStore())
        prometheus(limiter, registry=registry)
        limiter.hit("a")
    shown = page()
    assert len(shown.decisions) < 10
    assert shown.decisions[MORE, MORE, MORE] == 19 - (len(shown.decisions) - 1)


def test_only_a_limiter_has_metrics(registry):
    with pytest.raises(TypeError, match="metrics need a Limiter or an AsyncLimiter, not str"):
        prometheus("100/minute", registry=registry)


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)


def test_without_limiters_those_of_the_whole_process_are_counted():
    done = run("""
import prometheus_client
from ratekeeper import Limiter
from ratekeeper.metrics import prometheus
before = Limiter("5/day")
prometheus()
after = Limiter("6/day")
for limiter in (before, after):
    limiter.hit("a")
prometheus(after)
after.hit("a")
print(prometheus_client.generate_latest().decode())
""")
    assert done.stderr == ""
    assert Page(done.stdout).decisions == {
        ("", "sliding-window-counter 5/day", "admitted"): 1,
        ("", "sliding-window-counter 6/day", "admitted"): 2,
    }


def test_importing_metrics_loads_no_exporter():
    done = run("import sys, ratekeeper.metrics; print(*sys.modules)")
    assert set(done.stdout.split()) & {"prometheus_client", "opentelemetry", "asyncio"} == set()


@pytest.mark.parametrize("name", ["prometheus", "opentelemetry"])
def test_a_missing_exporter_says_what_to_install(name):
    package = {"prometheus": "prometheus_client", "opentelemetry": "opentelemetry"}[name]
    done = run(f"import sys; sys.modules['{package}'] = None; from ratekeeper.metrics import {name}; {name}()")
    assert f"pip install 'ratekeeper[{name}]'" in done.stderr.splitlines()[-1]


def test_a_clash_with_a_metric_of_the_application_is_told_at_once(registry):
    prometheus_client.Counter("ratekeeper_decisions", "our own", registry=registry)
    with pytest.raises(ValueError, match="ratekeeper_decisions"):
        prometheus(Limiter("1/s"), registry=registry)


def test_a_forked_child_counts_for_itself(registry, page):
    limiter = Limiter("9/day")
    prometheus(limiter, registry=registry)
    limiter.hit("a")
    child = os.fork()
    if child == 0:
        before = page().decisions
        limiter.hit("a")
        limiter.hit("a")
        os._exit(0 if before == {} and list(page().decisions.values()) == [2] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert list(page().decisions.values()) == [1]


def test_a_store_in_a_file_shows_its_calls(registry, page, tmp_path):
    store = SqliteStore(tmp_path / "limits.db")
    limiter = Limiter("9/day", store)
    prometheus(limiter, registry=registry)
    limiter.hit("a")
    assert page().of("ratekeeper_store_calls_total") == {("error",): 0, ("ok",): 1}
    assert page().of("ratekeeper_keys") is None
    store.close()
