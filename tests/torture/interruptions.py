"""The drill on interruptions: signals, cancellations, forks and kill -9 at every point of every call, on every store.

Each try uses a key of its own, interrupts one call on it at one point, chosen at random, and then looks from another
thread: the key must stand as if the call had not been made, or as if it had.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import redis

from ratekeeper import (
    AsyncLimiter,
    FixedWindow,
    LeakyBucket,
    Limiter,
    SlidingWindowCounter,
    SlidingWindowLog,
    StoreUnavailable,
    TokenBucket,
)
from ratekeeper.stores import AsyncRedisStore, MemoryStore, RedisStore, SqliteStore
from ratekeeper.testing import ManualClock
from tests import points
from tests.servers import RedisServer, newest, programs
from tests.torture import progress
from tests.waiters import Call

LIMIT = 8
COST = 2
SHARED = b"what processes share"
ROOM = 100  # keys in a full store: some ten for each rule
YEAR = 365 * 86_400
STARTS = range(54 * YEAR, 55 * YEAR, 100)  # one for each try, each at the same place in the rules' windows
RULES: dict[str, Any] = {
    rule.text: rule
    for rule in (
        FixedWindow(LIMIT, 10),
        SlidingWindowLog(LIMIT, 10),
        SlidingWindowCounter(LIMIT, 10),
        TokenBucket(LIMIT, "1/s"),
        LeakyBucket(LIMIT, "1/s"),
        LeakyBucket(LIMIT, "1/s", "shaping"),
    )
} | {"two rules": {"log": SlidingWindowLog(LIMIT, 10), "bucket": TokenBucket(LIMIT, "1/s")}}
PATIENCE = 30  # seconds; only tells an answer from a hang
STRICT: dict[str, Any] = {"on_error": "raise", "deadline": PATIENCE}


def _take_and_give_back(limiter: Any, key: str) -> None:
    limiter.take(key, COST).give_back()


async def _take_and_give_back_async(limiter: Any, key: str) -> None:
    await (await limiter.take(key, COST)).give_back()


def _take_and_correct(limiter: Any, key: str) -> None:
    limiter.take(key, COST).correct(1)


async def _take_and_correct_async(limiter: Any, key: str) -> None:
    await (await limiter.take(key, COST)).correct(1)


def _two_hits(limiter: Any, key: str) -> None:
    for _ in range(2):
        limiter.hit(key)


async def _two_hits_async(limiter: Any, key: str) -> None:
    await asyncio.gather(*(limiter.hit(key) for _ in range(2)))


def _replace(limiter: Any, key: str) -> None:
    limiter.store.for_threads().replace_shared(key, b"", SHARED)


async def _replace_async(limiter: Any, key: str) -> None:
    replaced = limiter.store.for_asyncio().replace_shared(key, b"", SHARED)
    if not isinstance(replaced, bool):
        await replaced


# By name: the call, and calls that leave a key as an interruption of this one may leave it.
CALLS: dict[str, tuple[Callable[[Any, str], Any], list[str]]] = {
    "hit": (lambda limiter, key: limiter.hit(key, COST), []),
    "peek": (lambda limiter, key: limiter.peek(key, COST), []),
    "charge": (lambda limiter, key: limiter.charge(key, COST), []),
    "refund": (lambda limiter, key: limiter.refund(key, COST), []),
    "reset": (lambda limiter, key: limiter.reset(key), []),
    "take": (lambda limiter, key: limiter.take(key, COST), []),
    "take and give back": (_take_and_give_back, ["take"]),
    "take and correct": (_take_and_correct, ["take"]),
    "one hit": (lambda limiter, key: limiter.hit(key), []),
    "two hits": (_two_hits, ["one hit"]),
    "reset all": (lambda limiter, key: limiter.reset_all(), []),
    "replace": (_replace, []),
    "wait": (lambda limiter, key: limiter.wait(f"{key} waits", COST, timeout=PATIENCE), []),
    "inspect": (lambda limiter, key: limiter.inspect(key), []),
    "denied": (lambda limiter, key: limiter.hit(key, LIMIT), []),
}
IN_TASKS = {
    "take and give back": _take_and_give_back_async,
    "take and correct": _take_and_correct_async,
    "two hits": _two_hits_async,
    "replace": _replace_async,
}
BY_RULE = {"reset all"}  # the calls that are done for one rule after another
# By name: hits on a key before it is tried, each with the seconds until the next.
USES: dict[str, list[tuple[int, int]]] = {
    "untouched": [],
    "used": [(2, 4), (3, 1)],
    "partly expired": [(2, 4), (3, 7)],
}
Standing = list[list[tuple[Any, ...]]]  # for each rule


class Subject(NamedTuple):
    """A store that is tried, and its limiters."""

    name: str
    store: Any
    for_tasks: Any
    clock: ManualClock
    limiters: dict[str, Limiter]
    observers: dict[str, Limiter]
    """The same, on another store object of the same file or server."""
    other: Limiter
    """Hit by handlers in the middle of calls of the others."""

    @property
    def is_in_memory(self) -> bool:
        return isinstance(self.store, MemoryStore)


class Try(NamedTuple):
    """One call to interrupt."""

    subject: Subject
    rules: str
    call: str
    uses: str
    key: str
    chance: random.Random
    most: Counter[tuple[str, ...]]
    """How many points each call has."""
    answered: Counter[str]
    """How often handlers were answered by the store."""

    @property
    def limiter(self) -> Limiter:
        return self.subject.limiters[self.rules]

    def prepare(self, start: int) -> None:
        """Use the key."""
        _use(self.limiter, self.subject.clock, start, self.key, self.uses)

    def make(self) -> None:
        """Make the call."""
        CALLS[self.call][0](self.limiter, self.key)

    def make_in_a_task(self) -> None:
        """Make the call of an `AsyncLimiter`."""
        _loop.run_until_complete(self.coroutine())

    def coroutine(self) -> Any:
        call = IN_TASKS.get(self.call, CALLS[self.call][0])
        limiter = AsyncLimiter(RULES[self.rules], self.subject.for_tasks, clock=self.subject.clock, **STRICT)
        return call(limiter, self.key)

    def point(self, kind: str = "") -> int:
        """Choose a point of the call, or one that it does not have."""
        spare = self._replace(key=f"{self.key} spare")
        known = self.subject.name, self.rules, self.call, kind
        if known not in self.most:
            self.most[known] = points.count(spare.make_in_a_task if kind else spare.make)
        return self.chance.randrange(self.most[known] + 5)

    def expected(self, call: str | None) -> Standing:
        """Return how the key stands after a call that nothing interrupts."""
        clock = ManualClock()
        limiter = Limiter(RULES[self.rules], clock=clock)
        _use(limiter, clock, STARTS[0], "key", self.uses)
        if call is not None:
            CALLS[call][0](limiter, "key")
        return _standing(limiter, "key")

    def allows(self, standing: Standing, *, is_done: bool) -> bool:
        """Return whether the key may stand so; it must be as after the call if that was made to its end."""
        expected = [self.expected(self.call)]
        if not is_done:
            expected += [self.expected(call) for call in (None, *CALLS[self.call][1])]
        if not (self.subject.is_in_memory or self.call in BY_RULE):
            return standing in expected
        return all(own in [each[rule] for each in expected] for rule, own in enumerate(standing))


def _use(limiter: Limiter, clock: ManualClock, start: int, key: str, uses: str) -> None:
    clock.set(start)
    for cost, seconds in USES[uses]:
        limiter.hit(key, cost)
        clock.advance(seconds)


def _standing(limiter: Limiter, key: str) -> Standing:
    """Return how a key stands, and the one that is waited for."""
    decisions = [limiter.peek(name, cost) for name in (key, f"{key} waits") for cost in (1, LIMIT)]
    layers = [decision.layers or {decision.rule: decision} for decision in decisions]
    return [[tuple(layer[rule])[:6] for layer in layers] for rule in layers[0]]


# The kinds of interruptions. Each tells whether the call was made to its end.


def raised(this: Try) -> bool:
    """A signal handler raises an exception."""
    with points.handled_by(points.interrupt), suppress(points.Interruption):
        return not points.at(this.point(), this.make)
    return False


def struck(this: Try) -> bool:
    """The same, at any time: in the middle of C code, too."""
    main, delay = threading.get_ident(), this.chance.random() * 0.002

    def strike() -> None:
        time.sleep(delay)
        signal.pthread_kill(main, signal.SIGINT)

    striking = threading.Thread(target=strike)
    with points.handled_by(points.interrupt), suppress(points.Interruption):
        striking.start()
        this.make()
        striking.join()
        time.sleep(PATIENCE)  # the signal ends this
    striking.join()
    return False


def reentered(this: Try) -> bool:
    """A signal handler makes a call of its own."""
    with points.handled_by(_handle(this)):
        points.at(this.point(), this.make)
    return True


def reentered_in_a_task(this: Try) -> bool:
    """The same, below an event loop."""
    with points.handled_by(_handle(this)):
        points.at(this.point("task"), this.make_in_a_task)
    return True


def _handle(this: Try) -> Callable[[], None]:
    def handle() -> None:
        this.answered[this.subject.name] += not this.subject.other.hit("other").degraded
        this.subject.other.hit("denied")
        with suppress(StoreUnavailable):  # in memory
            this.subject.other.inspect("other")

    return handle


def cancelled(this: Try) -> bool:
    """The task is cancelled."""

    async def cancel() -> None:
        task = asyncio.ensure_future(this.coroutine())
        for _ in range(this.chance.randrange(20)):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        while others := asyncio.all_tasks() - {asyncio.current_task()}:  # which undo what has to be undone
            await asyncio.wait(others)

    _loop.run_until_complete(cancel())
    return False


_loop = asyncio.new_event_loop()


def forked(this: Try) -> bool:
    """Another thread forks, and the child goes on."""
    children: list[int] = []
    is_over, goes_on = os.pipe()  # closed by the parent once its call is over

    def fork() -> None:
        child = os.fork()
        if child:
            children.append(child)
            return
        with _in_a_child():
            os.close(goes_on)
            for is_first in (True, False):
                assert this.limiter.hit(f"{this.key} of the child", LIMIT).allowed is is_first
            os.read(is_over, 1)
            assert this.allows(_standing(this.limiter, this.key), is_done=False)

    forking = threading.Thread(target=fork)

    def handle() -> None:
        forking.start()
        if this.subject.name != "sqlite":  # which first lets the call come to its end
            forking.join()

    try:
        with points.handled_by(handle):
            is_reached = points.at(this.point(), this.make)
        if is_reached:
            forking.join()
    finally:
        os.close(goes_on)
        os.close(is_over)
    assert not is_reached or os.waitpid(children[0], 0)[1] == 0, "a child did not go on"
    return True


def killed(this: Try) -> bool:
    """The process is killed."""
    if this.subject.is_in_memory:
        return raised(this)  # what it had is gone anyway
    point = this.point()
    child = os.fork()
    if not child:
        with _in_a_child(), points.handled_by(lambda: os.kill(os.getpid(), signal.SIGKILL)):
            if this.chance.random() < 0.5:  # otherwise the call itself connects
                this.limiter.peek(this.key)
            points.at(point, this.make)
    status = os.waitpid(child, 0)[1]
    assert status in {0, signal.SIGKILL}, f"the child ended with {status}"
    return status == 0


KINDS = (raised, struck, reentered, reentered_in_a_task, cancelled, forked, killed)


@contextmanager
def _in_a_child() -> Iterator[None]:
    """Run the block in a forked child, and end it there."""
    status = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(PATIENCE)
        yield
        status = 0
    except BaseException as error:  # noqa: BLE001 - only the parent may report
        os.write(2, f"{error!r}\n".encode())
    finally:
        os._exit(status)


def interruptions(tries: int = 30_000, seed: int | None = None) -> str:
    """Whatever interrupts a call at whatever point: nothing hangs, nothing is torn, and it counts once or never."""
    chance = random.Random(seed)
    most: Counter[tuple[str, ...]] = Counter()
    answered: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    server = RedisServer(programs()[newest()])
    try:
        with tempfile.TemporaryDirectory() as folder:
            memory, full = MemoryStore(), MemoryStore(ROOM)
            files = [SqliteStore(f"{folder}/limits.db") for _ in range(2)]
            subjects = [
                _subject("memory", memory, memory, memory),
                _subject("full memory", full, full, full),
                _subject("sqlite", files[0], files[0], files[1]),
                _subject("redis", RedisStore(server.url), AsyncRedisStore(server.url), RedisStore(server.url)),
            ]
            before = _open_files()
            with contextlib.ExitStack() as stack:
                for subject in subjects:
                    stack.enter_context(_crowd(subject))
                for number in range(tries):
                    kind = chance.choice(KINDS)
                    subject, rules, call, uses = (chance.choice(list(each)) for each in (subjects, RULES, CALLS, USES))
                    this = Try(subject, rules, call, uses, f"key {number}", chance, most, answered)
                    _interrupt(kind, this, STARTS[number])
                    kinds[kind.__name__] += 1
                    if number % 100 == 0:
                        progress("interruptions", f"{number:,} of {tries:,}")
            for subject in subjects:
                used = 10**9 - subject.other.peek("other").remaining
                hits = answered[subject.name]
                assert used == hits, f"{subject.name}: {hits:,} hits of handlers, {used:,} counted"
            assert full.evictions, "the full store was not full"
            assert full.size <= ROOM, f"{full.size} keys in a store of {ROOM}"
            left = _open_files() - before
            for file in files:
                file.close()
        clients = _clients(server)
    finally:
        server.stop()
    assert left <= 8, f"{left} files were left open"
    assert clients <= 6, f"{clients} connections were left open"
    each = ", ".join(f"{count:,} {kind.replace('_', ' ')}" for kind, count in sorted(kinds.items()))
    return f"{kinds.total():,} calls, interrupted in all kinds of ways ({each}): none hung, none was torn"


def _subject(name: str, store: Any, for_tasks: Any, observed: Any) -> Subject:
    clock = ManualClock(STARTS[0])
    limiters, observers = (
        {text: Limiter(rules, each, clock=clock, **STRICT) for text, rules in RULES.items()}
        for each in (store, observed)
    )
    other = Limiter(FixedWindow(10**9, YEAR), store, clock=clock, deadline=PATIENCE)
    other.hit("denied", 10**9)
    return Subject(name, store, for_tasks, clock, limiters, observers, other)


@contextmanager
def _crowd(subject: Subject) -> Iterator[None]:
    """Let other threads hit meanwhile. Each hit is counted once, or perhaps not if it was told of a failure."""
    over = threading.Event()
    rule = FixedWindow(10**9, YEAR)
    limiter = Limiter(rule, subject.store, clock=subject.clock, prefix="crowd", **STRICT)
    flood = Limiter(rule, subject.store, clock=subject.clock, prefix="flood", **STRICT)

    def hit(caller: int) -> tuple[int, int]:
        told = failed = 0
        while not over.wait(0.001):
            try:
                told += limiter.hit("crowd").allowed
            except StoreUnavailable:  # the one that led their batch was interrupted
                failed += 1
            if subject.name == "full memory":
                flood.hit(f"{caller} {told}")
        return told, failed

    calls = [Call(hit, caller) for caller in range(2)]
    try:
        yield
    finally:
        over.set()
        told, failed = map(sum, zip(*(call.outcome() for call in calls), strict=True))
    used = 10**9 - limiter.peek("crowd").remaining
    assert told <= used <= told + failed, f"{subject.name}: {told:,} to {told + failed:,} hits, {used:,} counted"


def _interrupt(kind: Callable[[Try], bool], this: Try, start: int) -> None:
    this.prepare(start)
    with points.bounded():
        is_done = kind(this)
    asked = [limiters[this.rules] for limiters in (this.subject.observers, this.subject.limiters)]

    def standings() -> list[Standing]:  # asked by another thread, which must find no lock taken
        return [Call(_standing, limiter, this.key).outcome() for limiter in asked]

    first, second = standings()
    if first != second and this.subject.name == "redis":  # which got the request of a call that is no more
        first, second = standings()
    told = f"{this.subject.name}, {this.rules}, {this.uses}, {this.call} {kind.__name__}: {first}"
    assert first == second, f"{told}, then {second}"
    assert this.allows(first, is_done=is_done), f"{told}, not {this.expected(this.call)}"
    if this.call == "replace":
        contents = {Call(limiter.store.read_shared, this.key).outcome().content for limiter in asked}
        assert contents in ([{SHARED}] if is_done else [{SHARED}, {b""}]), f"{told}: {contents}"


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 0


def _clients(server: RedisServer) -> int:
    with redis.Redis(port=server.port) as client:
        return len(client.client_list()) - 1


DRILLS = {"interruptions": interruptions}
