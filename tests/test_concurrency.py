"""Many threads, tasks, forks and signals at once: exactly the limit is admitted, and no caller is stuck."""

import asyncio
import gc
import os
import random
import signal
import sys
import threading
import time

import pytest

from ratekeeper import (
    AsyncLimiter,
    FixedWindow,
    LeakyBucket,
    Limiter,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
)
from ratekeeper.queues import Waiter
from ratekeeper.stores import MemoryStore
from ratekeeper.testing import ManualClock
from tests import inside, servers
from tests.waiters import PATIENCE, Call, until, untraced

LIMIT = 500
RULES = [
    FixedWindow(LIMIT, 60),
    SlidingWindowLog(LIMIT, 60),
    SlidingWindowCounter(LIMIT, 60),
    TokenBucket(LIMIT, 1),
    LeakyBucket(LIMIT, 1),
    LeakyBucket(LIMIT, 1, "shaping"),
]
THREADS = 16


@pytest.fixture(autouse=True)
def frequent_switches():
    """Let the interpreter switch threads as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(params=RULES, ids=lambda rule: rule.text)
def rule(request):
    return request.param


def in_threads(function, threads=THREADS):
    """Run a function in threads that begin together; return what each returned."""
    barrier = threading.Barrier(threads)

    def begin_together(number):
        barrier.wait(PATIENCE)
        return function(number)

    return [call.outcome() for call in [Call(begin_together, number) for number in range(threads)]]


def admitted(limiter, hits, key="k", cost=1):
    return sum(limiter.hit(key, cost).allowed for _ in range(hits))


def test_threads_on_one_key_are_admitted_exactly_the_limit(rule):
    limiter = Limiter(rule, clock=ManualClock())
    assert sum(in_threads(lambda number: admitted(limiter, 60))) == LIMIT
    assert limiter.peek("k").remaining == 0


def test_threads_with_different_costs_are_admitted_exactly_the_limit(rule):
    limiter = Limiter(rule, clock=ManualClock())
    taken = in_threads(lambda number: admitted(limiter, 30, cost=number % 3 + 1) * (number % 3 + 1))
    assert sum(taken) + limiter.peek("k").remaining == LIMIT
    assert limiter.peek("k").remaining < 3


def test_threads_on_keys_of_all_kinds_are_admitted_exactly_the_limit(rule):
    limiter = Limiter(rule, clock=ManualClock())
    keys = ["k", b"k", 7, ("k", 7)]
    taken = in_threads(lambda number: (number % 4, admitted(limiter, LIMIT // 3, key=keys[number % 4])))
    assert [sum(count for which, count in taken if which == number) for number in range(4)] == [LIMIT] * 4


def test_tasks_on_one_key_are_admitted_exactly_the_limit(rule):
    async def main():
        limiter = AsyncLimiter(rule, clock=ManualClock())

        async def hit():
            await asyncio.sleep(0)
            return (await limiter.hit("k")).allowed

        return sum(await asyncio.gather(*(hit() for _ in range(1000))))

    assert asyncio.run(main()) == LIMIT


def test_threads_and_tasks_on_one_store_are_admitted_exactly_the_limit(rule):
    store = MemoryStore()
    clock = ManualClock()
    blocking = Limiter(rule, store, clock=clock)
    awaited = AsyncLimiter(rule, store, clock=clock)

    async def main():
        async def hit():
            await asyncio.sleep(0)
            return (await awaited.hit("k")).allowed

        threads = [Call(admitted, blocking, 60) for _ in range(8)]
        tasks = sum(await asyncio.gather(*(hit() for _ in range(500))))
        return tasks + sum(thread.outcome() for thread in threads)

    assert asyncio.run(main()) == LIMIT


def test_threads_on_several_rules_are_admitted_exactly_the_smallest_limit_and_charged_alike():
    limiter = Limiter(
        {"a": FixedWindow(700, 60), "b": SlidingWindowLog(LIMIT, 60), "c": TokenBucket(600, 1)}, clock=ManualClock()
    )
    assert sum(in_threads(lambda number: admitted(limiter, 50))) == LIMIT
    layers = limiter.peek("k").layers
    assert {name: layer.remaining for name, layer in layers.items()} == {"a": 200, "b": 0, "c": 100}


def test_threads_that_share_one_layer_never_charge_the_other_for_what_was_denied():
    limiter = Limiter({"user": FixedWindow(100, 60), "all": TokenBucket(LIMIT, 1)}, clock=ManualClock())
    taken = in_threads(lambda number: admitted(limiter, 60, key={"user": number, "all": "all"}))
    assert sum(taken) == LIMIT
    used = [limiter.inspect({"user": number, "all": "all"})["user"].state["count"] for number in range(THREADS)]
    assert used == taken


def test_what_threads_take_and_give_back_comes_out_even(rule):
    limiter = Limiter(rule, clock=ManualClock())

    def take_and_give_back(number):
        for _ in range(40):
            if limiter.hit("k", 3):
                limiter.refund("k", 3)
            limiter.charge("k")
            limiter.refund("k")

    in_threads(take_and_give_back)
    assert limiter.peek("k").remaining == LIMIT


def test_threads_that_wait_are_all_admitted():
    limiter = Limiter(TokenBucket(capacity=10, refill_rate=100_000))
    assert sum(in_threads(lambda number: sum(limiter.wait("k").allowed for _ in range(10)))) == 160
    assert inside.queues(limiter).by_name == {}


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
ignore_fork_warning = pytest.mark.filterwarnings(
    "ignore:.*fork.*:DeprecationWarning"
)  # forking with threads is the point


def in_a_forked_child(function):
    """Return whether the function returns true in a forked child; an alarm ends a child that hangs."""
    with untraced():
        child = os.fork()
        if child == 0:
            done = False
            try:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(PATIENCE)
                done = bool(function())
            finally:
                os._exit(0 if done else 1)
    return os.waitpid(child, 0)[1] == 0


@needs_fork
@ignore_fork_warning
@pytest.mark.parametrize("operation", ["hit", "peek"])
def test_a_forked_child_goes_on_deciding_while_threads_of_its_parent_are_inside_the_store(operation):
    limiter = Limiter(TokenBucket(10**9, 1))
    stop = threading.Event()

    def hammer():
        while not stop.is_set():
            getattr(limiter, operation)("k")

    threads = [Call(hammer) for _ in range(4)]
    try:
        children = [in_a_forked_child(lambda: limiter.peek("k").limit and limiter.hit("k")) for _ in range(25)]
    finally:
        stop.set()
    for thread in threads:
        thread.outcome()
    assert children == [True] * 25


@needs_fork
@ignore_fork_warning
def test_a_forked_child_does_not_stand_in_line_behind_threads_of_its_parent():
    clock = ManualClock()
    limiter = Limiter(TokenBucket(1, 1), clock=clock)
    limiter.hit("k")
    waiter = Call(limiter.wait, "k")
    until(lambda: inside.queues(limiter).by_name, "one in the queue")

    def wait_in_the_child():
        clock.advance(1)
        return limiter.wait("k")

    assert in_a_forked_child(wait_in_the_child)
    clock.advance(1)
    assert waiter.outcome().allowed


class Interrupted(BaseException):
    """What the signal handler raises, as Ctrl-C does."""


@pytest.fixture
def interrupts():
    """Return a function that calls another one many times, and interrupts each call at a random moment."""
    armed = []

    def handler(number, frame):
        if armed:
            armed.clear()
            raise Interrupted

    def shake(function, times=1500):
        moments = random.Random(7)
        for _ in range(times):
            try:
                armed.append(True)
                signal.setitimer(signal.ITIMER_REAL, moments.uniform(1e-5, 1e-4))
                for _ in range(1000):  # until then; an exception in a finalizer is lost
                    function()
            except Interrupted:
                pass

    before = signal.signal(signal.SIGALRM, handler)
    gc.disable()  # an interruption in a callback of the collector, and Hypothesis has one, would be lost
    with untraced():
        yield shake
    armed.clear()
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    gc.enable()


needs_timers = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timers here")
PLENTY = TokenBucket(10**9, 10**6)


def others_can_go_on(limiter):
    call = Call(limiter.hit, "other")
    call.join(10)
    return not call.is_alive()


@needs_timers
@pytest.mark.parametrize(
    ("rules", "method"),
    [
        (PLENTY, "hit"),
        ({"a": PLENTY, "b": FixedWindow(10**9, 60)}, "hit"),
        (PLENTY, "peek"),
        (PLENTY, "charge"),
        (PLENTY, "refund"),
        (PLENTY, "reset"),
        (PLENTY, "inspect"),
    ],
    ids=["hit", "hit of two rules", "peek", "charge", "refund", "reset", "inspect"],
)
def test_a_call_that_a_signal_interrupts_leaves_the_store_usable(interrupts, rules, method):
    limiter = Limiter(rules)
    call = getattr(limiter, method)
    interrupts(lambda: call("k"))
    assert others_can_go_on(limiter)


@needs_timers
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a socket whose connect was interrupted
def test_an_inspection_on_redis_that_a_signal_interrupts_leaves_room_for_others(interrupts):
    with Limiter(PLENTY, servers.shared(servers.newest()).url, prefix="interrupted inspections") as limiter:
        interrupts(lambda: limiter.inspect("k"), times=300)
        assert all(call.outcome() for call in [Call(limiter.inspect, "k") for _ in range(4)])


@needs_timers
def test_hits_that_a_signal_interrupts_while_threads_compete_leave_the_store_usable(interrupts):
    limiter = Limiter(PLENTY)
    stop = threading.Event()

    def hammer():
        while not stop.is_set():
            limiter.hit("k")

    threads = [Call(hammer) for _ in range(2)]
    try:
        interrupts(lambda: limiter.hit("k"), times=300)
        assert others_can_go_on(limiter)
    finally:
        stop.set()
        inside.lock(limiter.store).free[0] = True  # so that a failure ends, too
    for thread in threads:
        thread.outcome()


@needs_timers
def test_a_wait_that_a_signal_interrupts_leaves_nobody_in_line(interrupts):
    limiter = Limiter(PLENTY)
    interrupts(lambda: limiter.wait("k", timeout=PATIENCE))
    assert inside.queues(limiter).by_name == {}
    assert others_can_go_on(limiter)


@needs_timers
def test_a_sleep_that_a_signal_interrupts_does_not_hold_up_who_wakes_the_sleeper(interrupts):
    interrupted = []

    def sleep():
        waiter = Waiter(time.monotonic_ns)
        try:
            waiter.sleep(1e-6)
        except Interrupted:
            interrupted.append(waiter)
            raise

    interrupts(sleep)
    wakes = Call(lambda: [waiter.wake() for waiter in interrupted])
    wakes.join(10)
    assert interrupted
    assert not wakes.is_alive()
