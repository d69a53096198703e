"""Where time comes from: ManualClock, injected callables, and nothing else."""

import ast
import math
import time
import uuid
from datetime import timedelta
from fractions import Fraction
from pathlib import Path

import pytest

import ratekeeper
from ratekeeper import FixedWindow, Limiter, StoreUnavailable, TokenBucket
from ratekeeper.algorithms import ALGORITHMS
from ratekeeper.clock import stopwatch, wall_clock
from ratekeeper.testing import ManualClock
from tests import servers
from tests.faces import FACES

SOURCE = Path(ratekeeper.__file__).parent
CLOCK_READS = {
    "time": {
        *("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"),
        *("process_time", "process_time_ns", "thread_time", "thread_time_ns", "clock_gettime", "clock_gettime_ns"),
        *("localtime", "gmtime", "ctime", "strftime"),
    },
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
}


def test_a_manual_clock_starts_at_a_fixed_time():
    assert ManualClock()() == 1_700_000_000_000_000_000


@pytest.mark.parametrize("start", [5, 5.0, Fraction(5), timedelta(seconds=5)])
def test_a_manual_clock_starts_where_it_is_told_to(start):
    assert ManualClock(start)() == 5_000_000_000


def test_a_manual_clock_gives_integer_nanoseconds():
    assert type(ManualClock(0.5)()) is int


def test_a_manual_clock_stands_still():
    clock = ManualClock()
    assert clock() == clock()


@pytest.mark.parametrize(
    ("amount", "microseconds"),
    [
        (1, 1_000_000),
        (0, 0),
        (0.1, 100_000),
        (1e-6, 1),
        (0.000_001_4, 1),
        (59.999_999, 59_999_999),
        (Fraction(1, 8), 125_000),
        (Fraction(1, 3), 333_333),
        (timedelta(milliseconds=250), 250_000),
        (timedelta(microseconds=1), 1),
        (timedelta(days=400), 34_560_000_000_000),
        (-1, -1_000_000),
        (-0.25, -250_000),
        (timedelta(microseconds=-1), -1),
    ],
)
def test_advance_is_exact_to_the_microsecond(amount, microseconds):
    clock = ManualClock(1_700_000_000)
    clock.advance(amount)
    assert clock() == 1_700_000_000_000_000_000 + microseconds * 1_000


def test_a_tenth_of_a_second_ten_times_is_exactly_a_second():
    clock = ManualClock(0)
    for _ in range(10):
        clock.advance(0.1)
    assert clock() == 1_000_000_000


def test_a_microsecond_a_million_times_is_exactly_a_second():
    clock = ManualClock(0)
    for _ in range(1_000_000):
        clock.advance(0.000001)
    assert clock() == 1_000_000_000


@pytest.mark.parametrize(
    ("moment", "nanoseconds"),
    [
        (0, 0),
        (1_700_000_000.123_456, 1_700_000_000_123_456_000),
        (Fraction(1, 4), 250_000_000),
        (timedelta(hours=1), 3_600_000_000_000),
        (10**12, 10**21),
    ],
)
def test_set_is_exact_to_the_microsecond(moment, nanoseconds):
    clock = ManualClock()
    clock.set(moment)
    assert clock() == nanoseconds


def test_set_may_step_back():
    clock = ManualClock(100)
    clock.set(50)
    assert clock() == 50_000_000_000


def test_repr_shows_the_time_in_seconds():
    assert repr(ManualClock(1.5)) == "ManualClock(1.5)"


def test_subscribers_are_called_after_every_move():
    clock = ManualClock(0)
    seen = []
    clock.subscribe(lambda: seen.append(clock()))
    clock.advance(1)
    clock.set(5)
    clock.advance(-1)
    assert seen == [1_000_000_000, 5_000_000_000, 4_000_000_000]


def test_who_has_unsubscribed_is_called_no_more():
    clock = ManualClock()
    seen = []
    unsubscribe = clock.subscribe(lambda: seen.append("moved"))
    clock.advance(1)
    unsubscribe()
    clock.advance(1)
    assert seen == ["moved"]


def test_unsubscribing_twice_is_harmless():
    clock = ManualClock()
    unsubscribe = clock.subscribe(lambda: None)
    unsubscribe()
    unsubscribe()
    clock.advance(1)


def test_the_same_callable_may_subscribe_twice_and_leave_once():
    clock = ManualClock()
    seen = []

    def moved():
        seen.append("moved")

    clock.subscribe(moved)
    unsubscribe = clock.subscribe(moved)
    unsubscribe()
    clock.advance(1)
    assert seen == ["moved"]


