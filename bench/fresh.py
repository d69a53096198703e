"""The cost of the first hit on a new key, and of a flood of new keys at a full store."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count, islice

from bench.contestants import OUR_CONTESTANTS, OURS, PEER_CONTESTANTS, ROOM, SHAPING, Contestant
from bench.peers import GCRA
from bench.tables import by_contestant, section, table
from bench.timing import Measurement, Target, interleave, names, per_decision

NAME = "fresh"
TITLE = "Fresh keys"
ABOUT = (
    "Microseconds for the first decision on a key. First hit: into a store that was empty. Flood: into a store "
    "that is full with 100,000 keys, so that each new key evicts one; first where every key has used little "
    "of its limit, then where every key has used all of it. Among the peers only throttled-py bounds "
    "its store; it evicts the least recently used key, used up or not."
)

FIRST, FLOOD, FLOOD_USED_UP = "first hit", "flood at a full store", "flood at a full store, all used up"
FIRST_HITS = 50_000
FULL = 100_000
FLOOD_HITS = 20_000
LIMIT = 10_000
BOUNDED = (OURS, "throttled-py", GCRA)

CONTESTANTS = [one for one in (*OUR_CONTESTANTS, *PEER_CONTESTANTS) if one.algorithm != SHAPING]


def run(rounds: int) -> list[Measurement]:
    figures = _measure(FIRST, {one: partial(_first_hits, one) for one in CONTESTANTS}, rounds)
    bounded = [one for one in CONTESTANTS if one.name in BOUNDED]
    for what, limit in ((FLOOD, LIMIT), (FLOOD_USED_UP, 1)):
        figures += _measure(what, {one: _flood(one, limit) for one in bounded}, rounds)
    return figures


def _measure(what: str, tasks: dict[Contestant, Callable[[], float]], rounds: int) -> list[Measurement]:
    samples = interleave(f"{NAME}: {what}", tasks, rounds)
    return [Measurement(what, one.algorithm, one.name, "us", values) for one, values in samples.items()]


def _first_hits(contestant: Contestant) -> float:
    return per_decision(contestant.make(LIMIT, ROOM), names(range(FIRST_HITS)))


def _flood(contestant: Contestant, limit: int) -> Callable[[], float]:
    hit = contestant.make(limit, FULL)
    numbers = count()
    for key in names(islice(numbers, FULL)):
        hit(key)
    return lambda: per_decision(hit, names(islice(numbers, FLOOD_HITS)))


def tables(figures: Sequence[Measurement]) -> list[str]:
    return [section(what, table(*by_contestant(figures, what))) for what in (FIRST, FLOOD, FLOOD_USED_UP)]


def targets(_figures: Sequence[Measurement]) -> list[Target]:
    return []
