"""How the throughput changes with the number of keys on the server."""

import random
import sys
from collections.abc import Callable, Sequence
from functools import partial

from bench.contestants import OURS
from bench.redis import load
from bench.redis.contestants import OUR_CONTESTANTS, Contestant
from bench.redis.server import Server
from bench.tables import find, ratio, spread, table, times
from bench.timing import Measurement, Target, interleave

NAME = "redis-keys"
TITLE = "On Redis: a thousand keys and a million"
ABOUT = (
    "ratekeeper's decisions a second for 64 callers in one event loop on keys in random order, with 1,000 and with "
    "1,000,000 keys on the server, created by its own hits."
)

FEW, MANY = 1_000, 1_000_000
CALLERS, HITS = 64, 200
FILLERS = 1_000
ALGORITHM = "fixed window"  # its keys stay until midnight
LIMIT = 1_000_000
AT_MOST = 1.5


def run(rounds: int) -> list[Measurement]:
    ours = next(one for one in OUR_CONTESTANTS if one.algorithm == ALGORITHM)
    servers = {population: Server() for population in (FEW, MANY)}
    try:
        tasks = {population: _prepare(ours, population, where) for population, where in servers.items()}
        samples = interleave(NAME, tasks, rounds)
    finally:
        for where in servers.values():
            where.stop()
    return [Measurement(_case(keys), ALGORITHM, OURS, "decisions/s", values) for keys, values in samples.items()]


def _case(population: int) -> str:
    return f"{population:,} keys"


def _prepare(ours: Contestant, population: int, where: Server) -> Callable[[], float]:
    print(f"{NAME}: putting {population:,} keys there", file=sys.stderr)
    everyone = [[f"user:{number}" for number in range(caller, population, FILLERS)] for caller in range(FILLERS)]
    load.sample(ours, everyone, LIMIT, population, where)
    if where.client.dbsize() < population:
        raise SystemExit(f"{NAME}: {where.client.dbsize()} keys where {population} should be")
    return partial(_throughput, ours, population, where, random.Random(population))


def _throughput(ours: Contestant, population: int, where: Server, rng: random.Random) -> float:
    traffic = [[f"user:{number}" for number in rng.choices(range(population), k=HITS)] for _ in range(CALLERS)]
    return load.sample(ours, traffic, LIMIT, CALLERS * HITS, where).per_second


def _few_and_many(figures: Sequence[Measurement]) -> list[Measurement | None]:
    return [find(figures, _case(population), ALGORITHM, OURS) for population in (FEW, MANY)]


def tables(figures: Sequence[Measurement]) -> list[str]:
    few, many = _few_and_many(figures)
    row = [f"{OURS}, {ALGORITHM}", spread(few), spread(many), times(ratio(few, many))]
    return [table(["", _case(FEW), _case(MANY), "ratio"], [row])]


def targets(figures: Sequence[Measurement]) -> list[Target]:
    few, many = _few_and_many(figures)
    measured = ratio(few, many)
    promise = f"on Redis, {ALGORITHM}, from {_case(FEW)} to {MANY:,}: within {AT_MOST} times"
    return [Target(promise, times(measured), measured <= AT_MOST)]