def test_a_subscriber_may_unsubscribe_while_it_is_told():
    clock = ManualClock()
    seen = []

    def once():
        seen.append("moved")
        unsubscribe()

    unsubscribe = clock.subscribe(once)
    clock.advance(1)
    clock.advance(1)
    assert seen == ["moved"]


def test_the_default_is_the_wall_clock_and_waits_are_measured_with_a_stopwatch():
    assert wall_clock is time.time_ns
    assert stopwatch is time.monotonic_ns
    assert Limiter("10/s").store._clock is time.time_ns  # noqa: SLF001 - which clock it is shows in no answer
    assert Limiter("10/s").timer is time.monotonic_ns


def test_any_callable_that_returns_nanoseconds_is_a_clock():
    now = [0]
    limiter = Limiter(TokenBucket(1, 1), clock=lambda: now[0])
    assert [limiter.hit("a").allowed, limiter.hit("a").allowed] == [True, False]
    now[0] = 999_999_999
    assert limiter.hit("a").retry_after == 0.000001
    now[0] = 1_000_000_000
    assert limiter.hit("a").allowed


def test_the_clock_is_read_once_for_a_decision():
    reads = []

    def clock():
        reads.append("read")
        return 0

    limiter = Limiter({"a": FixedWindow(5, 60), "b": TokenBucket(5, 1)}, clock=clock)
    limiter.hit("k")
    assert reads == ["read"]


def test_a_clock_that_steps_back_delays_a_key_and_its_times_stay_true():
    clock = ManualClock(1_700_000_000)
    limiter = Limiter(TokenBucket(capacity=2, refill_rate=1), clock=clock)
    limiter.hit("a", 2)
    clock.advance(-1)
    denied = limiter.hit("a")
    assert (denied.allowed, denied.retry_after) == (False, 2.0)
    clock.advance(2)
    assert limiter.hit("a").allowed


def test_a_key_written_further_ahead_than_it_takes_to_drain_counts_as_untouched():
    clock = ManualClock(1_700_000_000)
    limiter = Limiter(TokenBucket(capacity=2, refill_rate=1), clock=clock)
    limiter.hit("a", 2)
    clock.advance(-3)
    assert limiter.hit("a").remaining == 1


def clock_reads(path):
    """Find what reads a clock in a file: uses of the names above, and imports of them."""
    found = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
            if node.attr in CLOCK_READS.get(owner, ()):
                found.append(f"{path.name}:{node.lineno} {owner}.{node.attr}")
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            found += [
                f"{path.name}:{node.lineno} {name.name}" for name in node.names if name.name in CLOCK_READS["time"]
            ]
    return found


def test_nothing_but_the_clock_module_reads_a_clock():
    found = [read for path in sorted(SOURCE.rglob("*.py")) if path.name != "clock.py" for read in clock_reads(path)]
    assert found == []


def test_the_search_for_clock_reads_finds_those_of_the_clock_module():
    assert [read.split()[-1] for read in clock_reads(SOURCE / "clock.py")] == ["time.time_ns", "time.monotonic_ns"]


@pytest.fixture(params=["memory", "sqlite", "redis"])
def url(request, tmp_path):
    return {
        "memory": lambda: "memory://",
        "sqlite": lambda: f"sqlite:///{tmp_path / 'limits.db'}",
        "redis": lambda: servers.shared(servers.newest()).url,
    }[request.param]()


@pytest.mark.parametrize("face", FACES.values(), ids=FACES)
@pytest.mark.parametrize(
    "rule", [algorithm.of(3, 3_600_000_000) for algorithm in ALGORITHMS], ids=lambda rule: rule.text
)
def test_a_clock_that_shows_no_int_is_an_error_and_consumes_nothing(face, url, rule):
    now_ns = [1_700_000_000_000_000_000]
    limiter = face(rule, url, clock=lambda: now_ns[0], prefix=f"test {uuid.uuid4()}", on_error="raise", deadline=30)
    assert limiter.hit("a")
    for reading in (math.nan, math.inf, 1.7e18, None, "1700000000", Fraction(17, 10)):
        now_ns[0] = reading
        for method in ("hit", "peek", "charge", "take"):
            for key in ("a", "b", ("a", "b")):
                with pytest.raises((TypeError, StoreUnavailable), match="clock must return integer nanoseconds, not "):
                    getattr(limiter, method)(key)
    now_ns[0] = 1_700_000_000_000_000_001
    assert [limiter.peek(key).remaining for key in ("a", "b", ("a", "b"))] == [2, 3, 3]
    limiter.close()
