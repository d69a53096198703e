"""The kit that every limiter must pass: one synchronous interface for all, and the list of those that are tested.

To test a limiter on another store, add a `Driver` to `DRIVERS`.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import math
import os
import tempfile
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

from ratekeeper import AsyncLimiter, Decision, Limiter, flows
from ratekeeper.algorithms import BY_NAME
from ratekeeper.rules import from_fields
from ratekeeper.stores import AsyncRedisStore, MemoryStore, RedisStore, SqliteStore
from ratekeeper.stores.protocol import Outcome
from ratekeeper.testing import ManualClock
from tests import clusters, inside, servers
from tests.conformance.model import Answer

_prefixes = itertools.count()


class Subject:
    """One limiter under test on a clock of its own. Times go in and come out as whole microseconds."""

    def __init__(self, driver: Driver, rules: Any, store: Any, clock: ManualClock, prefix: str, **options: Any) -> None:
        self.limiter = driver.kind(rules, store=store, clock=clock, prefix=prefix, **(driver.options | options))
        self.key = driver.key
        self._driver = driver
        self._clock = clock
        self._prefix = prefix
        self.run = _await if driver.kind is AsyncLimiter else _plain

    def beside(self, rules: Any, prefix: str | None = None) -> Subject:
        """Return another limiter of this kind on the same store and the same clock."""
        return Subject(self._driver, rules, self.limiter.store, self._clock, prefix or self._prefix)

    def call(self, operation: str, at_us: int, cost: Any = 1, key: Any = None) -> Decision | None:
        """Perform one of the limiter's operations at this time on its clock."""
        self._clock.set(Fraction(at_us, 1_000_000))
        key = self.key if key is None else key
        method = getattr(self.limiter, operation)
        result = method(key) if operation == "reset" else method(key, cost)
        return self.run(self._in_a_crowd(result) if self._driver.crowd else result)

    async def _in_a_crowd(self, result: Any) -> Any:
        """Await a result in one turn of the loop, and so in one batch, with other requests before and after it."""
        others = [self.limiter.hit(f"somebody else {number}") for number in range(2 * self._driver.crowd)]
        before, behind = others[: self._driver.crowd], others[self._driver.crowd :]
        return (await asyncio.gather(*before, result, *behind))[self._driver.crowd]

    def hit(self, at_us: int, cost: int = 1) -> Answer:
        return exact(self.call("hit", at_us, cost))

    def peek(self, at_us: int, cost: int = 1) -> Answer:
        return exact(self.call("peek", at_us, cost))

    def charge(self, at_us: int, cost: int = 1) -> Answer:
        return exact(self.call("charge", at_us, cost))

    def refund(self, at_us: int, cost: int = 1) -> Answer:
        return exact(self.call("refund", at_us, cost))

    def reset(self, at_us: int, cost: int = 1) -> None:
        self.call("reset", at_us)

    def give_back(self, at_us: int, cost: int, charged_us: int, ends_us: int) -> None:
        """Give back a hit that was admitted at the first time and would have been forgotten at the second."""
        self._clock.set(Fraction(at_us, 1_000_000))

        async def awaited() -> None:
            await flows.result(inside.give_back(self.limiter, self.key, cost, charged_us, ends_us))

        if self._driver.kind is AsyncLimiter:
            self.run(awaited())
        else:
            inside.give_back(self.limiter, self.key, cost, charged_us, ends_us)

    def ask(self, asked: list[tuple[str, str, Any, int, bool]], at_us: int | None = None) -> Outcome:
        """Ask the store in one request; each demand has an operation, a rule, a key, a cost, and whether it binds."""
        if at_us is not None:
            self._clock.set(Fraction(at_us, 1_000_000))
        demands = inside.mixed(self.limiter, asked)
        below = inside.below(self.limiter)

        async def awaited() -> Outcome:
            crowd = [
                flows.result(below.execute(inside.demands(self.limiter, ("crowd", number), 1, "peek")))
                for number in range(self._driver.crowd)
            ]
            outcome, *_ = await asyncio.gather(flows.result(below.execute(demands)), *crowd)
            return outcome

        return self.run(awaited()) if self._driver.kind is AsyncLimiter else below.execute(demands)

    def stored(self, at_us: int) -> object:
        """Return what the store holds for the key, as it is."""
        self._clock.set(Fraction(at_us, 1_000_000))
        return {name: seen.raw for name, seen in self.run(self.limiter.inspect(self.key)).items()}

    def size(self) -> int | None:
        """Return how many keys the store holds; None where it does not count them."""
        return getattr(self.limiter.store, "size", None)


class Driver(NamedTuple):
    """One way to hold a limiter: which class, on which store, called how."""

    name: str
    kind: type[Limiter | AsyncLimiter]
    make_store: Callable[[], Any] = MemoryStore
    options: dict[str, Any] = {}  # noqa: RUF012 - a NamedTuple's default
    key: Any = "user:42"
    crowd: int = 0  # requests that go before and behind each, into the same call

    def __repr__(self) -> str:
        return self.name

    def subject(self, rules: Any, **options: Any) -> Subject:
        """Put these rules on a store that holds nothing of theirs."""
        made = self.make_store()
        store, clock = made if isinstance(made, tuple) else (made, ManualClock())
        return Subject(self, rules, store, clock, f"test {next(_prefixes)}", **options)


