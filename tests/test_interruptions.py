"""What an interruption at the worst moment must not leave behind."""

import _thread
import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import uuid

import pytest

from ratekeeper import (
    AsyncLimiter,
    FixedWindow,
    Limiter,
    RateLimited,
    SlidingWindowLog,
    StoreUnavailable,
    TokenBucket,
)
from ratekeeper.stores import MemoryStore
from ratekeeper.testing import ManualClock
from tests import inside, points, servers
from tests.waiters import PATIENCE, until_async, untraced


class InterruptsWhenGone:
    """Interrupts the main thread at the moment that a lock's only item is deleted."""

    __del__ = staticmethod(_thread.interrupt_main)


@pytest.mark.parametrize("call", [lambda limiter: limiter.hit("a"), lambda limiter: limiter.peek("a")])
def test_an_interruption_just_after_a_contended_entry_leaves_the_lock_free(call):
    limiter = Limiter("100/s")
    limiter.hit("a")
    free = inside.lock(limiter.store).free
    del free[0]  # as if another thread were inside; when it leaves, the next to enter is interrupted at once
    leave = threading.Timer(0.01, lambda: free.setdefault(0, InterruptsWhenGone()))
    with untraced():
        leave.start()
        with pytest.raises(KeyboardInterrupt):
            call(limiter)
    assert 0 in free


def test_a_shaped_wait_that_is_dropped_as_garbage_does_not_enter_the_store_that_is_being_used():
    script = """
import asyncio, faulthandler, gc
from ratekeeper import AsyncLimiter, LeakyBucket
limiter = AsyncLimiter(LeakyBucket(10, 1, "shaping"))
loop = asyncio.new_event_loop()
async def leave_one_waiting():
    await limiter.hit("k")
    asyncio.ensure_future(limiter.wait("k"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
gc.disable()
loop.run_until_complete(leave_one_waiting())
loop.close()
del loop
faulthandler.dump_traceback_later(20, exit=True)
limiter.store._lock.call(gc.collect)
print("went on")
"""
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert finished.stdout == "went on\n"


def test_keys_that_were_reset_take_no_room_from_others():
    store = MemoryStore(max_keys=100)
    limiter = Limiter(TokenBucket(100, 1), store, clock=ManualClock())
    for number in range(90):
        limiter.hit(f"login:{number}", cost=100)
        limiter.reset(f"login:{number}")
    for number in range(100):
        limiter.hit(f"other:{number}")
    assert (store.size, store.evictions) == (100, 0)


def test_a_wait_that_ran_out_of_time_is_refused_with_a_denial():
    async def main():
        clock = ManualClock()
        limiter = AsyncLimiter(TokenBucket(10, 1), clock=clock)
        await limiter.hit("k", cost=5)
        first = asyncio.create_task(limiter.wait("k", cost=10))
        second = asyncio.create_task(limiter.wait("k", cost=1, timeout=6.5))
        await until_async(lambda: len(inside.queues(limiter).by_name) == 1, "both in the queue")
        await asyncio.sleep(0)
        await limiter.hit("k", cost=3)
        clock.advance(6.5)
        with pytest.raises(RateLimited) as refusal:
            await second
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        return refusal.value.decision

    assert not asyncio.run(main()).allowed
    gc.collect()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # other tests may have left threads
@pytest.mark.parametrize("store", ["memory", "sqlite", "redis"])
def test_a_child_forked_by_a_handler_in_the_middle_of_a_call_does_not_take_the_parent_s_answer(store, tmp_path):
    url = {
        "memory": lambda: "memory://",
        "sqlite": lambda: f"sqlite:///{tmp_path / 'limits.db'}",
        "redis": lambda: servers.shared(servers.newest()).url,
    }[store]()
    rules = {"window": FixedWindow(10**6, "30d"), "log": SlidingWindowLog(10**6, "30d")}
    limiter = Limiter(rules, url, prefix=f"test {uuid.uuid4()}", on_error="raise", deadline=10)
    limiter.hit("a")
    parent = os.getpid()
    answers = []
    children = []

    def call():
        try:
            answers.append(limiter.hit("a"))
        except StoreUnavailable:  # in a child whose connection was the parent's
            if os.getpid() == parent:
                raise

    def fork():
        child = os.fork()
        children.append(child)
        if not child:
            signal.alarm(PATIENCE)

    with untraced(), points.handled_by(fork):
        for point in range(0, points.count(call), 9):
            status = 1
            try:
                points.at(point, call)
                status = 0
            finally:
                if os.getpid() != parent:
                    os._exit(status)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * len(children)
    assert len(children) > 5
    hits = 2 + len(children)
    remaining = [10**6 - answer.remaining for answer in answers]
    assert remaining == sorted(remaining)
    assert hits <= 10**6 - limiter.peek("a").remaining <= hits + len(children)
    limiter.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_a_fork_that_a_signal_handler_interrupts_leaves_no_store_closed_to_the_parent_or_the_child(tmp_path):
    script = """
import os, sys
from ratekeeper import Limiter
from tests import points
from tests.waiters import Call

def told(limiter):
    return Call(limiter.hit, "key").outcome().allowed  # by another thread

sys.unraisablehook = lambda _: None  # Python ignores what is raised while it forks
stores = ["memory://", f"sqlite:///{sys.argv[1]}/a.db", f"sqlite:///{sys.argv[1]}/b.db"]
limiters = [Limiter("1000000/hour", store, on_error="raise", deadline=20) for store in stores]
parent = os.getpid()
for point in range(0, 10_000, 3):
    assert all(map(told, limiters))
    with points.handled_by(points.interrupt):
        try:
            is_reached = points.at(point, os.fork)
        except points.Interruption:
            is_reached = True
    if os.getpid() != parent:
        os._exit(0 if all(map(told, limiters)) else 1)
    assert os.wait()[1] == 0
    if not is_reached:
        break
print(point > 50)
"""
    finished = subprocess.run(
        [sys.executable, "-c", script, tmp_path], capture_output=True, text=True, timeout=100, check=False
    )
    assert (finished.stdout, finished.stderr) == ("True\n", "")
