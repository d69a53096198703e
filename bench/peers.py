"""The peers, each in its fastest documented in-memory configuration.

Rules, items and stores are created in advance; a decision is one non-blocking call with a key, without hooks.
Where a peer offers a choice, the faster option is used.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from time import monotonic_ns

import limits
import pyrate_limiter
import throttled
from limits.storage import MemoryStorage
from limits.strategies import (
    FixedWindowRateLimiter,
    MovingWindowRateLimiter,
    RateLimiter,
    SlidingWindowCounterRateLimiter,
)

from bench.timing import Hit

GCRA = "throttled-py (GCRA)"
DAY = 86_400  # the window of every rule: long, so that nothing expires during a run


@dataclass(frozen=True)
class Peer:
    """A library as it is measured: its factories by algorithm, and what its answers tell."""

    name: str
    package: str
    configuration: str
    answers: str
    algorithms: Mapping[str, Callable[[int, int], Hit]]
    admitted: Callable[[object], bool] = bool


# limits: the item is built once. A partial costs less than a wrapper function. Its store is unbounded.


def _limits(strategy: type[RateLimiter]) -> Callable[[int, int], Hit]:
    def make(limit: int, _room: int) -> Hit:
        return partial(strategy(MemoryStorage()).hit, limits.RateLimitItemPerDay(limit))

    return make


# throttled-py gets a Quota instead of a text, and a store with room for every key (by default it evicts beyond
# 1,024). The state in its result is built on demand; it is not read here.


def _throttled(kind: throttled.RateLimiterType) -> Callable[[int, int], Hit]:
    def make(limit: int, room: int) -> Hit:
        quota = throttled.per_duration(timedelta(seconds=DAY), limit)
        store = throttled.MemoryStore(options={"MAX_SIZE": room})
        return throttled.Throttled(using=kind.value, quota=quota, store=store, timeout=-1).limit

    return make


# pyrate-limiter gets the bucket of a key from a factory, as its manual shows. This factory has no clock object and
# no background leaking, since nothing expires; both make it faster.


class _BucketPerKey(pyrate_limiter.BucketFactory):
    def __init__(self, make_bucket: Callable[[], pyrate_limiter.AbstractBucket]) -> None:
        self.make_bucket = make_bucket
        self.buckets: dict[str, pyrate_limiter.AbstractBucket] = {}

    def wrap_item(self, name: str, weight: int = 1) -> pyrate_limiter.RateItem:
        return pyrate_limiter.RateItem(name, monotonic_ns() // 1_000_000, weight)

    def get(self, item: pyrate_limiter.RateItem) -> pyrate_limiter.AbstractBucket:
        try:
            return self.buckets[item.name]
        except KeyError:
            bucket = self.buckets[item.name] = self.make_bucket()
            return bucket


def _pyrate(bucket: type, algorithm: type, *, blocking: bool = False) -> Callable[[int, int], Hit]:
    def make(limit: int, _room: int) -> Hit:
        rates = [pyrate_limiter.Rate(limit, DAY * 1000)]
        factory = _BucketPerKey(partial(bucket, rates, algorithm=algorithm()))
        return partial(pyrate_limiter.Limiter(factory).try_acquire, blocking=blocking)

    return make


# For several threads: without blocking it denies whenever another thread holds its lock.
pyrate_log_blocking = _pyrate(pyrate_limiter.InMemoryBucket, pyrate_limiter.SlidingWindowLog, blocking=True)


PEERS = (
    Peer(
        "limits",
        "limits",
        "`strategy.hit(item, key)` on a `MemoryStorage`, the item built once; its moving window is the log. "
        "With many keys the figures include its timer thread, which repeatedly scans all of them",
        "yes or no",
        {
            "fixed window": _limits(FixedWindowRateLimiter),
            "sliding window log": _limits(MovingWindowRateLimiter),
            "sliding window counter": _limits(SlidingWindowCounterRateLimiter),
        },
    ),
    Peer(
        "throttled-py",
        "throttled-py",
        "`Throttled(...).limit(key)`, non-blocking, no hooks, on a `MemoryStore` with room for all keys",
        "limited; on demand (not used here) limit, remaining, reset_after, retry_after",
        {
            "fixed window": _throttled(throttled.RateLimiterType.FIXED_WINDOW),
            "sliding window counter": _throttled(throttled.RateLimiterType.SLIDING_WINDOW),
            "token bucket": _throttled(throttled.RateLimiterType.TOKEN_BUCKET),
            "leaky bucket": _throttled(throttled.RateLimiterType.LEAKING_BUCKET),
        },
        admitted=lambda result: not result.limited,
    ),
    Peer(
        GCRA,
        "throttled-py",
        "the same with its GCRA, which admits the same traffic as a token bucket or a policing leaky bucket",
        "as above",
        {
            "token bucket": _throttled(throttled.RateLimiterType.GCRA),
            "leaky bucket": _throttled(throttled.RateLimiterType.GCRA),
        },
        admitted=lambda result: not result.limited,
    ),
    Peer(
        "pyrate-limiter",
        "pyrate-limiter",
        "`Limiter(factory).try_acquire(key, blocking=False)`, one bucket per key from a plain factory, "
        "without background leaking; `InMemoryBucket` for the windows (both are logs), `StateBucket` for the "
        "buckets (both are GCRA)",
        "yes or no",
        {
            "fixed window": _pyrate(pyrate_limiter.InMemoryBucket, pyrate_limiter.FixedWindow),
            "sliding window log": _pyrate(pyrate_limiter.InMemoryBucket, pyrate_limiter.SlidingWindowLog),
            "token bucket": _pyrate(pyrate_limiter.StateBucket, pyrate_limiter.TokenBucket),
            "leaky bucket": _pyrate(pyrate_limiter.StateBucket, pyrate_limiter.GCRA),
        },
    ),
)
