"""A short form of each drill of `make torture`: the same outcomes and exact totals."""

import inspect
import re
import sys

import pytest

from ratekeeper import StoreUnavailable
from ratekeeper.stores import filelock
from tests.torture import crowds
from tests.torture.__main__ import DRILLS, main
from tests.torture.redis import rules_of
from tests.waiters import untraced

FEW = {"threads": 20, "tasks": 100, "seconds": 0.1}
SHORT = {
    "signals": {"hits": 5_000},
    "fork": {"times": 10},
    "threads": {"count": 16, "hits": 200},
    "clock": {"rounds": 600},
    "flood": {"keys": 80_000, "room": 5_000, "traced": 40_000},
    "interruptions": {"tries": 300, "seed": 1},
    "exact_file": {"processes": 8, "hits": 100, "limit": 400},
    "killed_file": {"kills": 30},
    "exact": {"processes": 2, "hits": 600, "limit": 1_000},
    "cancelled": {"tasks": 2_000},
    "concurrent": {"callers": 5_000},
    "killed": {"rounds": 1},
    "frozen": {"rounds": 1},
    "sentinel_failover": {"threads": 2},
    "cluster_failover": {"threads": 2},
    "migrating": {"slots": 4, "threads": 2, "tasks": 4},
    "lost_replies": {"lone": 10, "batched": 50},
    "slow_link": {"threads": 20, "tasks": 100, "seconds": 0.3},
    "black_hole": {"threads": 20, "tasks": 100, "seconds": 0.5},
    "flapping": {"threads": 20, "tasks": 100, "flaps": 1, "period": 0.2},
    "restart_empty": {"restarts": 1, "limit": 100},
    "full": FEW,
    "loading": FEW,
    "busy": FEW,
    "readonly": FEW,
    "password": FEW,
    "mixed": {"hits": 400, "limit": 500},
    "signals_redis": {"hits": 1_000, "limit": 50},
    "fork_redis": {"times": 5, "hits": 10},
    "waiters": {"count": 300, "rate": 300},
    "million": {"keys": 20_000, "sample": 500},
    "fuzzed": {"keys": 5_000},
    "headers": {"requests": 2_000},
    "killed_service": {"rounds": 1, "clients": 4},
    "policy_files": {"count": 100, "first": 1_000},
    "figures": {"decisions": 2_000},
    "changes": {"rounds": 1, "rate": 200},
    "reloads": {"rounds": 2, "rate": 200},
}


def test_every_drill_has_a_short_form():
    assert SHORT.keys() == DRILLS.keys()


@pytest.mark.parametrize("name", ["exact", "mixed"])
def test_the_long_form_uses_valid_rules(name):
    limit = inspect.signature(DRILLS[name]).parameters["limit"].default
    assert [rule.limit for rule in rules_of(limit)] == [limit] * 6


def test_an_error_counts_as_a_broken_promise_and_the_other_drills_still_run(monkeypatch, capsys):
    def fail():
        raise StoreUnavailable("Redis is away")

    monkeypatch.setattr(crowds, "tolerance", crowds.tolerance)
    monkeypatch.setattr(crowds, "quiet", crowds.quiet)
    monkeypatch.setattr(sys, "argv", ["make torture", "first", "second"])
    monkeypatch.setitem(DRILLS, "first", fail)
    monkeypatch.setitem(DRILLS, "second", lambda: "well")
    assert main() == 1
    first, second, total = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"first +BROKEN +\d+\.\d s  StoreUnavailable\('Redis is away'\)", first)
    assert re.fullmatch(r"second +kept +\d+\.\d s  well", second)
    assert total == "1 passed, 1 failed"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_without_its_lock_the_file_would_not_be_exact(monkeypatch):
    monkeypatch.setattr(filelock.fcntl, "flock", lambda _file, _how: None)
    with untraced(), pytest.raises(AssertionError, match=r"admitted of|processes failed"):
        DRILLS["exact_file"](processes=8, hits=1_000, limit=2_000)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # a fork of a process with threads is the point of one
@pytest.mark.parametrize("name", SHORT)
def test_a_drill_keeps_its_promise(name):
    with untraced():
        assert DRILLS[name](**SHORT[name])
