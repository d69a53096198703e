"""The contestants on Redis: this library, its peers, and redis-py's bare call of a script that does nothing.

The peers use redis-py with hiredis, as ours does; limits is also measured with its default client. In an event loop
each has a blocking pool, so that no caller fails for lack of a connection. The peers are about as fast with 16
connections as with 128, and no faster with 512. Threads use the plain pool, which opens one connection per thread.
Rules, items and stores are created in advance, as in memory.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from time import time_ns

import coredis
import limits
import limits.aio.storage
import limits.aio.strategies
import limits.storage
import limits.strategies
import pyrate_limiter
import redis
import redis.asyncio
import throttled
import throttled.asyncio

from bench.contestants import ALGORITHMS, DAY, FLOOR, OURS, rule
from bench.peers import GCRA
from bench.timing import Hit
from ratekeeper import AsyncLimiter, Limiter

CONNECTIONS = 64
PATIENCE = 30  # seconds: no caller gives up while others are ahead of it

AsyncHit = Callable[[str], Awaitable[object]]
Opened = AbstractAsyncContextManager[AsyncHit]


@dataclass(frozen=True)
class Contestant:
    """A library with one algorithm: `make(url, limit)` for threads and `open(url, limit)` for an event loop."""

    name: str
    algorithm: str
    make: Callable[[str, int], Hit] | None
    open: Callable[[str, int], Opened] | None
    admitted: Callable[[object], bool] = bool


@asynccontextmanager
async def _client(url: str) -> AsyncIterator[redis.asyncio.Redis]:
    pool = redis.asyncio.BlockingConnectionPool.from_url(url, max_connections=CONNECTIONS, timeout=PATIENCE)
    try:
        yield redis.asyncio.Redis(connection_pool=pool)
    finally:
        await pool.disconnect()


# Ours raises instead of deciding without Redis. It may take as long as the peers, which have no deadline:
# a slow decision shows in the figures and does not end the run.


def _ours(algorithm: str) -> Contestant:
    def make(url: str, limit: int) -> Hit:
        return Limiter(rule(algorithm, limit), url, on_error="raise", deadline=PATIENCE).hit

    @asynccontextmanager
    async def opened(url: str, limit: int) -> AsyncIterator[AsyncHit]:
        limiter = AsyncLimiter(rule(algorithm, limit), url, on_error="raise", deadline=PATIENCE)
        yield limiter.hit
        await limiter.close()

    return Contestant(OURS, algorithm, make, opened)


def _bare(url: str, _limit: int) -> Hit:
    client = redis.Redis.from_url(url)
    call, sha = client.evalsha, client.script_load("return 1")
    return lambda key: call(sha, 1, key)


# limits: each strategy is one script. For an event loop it supports several clients; coredis is its default.


def _limits(algorithm: str, strategy: str) -> Contestant:
    def make(url: str, limit: int) -> Hit:
        decide = getattr(limits.strategies, strategy)(limits.storage.RedisStorage(url))
        return partial(decide.hit, limits.RateLimitItemPerDay(limit))

    @asynccontextmanager
    async def opened(url: str, limit: int) -> AsyncIterator[AsyncHit]:
        async with _client(url) as client:
            storage = limits.aio.storage.RedisStorage(
                f"async+{url}", implementation="redispy", connection_pool=client.connection_pool
            )
            decide = getattr(limits.aio.strategies, strategy)(storage)
            yield partial(decide.hit, limits.RateLimitItemPerDay(limit))

    return Contestant("limits", algorithm, make, opened)


@asynccontextmanager
async def _limits_on_coredis(url: str, limit: int) -> AsyncIterator[AsyncHit]:
    pool = coredis.BlockingConnectionPool.from_url(url, max_connections=CONNECTIONS, timeout=PATIENCE)
    storage = limits.aio.storage.RedisStorage(f"async+{url}", implementation="coredis", connection_pool=pool)
    decide = limits.aio.strategies.FixedWindowRateLimiter(storage)
    yield partial(decide.hit, limits.RateLimitItemPerDay(limit))
    pool.disconnect()


# throttled-py: its fixed window is a plain INCRBY, and EXPIRE on the first hit; the others are scripts.


def _throttled(algorithm: str, kind: throttled.RateLimiterType, name: str = "throttled-py") -> Contestant:
    def settings(limit: int) -> dict[str, object]:
        quota = throttled.per_duration(timedelta(seconds=DAY), limit)
        return {"using": kind.value, "quota": quota, "timeout": -1}

    def make(url: str, limit: int) -> Hit:
        return throttled.Throttled(**settings(limit), store=throttled.RedisStore(server=url)).limit

    @asynccontextmanager
    async def opened(url: str, limit: int) -> AsyncIterator[AsyncHit]:
        options = {
            "CONNECTION_POOL_CLASS": "redis.asyncio.BlockingConnectionPool",
            "CONNECTION_POOL_KWARGS": {"max_connections": CONNECTIONS, "timeout": PATIENCE},
        }
        store = throttled.asyncio.RedisStore(server=url, options=options)
        yield throttled.asyncio.Throttled(**settings(limit), store=store).limit
        await store._backend.get_client().connection_pool.disconnect()  # noqa: SLF001 - third-party

    return Contestant(name, algorithm, make, opened, admitted=lambda result: not result.limited)


# pyrate-limiter: one bucket per key from a plain factory, without background leaking. In an event loop its
# `try_acquire` is awaited, since `try_acquire_async` would decide one by one. For threads, see `threads`.


class _BucketPerKey(pyrate_limiter.BucketFactory):
    def __init__(self, make_bucket: Callable[[str], pyrate_limiter.AbstractBucket]) -> None:
        self.make_bucket = make_bucket
        self.buckets: dict[str, pyrate_limiter.AbstractBucket] = {}

    def wrap_item(self, name: str, weight: int = 1) -> pyrate_limiter.RateItem:
        return pyrate_limiter.RateItem(name, time_ns() // 1_000_000, weight)

    def get(self, item: pyrate_limiter.RateItem) -> pyrate_limiter.AbstractBucket:
        try:
            return self.buckets[item.name]
        except KeyError:
            bucket = self.buckets[item.name] = self.make_bucket(item.name)
            return bucket


def _pyrate(algorithm: str, bucket: Callable[[list[pyrate_limiter.Rate], object, str], object]) -> Contestant:
    def acquire(client: object, limit: int) -> Callable[[str], object]:
        factory = _BucketPerKey(partial(bucket, [pyrate_limiter.Rate(limit, DAY * 1000)], client))
        return partial(pyrate_limiter.Limiter(factory).try_acquire, blocking=False)

    def make(url: str, limit: int) -> Hit:
        return acquire(redis.Redis.from_url(url), limit)

    @asynccontextmanager
    async def opened(url: str, limit: int) -> AsyncIterator[AsyncHit]:
        async with _client(url) as client:
            yield acquire(client, limit)

    return Contestant("pyrate-limiter", algorithm, make, opened)


def _pyrate_state(kind: type[pyrate_limiter.GCRA], rates: list, client: object, key: str) -> pyrate_limiter.StateBucket:
    store = pyrate_limiter.RedisStateStore(client, f"pyrate:{key}")
    return pyrate_limiter.StateBucket(rates, algorithm=kind(), store=store)


def _pyrate_log(rates: list, client: object, key: str) -> pyrate_limiter.RedisBucket:
    return pyrate_limiter.RedisBucket.init(rates, client, f"pyrate:{key}")


OUR_CONTESTANTS = tuple(_ours(algorithm) for algorithm in ALGORITHMS)
FLOOR_CONTESTANTS = tuple(Contestant(FLOOR, algorithm, _bare, None) for algorithm in ALGORITHMS)
PEER_CONTESTANTS = (
    _limits("fixed window", "FixedWindowRateLimiter"),
    Contestant("limits (coredis)", "fixed window", None, _limits_on_coredis),
    _limits("sliding window log", "MovingWindowRateLimiter"),
    _limits("sliding window counter", "SlidingWindowCounterRateLimiter"),
    _throttled("fixed window", throttled.RateLimiterType.FIXED_WINDOW),
    _throttled("sliding window counter", throttled.RateLimiterType.SLIDING_WINDOW),
    _throttled("token bucket", throttled.RateLimiterType.TOKEN_BUCKET),
    _throttled("leaky bucket", throttled.RateLimiterType.LEAKING_BUCKET),
    _throttled("token bucket", throttled.RateLimiterType.GCRA, GCRA),
    _pyrate("sliding window log", _pyrate_log),
    _pyrate("token bucket", partial(_pyrate_state, pyrate_limiter.TokenBucket)),
    _pyrate("leaky bucket", partial(_pyrate_state, pyrate_limiter.GCRA)),
)
