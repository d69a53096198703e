import os
import subprocess
import sys
import threading

import pytest

from ratekeeper import Limiter
from ratekeeper.stores import MemoryStore
from ratekeeper.stores.gate import Gate, _open_all


def test_a_gate_is_free_again_after_the_section():
    gate = Gate()
    assert gate.alone(lambda: bool(gate.free)) is False
    assert gate.free


def test_a_gate_is_free_again_after_an_error():
    gate = Gate()
    with pytest.raises(ZeroDivisionError):
        gate.alone(lambda: 1 / 0)
    assert gate.free


def test_one_thread_at_a_time_is_inside():
    gate = Gate()
    start = threading.Barrier(8)
    total = [0]

    def add_one():
        before = total[0]
        total[0] = before + 1

    def add():
        start.wait()
        for _ in range(2_000):
            gate.alone(add_one)

    threads = [threading.Thread(target=add) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert total == [16_000]


def test_whoever_finds_the_gate_shut_enters_once_it_is_free():
    gate = Gate()
    order = []
    waiting = threading.Event()

    def enter():
        waiting.set()
        gate.alone(order.append, "second")

    thread = threading.Thread(target=enter)

    def let_another_wait():
        thread.start()
        waiting.wait()
        order.append("first")

    gate.alone(let_another_wait)
    thread.join()
    assert order == ["first", "second"]


class ShutFor(dict):
    """What a gate's `free` looks like while another thread is inside for this many tries."""

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
    gate = Gate()
    gate.free = ShutFor(tries)
    assert gate.alone(lambda: (gate.free.tries, bool(gate.free))) == (-1, False)
    assert gate.free


def test_a_hit_waits_for_the_gate_of_its_store():
    store = MemoryStore()
    store._gate.free = ShutFor(0)
    limiter = Limiter("fixed-window 10/minute", store)
    store._gate.free.tries = 3
    assert limiter.hit("a").remaining == 9
    assert store._gate.free.tries == -1
    assert store._gate.free


def test_after_a_fork_all_gates_are_opened():
    gate = Gate()
    gate.free.clear()
    _open_all()
    assert gate.free


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_finds_the_gate_open():
    script = """
import os
from ratekeeper.stores.gate import Gate
gate = Gate()

def fork():
    child = os.fork()
    if child == 0:
        os._exit(7 if gate.free else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), bool(gate.free))

gate.alone(fork)
"""
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (finished.stdout, finished.stderr) == ("7 False\n", "")
