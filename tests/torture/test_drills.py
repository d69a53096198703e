"""Each drill of `make torture` in short: outcomes and exact totals, as in the long form."""

import pytest

from tests.torture import clusters, memory, redis
from tests.waiters import untraced

SHORT = {
    "signals": {"hits": 5_000},
    "fork": {"times": 10},
    "threads": {"count": 16, "hits": 200},
    "clock": {"rounds": 600},
    "flood": {"keys": 40_000, "room": 5_000},
    "exact": {"processes": 2, "hits": 600, "limit": 1_000},
    "cancelled": {"tasks": 2_000},
    "concurrent": {"callers": 5_000},
    "killed": {"rounds": 1},
    "frozen": {"rounds": 1},
    "sentinel_failover": {"threads": 2},
    "cluster_failover": {"threads": 2},
    "migrating": {"slots": 4, "threads": 2, "tasks": 4},
}
DRILLS = {**memory.DRILLS, **redis.DRILLS, **clusters.DRILLS}


def test_every_drill_has_a_short_form():
    assert SHORT.keys() == DRILLS.keys()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # a fork of a process with threads is the point of one
@pytest.mark.parametrize("name", SHORT)
def test_the_promise_of_a_drill_is_kept(name):
    with untraced():
        assert DRILLS[name](**SHORT[name])
