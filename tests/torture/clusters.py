"""Drills on Sentinel and Cluster: failovers, and slots that move under load."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

from ratekeeper import AsyncLimiter, Decision, FixedWindow, Limiter, SlidingWindowLog
from ratekeeper.stores.redis.wire import slot_of
from tests.clusters import ClusterOfServers, Sentinels, client, until
from tests.servers import RedisServer, newest, programs
from tests.torture.crowds import logged

RULE = FixedWindow(10**9, "365d")
HANG = 1.2  # seconds, ten times the promise: these threads keep the processor busy


class Load:
    """Threads that hit keys all the time, and count what Redis and its stand-in admit."""

    def __init__(self, url: str, keys: Sequence[str], threads: int) -> None:
        self.slowest = 0.0
        self.by_redis: Counter[str] = Counter()
        self.by_stand_in: Counter[str] = Counter()
        self.errors: list[BaseException] = []
        self.limiter = Limiter(RULE, url)
        self._keys = keys
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._work, args=(number,)) for number in range(threads)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        until(lambda: len(self.by_redis) == len(self._keys), "every key is decided by Redis")
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self.limiter.close()

    def _work(self, number: int) -> None:
        try:
            while not self._stop.is_set():
                number += 1
                self._hit(self._keys[number % len(self._keys)])
        except BaseException as error:  # noqa: BLE001 - told by the drill
            self.errors.append(error)

    def _hit(self, key: str) -> bool:
        begun = time.monotonic()
        decision = self.limiter.hit(key)
        took = time.monotonic() - begun
        with self._lock:
            self.slowest = max(self.slowest, took)
            (self.by_stand_in if decision.degraded else self.by_redis)[key] += 1
        return decision.degraded

    def until_back(self, keys: Sequence[str]) -> float:
        """Wait until Redis decides all of these keys again; return how long that took."""
        begun = time.monotonic()
        until(lambda: sum(map(self._hit, keys)) == 0, "Redis decides again")
        return time.monotonic() - begun

    def decided(self) -> Counter[str]:
        """Return what Redis has decided by now."""
        with self._lock:
            return Counter(self.by_redis)

    def end(self, master: RedisServer, replica: RedisServer) -> Counter[str]:
        """Kill a master; return how much it may have decided on each key that the replica does not know."""
        enough = 10 * len(self._threads)  # far more than can be under way
        until(lambda: all(self.by_redis[key] > enough for key in self._keys), "every key has been hit often")
        known = self.decided()
        offset = client(master).info("replication")["master_repl_offset"]
        until(lambda: client(replica).info("replication")["slave_repl_offset"] >= offset, "the replica follows")
        master.stop()
        unknown = self.decided()
        unknown.subtract(known)
        return unknown

    def used(self, key: str) -> int:
        """Return what Redis has counted; on a busy machine the stand-in may answer first."""
        seen: list[Decision] = []

        def by_redis() -> bool:
            seen.append(self.limiter.peek(key))
            return not seen[-1].degraded

        until(by_redis, "Redis tells what it has counted")
        return RULE.limit - seen[-1].remaining


def sentinel_failover(threads: int = 8) -> str:
    """The master dies under load: every call is answered, and the next master continues with its data."""
    sentinels = Sentinels(programs()[newest()])
    try:
        with logged(), Load(sentinels.url, ["one"], threads) as load:
            before = sentinels.master
            unknown = load.end(*sentinels.servers)["one"]
            took = load.until_back(["one"])
            time.sleep(0.2)
        assert not load.errors, f"a caller got {load.errors[0]!r}"
        assert load.slowest < HANG, f"a call took {load.slowest * 1000:.0f} ms"
        assert sentinels.master is not before, "the replica did not become the master"
        decided, counted = load.by_redis["one"], load.used("one")
    finally:
        sentinels.stop()
    # in flight when it died: at most a call a thread; written but not replicated: what the failover itself lost
    lost = decided - counted
    assert lost <= unknown + threads, f"{lost:,} of {decided:,} units lost, all but {unknown:,} were replicated"
    unanswered = threads + load.limiter.store.breaker.failures
    assert lost >= -unanswered, f"{counted:,} counted, {decided:,} decided, at most {unanswered} not answered"
    return (
        f"{decided + load.by_stand_in['one']:,} calls, slowest {load.slowest * 1000:.0f} ms, back on Redis after "
        f"{took:.1f} s, {max(lost, 0)} of {decided:,} units lost"
    )


def cluster_failover(threads: int = 8) -> str:
    """A master of six nodes dies under load: every call is answered, its replica goes on, the other nodes are exact."""
    cluster = ClusterOfServers(programs()[newest()], replicas=1)
    try:
        keys = [f"key {number}" for number in range(60)]
        victim = cluster.masters[0]
        theirs = [key for key in keys if cluster.holder(slot_of(key)) is victim]
        with logged(), Load(cluster.url, keys, threads) as load:
            unknown = load.end(victim, cluster.replicas[0])
            took = load.until_back(keys)
            time.sleep(0.2)
        assert not load.errors, f"a caller got {load.errors[0]!r}"
        assert load.slowest < HANG, f"a call took {load.slowest * 1000:.0f} ms"
        for key in keys:
            counted = load.used(key)
            if key in theirs:
                missing = load.by_redis[key] - counted
                assert missing <= unknown[key] + threads, f"{key}: {missing} lost, all but {unknown[key]} replicated"
            else:
                late = counted - load.by_redis[key]  # executed, but answered by the stand-in, because the time was up
                assert 0 <= late <= load.by_stand_in[key], f"{key}: {counted} counted, {load.by_redis[key]} admitted"
        lost = sum(max(0, load.by_redis[key] - load.used(key)) for key in theirs)
        stood_in = sum(load.by_stand_in.values())
    finally:
        cluster.stop()
    decided = sum(load.by_redis.values())
    return (
        f"{decided + stood_in:,} calls, {stood_in:,} by the stand-in, slowest {load.slowest * 1000:.0f} ms, back "
        f"on Redis after {took:.1f} s, {lost} units lost with the master"
    )


def migrating(slots: int = 60, threads: int = 4, tasks: int = 16) -> str:
    """Slots move from node to node under load: no call fails, and the totals are exact."""
    cluster = ClusterOfServers(programs()[newest()])
    try:
        keys = [f"key {number}" for number in range(slots)]
        admitted = _while_hitting(cluster.url, keys, threads, tasks, lambda: _move_all(cluster, keys))
        with Limiter({"one": RULE, "two": SlidingWindowLog(10**9, "365d")}, cluster.url, on_error="raise") as limiter:
            for key in keys:
                layers = limiter.peek(key).layers
                counted = {name: 10**9 - layer.remaining for name, layer in layers.items()}
                assert counted == {"one": admitted[key], "two": admitted[key]}, f"{key}: {counted}, {admitted[key]:,}"
    finally:
        cluster.stop()
    return f"{slots} slots moved there and back under {sum(admitted.values()):,} hits on two rules each: totals exact"


def _move_all(cluster: ClusterOfServers, keys: Sequence[str]) -> None:
    for key in keys:
        slot = slot_of(key)
        home = cluster.holder(slot)
        other = next(server for server in cluster.masters if server is not home)
        for source, target in ((home, other), (other, home)):
            cluster.begin_to_move(slot, target)
            time.sleep(0.01)
            while cluster.move_keys(slot, source, target, most=1):
                time.sleep(0.005)
            cluster.end_move(slot, target)


def _while_hitting(url: str, keys: Sequence[str], threads: int, tasks: int, action: Callable[[], None]) -> Counter[str]:
    """Hit keys from threads and from tasks while something happens; return what was admitted of each."""
    rules = {"one": RULE, "two": SlidingWindowLog(10**9, "365d")}
    strict = {"on_error": "raise", "deadline": 30.0}
    stop = threading.Event()
    admitted: list[Counter[str]] = []
    errors: list[BaseException] = []

    def work() -> None:
        mine: Counter[str] = Counter()
        admitted.append(mine)
        with Limiter(rules, url, **strict) as limiter:  # type: ignore[arg-type]
            while not stop.is_set():
                for key in keys:
                    mine[key] += limiter.hit(key).allowed

    def loop() -> None:
        mine: Counter[str] = Counter()
        admitted.append(mine)

        async def one(limiter: AsyncLimiter, number: int) -> None:
            while not stop.is_set():
                key = keys[number % len(keys)]
                number += 1
                decision = await limiter.hit(key)
                mine[key] += decision.allowed

        async def scenario() -> None:
            async with AsyncLimiter(rules, url, **strict) as limiter:  # type: ignore[arg-type]
                await asyncio.gather(*(one(limiter, number * 7) for number in range(tasks)))

        asyncio.run(scenario())

    def noting(function: Callable[[], None]) -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - told by the drill
            errors.append(error)

    workers = [threading.Thread(target=noting, args=(function,)) for function in [work] * threads + [loop]]
    for worker in workers:
        worker.start()
    try:
        action()
    finally:
        stop.set()
        for worker in workers:
            worker.join()
    assert not errors, f"a caller got {errors[0]!r}"
    total: Counter[str] = Counter()
    for mine in admitted:
        total.update(mine)
    return total


DRILLS = {"sentinel_failover": sentinel_failover, "cluster_failover": cluster_failover, "migrating": migrating}
