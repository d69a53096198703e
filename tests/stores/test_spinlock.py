import os
import subprocess
import sys
import threading

import pytest

from ratekeeper import Limiter, forks
from ratekeeper.stores import MemoryStore
from ratekeeper.stores.spinlock import SpinLock
from tests import inside


def test_a_lock_is_free_again_after_the_section():
    lock = SpinLock()
    assert lock.call(lambda: bool(lock.free)) is False
    assert lock.free


def test_a_lock_is_free_again_after_an_error():
    lock = SpinLock()
    with pytest.raises(ZeroDivisionError):
        lock.call(lambda: 1 / 0)
    assert lock.free


def test_one_thread_at_a_time_is_inside():
    lock = SpinLock()
    start = threading.Barrier(8)
    total = [0]

    def add_one():
        before = total[0]
        total[0] = before + 1

    def add():
        start.wait()
        for _ in range(2_000):
            lock.call(add_one)

    threads = [threading.Thread(target=add) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert total == [16_000]


def test_whoever_finds_the_lock_shut_enters_once_it_is_free():
    lock = SpinLock()
    order = []
    waiting = threading.Event()

    def enter():
        waiting.set()
        lock.call(order.append, "second")

    thread = threading.Thread(target=enter)

    def let_another_wait():
        thread.start()
        waiting.wait()
        order.append("first")

    lock.call(let_another_wait)
    thread.join()
    assert order == ["first", "second"]


class ShutFor(dict):
    """What a lock's `free` looks like while another thread is inside for this many tries."""

    def __init__(self, tries):
        super().__init__({0: True})
        self.tries = tries

    def __delitem__(self, key):
        self.tries -= 1
        if self.tries >= 0:
            raise KeyError(key)
        super().__delitem__(key)


@pytest.mark.parametrize("tries", [1, 2, 199, 200, 201, 230])
def test_a_long_section_is_waited_for_too(tries):
    lock = SpinLock()
    lock.free = ShutFor(tries)
    assert lock.call(lambda: (lock.free.tries, bool(lock.free))) == (-1, False)
    assert lock.free


def test_a_hit_waits_for_the_lock_of_its_store():
    store = MemoryStore()
    inside.lock(store).free = ShutFor(0)
    limiter = Limiter("fixed-window 10/minute", store)
    inside.lock(store).free.tries = 3
    assert limiter.hit("a").remaining == 9
    assert inside.lock(store).free.tries == -1
    assert inside.lock(store).free


def test_after_a_fork_all_locks_are_opened():
    lock = SpinLock()
    lock.free.clear()
    forks._renew_all()  # noqa: SLF001 - as a child does, but in this process
    assert lock.free


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_finds_the_lock_open():
    script = """
import os
from ratekeeper.stores.spinlock import SpinLock
lock = SpinLock()

def fork():
    child = os.fork()
    if child == 0:
        os._exit(7 if lock.free else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), bool(lock.free))

lock.call(fork)
"""
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (finished.stdout, finished.stderr) == ("7 False\n", "")