@functools.cache
def on_redis(kind: type[RedisStore | AsyncRedisStore], version: str, shared: Any) -> tuple[Any, ManualClock]:
    """Return a store on the shared servers of this version, and its clock; each subject has a prefix of its own."""
    store = kind(shared(version).url)
    if isinstance(store, AsyncRedisStore):
        _async_stores.append(store)
    return store, ManualClock()


def _redis_drivers() -> list[Driver]:
    """Return the drivers on Redis: every way on the newest server; on an older one a lone caller and a crowd."""
    drivers = []
    strict = {"on_error": "raise", "deadline": 30}
    if os.environ.get("HYPOTHESIS_PROFILE") == "mutants":  # the mutants change the steps in Python
        return []
    for version in servers.programs():
        for name, shared in (("Redis", servers.shared), ("Redis Cluster", clusters.shared_cluster)):
            store = functools.partial(on_redis, RedisStore, version, shared)
            async_store = functools.partial(on_redis, AsyncRedisStore, version, shared)
            alone = Driver(f"Limiter on {name} {version}", Limiter, store, strict)
            alone_in_a_loop = Driver(f"AsyncLimiter on {name} {version}", AsyncLimiter, async_store, strict)
            crowd = Driver(f"AsyncLimiter on {name} {version} in a crowd", AsyncLimiter, async_store, strict, crowd=2)
            drivers += [alone, alone_in_a_loop, crowd] if version == servers.newest() else [alone, crowd]
    return drivers


@functools.cache
def on_sqlite(kind: type[Limiter | AsyncLimiter]) -> tuple[Any, ManualClock]:
    """Return a store in a file of its own, and its clock; each subject has a prefix of its own."""
    folder = tempfile.TemporaryDirectory(prefix="ratekeeper-")
    store = SqliteStore(os.path.join(folder.name, f"{kind.__name__}.db"))  # noqa: PTH118 - a str, as users give it
    _folders.append((store, folder))
    return store, ManualClock()


def _sqlite_drivers() -> list[Driver]:
    """Return the drivers on a file."""
    strict = {"on_error": "raise", "deadline": 30}
    if os.environ.get("HYPOTHESIS_PROFILE") == "mutants":  # memory is enough for them
        return []
    return [
        Driver(f"{kind.__name__} on SQLite", kind, functools.partial(on_sqlite, kind), strict, key)
        for kind, key in ((Limiter, "user:42"), (AsyncLimiter, ("user", 42)))
    ]


# A plain limiter of one rule takes the fast path with a str key; a hook or another key takes the full path.
DRIVERS = (
    Driver("Limiter", Limiter),
    Driver("Limiter with a hook", Limiter, options={"on_decision": lambda _key, _decision: None}),
    Driver("Limiter with a tuple for a key", Limiter, key=("user", 42)),
    Driver("AsyncLimiter", AsyncLimiter),
    Driver("AsyncLimiter with a hook", AsyncLimiter, options={"on_decision": lambda _key, _decision: None}),
    *_sqlite_drivers(),
    *_redis_drivers(),
)


def exact(decision: Decision) -> Answer:
    """Convert a decision's seconds to whole microseconds."""
    return Answer(
        decision.allowed,
        decision.remaining,
        None if decision.retry_after == math.inf else microseconds(decision.retry_after),
        microseconds(decision.reset_after),
        microseconds(decision.delay),
    )


def microseconds(seconds: float) -> int:
    return round(seconds * 1e6)


def rule_of(rule: dict[str, Any]) -> Any:
    """Build a rule as the vectors write it."""
    values = {
        "count": lambda name: rule[name],
        "window": lambda _: Fraction(rule["window_us"], 1_000_000),
        "rate": lambda _: Fraction(*rule["rate"]),
        "mode": lambda name: rule[name],
    }
    fields = BY_NAME[rule["algorithm"]].fields
    return from_fields(rule["algorithm"], {field.name: values[field.kind](field.name) for field in fields})


def _plain(result: Any) -> Any:
    return result


def _await(coroutine: Any) -> Any:
    """Run a coroutine in the event loop that all async drivers share."""
    return _loop().run_until_complete(coroutine)


_async_stores: list[AsyncRedisStore] = []
_loops: list[asyncio.AbstractEventLoop] = []
_folders: list[tuple[Any, Any]] = []


def _loop() -> asyncio.AbstractEventLoop:
    if not _loops:
        _loops.append(asyncio.new_event_loop())
    return _loops[0]


def close_loop() -> None:
    """Close the event loop that the async drivers share, and their connections."""
    while _loops:
        for store in _async_stores:
            _loops[0].run_until_complete(store.close())
        _loops.pop().close()
    for store, folder in _folders:
        store.close()
        folder.cleanup()
