"""The contestants: this library, its peers, and the floor that no limiter in Python can beat."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from time import time_ns

from bench import peers
from bench.timing import Hit, names
from ratekeeper import FixedWindow, LeakyBucket, Limiter, SlidingWindowCounter, SlidingWindowLog, TokenBucket
from ratekeeper.stores import MemoryStore

OURS, FLOOR = "ratekeeper", "floor"
ALGORITHMS = ("fixed window", "sliding window log", "sliding window counter", "token bucket", "leaky bucket")
SHAPING = "leaky bucket, shaping"

DAY = peers.DAY
ROOM = 1_000_000  # keys that a bounded store may hold: our default, more than most suites need


@dataclass(frozen=True)
class Contestant:
    """A library with one algorithm; `make(limit, room)` returns a new `hit(key)` that admits `limit` a day."""

    name: str
    algorithm: str
    make: Callable[[int, int], Hit]
    admitted: Callable[[object], bool] = bool

    def check(self, hit: Hit, key: str, *, expected: bool) -> None:
        """Exit when a decision is not the expected one: the figure would measure something else."""
        if self.admitted(hit(key)) is not expected:
            wanted = "admitted" if expected else "denied"
            raise SystemExit(f"{self.name}, {self.algorithm}: {key!r} should have been {wanted}")


def rule(
    algorithm: str, limit: int
) -> FixedWindow | SlidingWindowLog | SlidingWindowCounter | TokenBucket | LeakyBucket:
    """Return our rule for `limit` a day, with bursts of up to `limit`."""
    rate = Fraction(limit, DAY)
    if algorithm == "fixed window":
        return FixedWindow(limit=limit, window=DAY)
    if algorithm == "sliding window log":
        return SlidingWindowLog(limit=limit, window=DAY)
    if algorithm == "sliding window counter":
        return SlidingWindowCounter(limit=limit, window=DAY)
    if algorithm == "token bucket":
        return TokenBucket(capacity=limit, refill_rate=rate)
    return LeakyBucket(capacity=limit, leak_rate=rate, mode="shaping" if algorithm == SHAPING else "policing")


def _ours(algorithm: str) -> Contestant:
    def make(limit: int, room: int) -> Hit:
        return Limiter(rule(algorithm, limit), store=MemoryStore(max_keys=room)).hit

    return Contestant(OURS, algorithm, make)


@cache
def _table() -> dict[str, None]:
    return dict.fromkeys(names(range(100_000)))


def _floor(_limit: int, _room: int) -> Hit:
    get = _table().get

    def hit(key: str) -> int:
        get(key)
        return time_ns()

    return hit


OUR_CONTESTANTS = tuple(_ours(algorithm) for algorithm in (*ALGORITHMS, SHAPING))
PEER_CONTESTANTS = tuple(
    Contestant(peer.name, algorithm, make, peer.admitted)
    for peer in peers.PEERS
    for algorithm, make in peer.algorithms.items()
)
# The same for every algorithm, but measured again beside each one, in the same rounds.
FLOOR_CONTESTANTS = tuple(Contestant(FLOOR, algorithm, _floor) for algorithm in (*ALGORITHMS, SHAPING))


def pick(name: str, algorithm: str) -> Contestant:
    """Return the contestant with this name and algorithm."""
    everyone = OUR_CONTESTANTS + PEER_CONTESTANTS
    return next(one for one in everyone if (one.name, one.algorithm) == (name, algorithm))
