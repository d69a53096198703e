"""Drills on the memory store. Each returns its figure, or raises AssertionError with what it saw instead."""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from ratekeeper import FixedWindow, LeakyBucket, Limiter, SlidingWindowCounter, SlidingWindowLog, TokenBucket
from ratekeeper.stores import MemoryStore
from ratekeeper.testing import ManualClock
from tests.torture import progress

RULES = (
    FixedWindow(1_000, 3_600),
    SlidingWindowLog(1_000, 3_600),
    SlidingWindowCounter(1_000, 3_600),
    TokenBucket(1_000, "1/day"),
    LeakyBucket(1_000, "1/day"),
    LeakyBucket(1_000, "1/day", "shaping"),
)


def flood(keys: int = 10_000_000, room: int = 100_000, traced: int = 1_000_000) -> str:
    """Ten million distinct keys through a store of 100,000: memory stays flat, and no heavy user is evicted.

    The first million are traced, in bytes; of the rest, for which that would take an hour, the interpreter counts the
    blocks of memory that are in use.
    """
    store = MemoryStore(max_keys=room)
    limiter = Limiter(FixedWindow(10, 86_400), store=store, clock=ManualClock())
    heavy = [f"heavy:{number}" for number in range(1_000)]
    for key in heavy:
        limiter.hit(key, cost=10)
    tracemalloc.start()
    held = _held(limiter, range(traced), room, lambda: tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    blocks = _held(limiter, range(traced, keys), room, sys.getallocatedblocks)
    freed = sum(limiter.peek(key).allowed for key in heavy)
    assert store.size <= room, f"{store.size:,} keys in a store of {room:,}"
    assert freed == 0, f"{freed} of {len(heavy)} exhausted keys were freed by fresh ones"
    grown, more_blocks = max(held) / held[0], max(blocks) / blocks[0]
    assert grown < 1.2, f"memory grew to {grown:.2f} of what the full store took"
    assert more_blocks < 1.2, f"{more_blocks:.2f} times the blocks of memory are in use"
    return (
        f"{keys:,} keys, {store.size:,} stored, {store.evictions:,} evicted, memory at most {grown:.2f} of a full "
        f"store, {more_blocks:.2f} of its blocks"
    )


def _held(limiter: Limiter, numbers: range, room: int, measure: Callable[[], int]) -> list[int]:
    """Hit as many keys, and measure now and then, once the store is full."""
    held = []
    for number in numbers:
        limiter.hit(f"fresh:{number}")
        if number % room == 0 and number > room:  # a dict that is copied into a larger one takes more for a moment
            held.append(measure())
        if number % 100_000 == 0:
            progress("flood", f"{number:,} keys")
    return held


def threads(count: int = 16, hits: int = 20_000) -> str:
    """Sixteen threads on one key admit exactly the limit, for each algorithm."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for rule in RULES:
            limiter = Limiter(rule)
            admitted = [0] * count

            def work(number: int, limiter: Limiter = limiter, admitted: list[int] = admitted) -> None:
                admitted[number] = sum(limiter.hit("one").allowed for _ in range(hits))

            workers = [threading.Thread(target=work, args=(number,)) for number in range(count)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            assert sum(admitted) == rule.limit, f"{rule.text}: {sum(admitted):,} admitted of {rule.limit:,}"
    finally:
        sys.setswitchinterval(interval)
    return f"{len(RULES)} rules, {count} threads x {hits:,} hits: exactly {RULES[0].limit:,} admitted by each"


def signals(hits: int = 200_000) -> str:
    """A signal handler that raises during decisions leaves the store usable and never admits more than the limit."""
    limiter = Limiter(FixedWindow(10**9, 86_400), clock=ManualClock())
    interrupted = admitted = 0

    class Alarm(Exception):
        pass

    def interrupt(_: int, frame: FrameType | None) -> None:
        if frame is not None and "ratekeeper" in Path(frame.f_code.co_filename).parts:  # inside a decision
            raise Alarm

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        for _ in range(hits):
            try:
                admitted += limiter.hit("one").allowed
            except Alarm:
                interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    answers: list[int] = []
    another = threading.Thread(target=lambda: answers.append(limiter.peek("one").remaining), daemon=True)
    another.start()
    another.join(10)
    assert answers, f"the store is stuck after {interrupted:,} interruptions"
    used = 10**9 - answers[0]
    assert admitted <= used <= admitted + interrupted, f"{admitted:,} admitted, {used:,} counted"
    return f"{hits:,} hits, {interrupted:,} interrupted, the store goes on"


def fork(times: int = 400) -> str:
    """Children forked while other threads are inside a full store, on rules of all kinds, can go on deciding."""
    store = MemoryStore(max_keys=100)
    limiters = [Limiter(rule, store) for rule in (*RULES, SlidingWindowLog(100, "10ms"))]
    running = True

    def hammer(number: int) -> None:
        for turn in itertools.count(number):
            if not running:
                return
            limiter = limiters[turn % len(limiters)]
            limiter.hit("one")
            limiter.refund("one")
            limiter.charge(turn)

    workers = [threading.Thread(target=hammer, args=(number,), daemon=True) for number in range(4)]
    for worker in workers:
        worker.start()
    stuck = 0
    try:
        for number in range(times):
            child = os.fork()
            if child == 0:
                _go_on(limiters, number)
            stuck += os.waitpid(child, 0)[1] != 0
    finally:
        running = False
        for worker in workers:
            worker.join()
    assert stuck == 0, f"{stuck} of {times} children could not decide"
    return f"{times} children forked from 4 busy threads, all decided on {len(limiters)} rules"


def _go_on(limiters: list[Limiter], number: int) -> None:
    """In a child: decide, and leave with 0 if each rule admits its limit on a new key, and no more."""
    status = 1
    try:
        signal.alarm(20)
        for limiter in limiters:
            (rule,) = limiter.rules.values()
            limiter.hit("one")
            if not limiter.hit(f"child {number}", rule.limit).allowed:
                return
            if limiter.hit(f"child {number}").allowed and rule.window_us > 10**6:
                return
        status = 0
    finally:
        os._exit(status)


def clock(rounds: int = 20_000) -> str:
    """A step back admits nothing more and delays by no more than itself; one beyond a span admits one limit, once."""
    chance = random.Random(1)
    for rule in RULES:
        now = ManualClock()
        limiter = Limiter(rule, clock=now)
        for key in map(str, range(rounds // len(RULES))):
            now.advance(chance.randrange(rule.span_us) / 1e6)
            assert limiter.hit(key, rule.limit), f"{rule.text}: a fresh key was denied"
            before = _microseconds(limiter.hit(key).retry_after)
            step = chance.randrange(1, rule.span_us // 2)
            now.advance(-step / 1e6)
            decision = limiter.hit(key)
            delayed = _microseconds(decision.retry_after)
            assert not decision, f"{rule.text}: a step back of {step} us admitted one more"
            assert delayed == before + step, f"{rule.text}: {delayed} us after a step back of {step}, {before} before"
            now.advance(-2 * rule.span_us / 1e6)
            assert limiter.hit(key, rule.limit), f"{rule.text}: a large step back was not forgiven"
            assert not limiter.hit(key), f"{rule.text}: a large step back gave more than one limit"
            now.advance((2 * rule.span_us + step) / 1e6)
    return f"{len(RULES)} rules, {rounds:,} keys, each exhausted and then taken back by up to two spans"


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6)


DRILLS = {"threads": threads, "signals": signals, "fork": fork, "clock": clock, "flood": flood}
