"""The throughput of many threads."""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter_ns

from bench.contestants import OURS
from bench.redis import load
from bench.redis.callers import ALGORITHMS
from bench.redis.contestants import OUR_CONTESTANTS, PEER_CONTESTANTS, Contestant
from bench.redis.server import server
from bench.tables import find, spread, table
from bench.timing import Hit, Measurement, Target, interleave

NAME = "redis-threads"
TITLE = "On Redis: 32 threads"
ABOUT = (
    "Decisions a second by 32 threads, each on its own key, all admitted. In ratekeeper the threads of one limiter "
    "share calls; the peers have one connection per thread. pyrate-limiter holds a lock during the call, so there each "
    "thread has its own limiter."
)

THREADS = 32
OUR_HITS, PEER_HITS = 200, 100  # per thread
LIMIT = 100_000
CASE = f"{THREADS} threads"
AT_LEAST = 3

CONTESTANTS = {
    one: OUR_HITS if one.name == OURS else PEER_HITS
    for one in (*OUR_CONTESTANTS, *PEER_CONTESTANTS)
    if one.algorithm in ALGORITHMS and one.make
}


def run(rounds: int) -> list[Measurement]:
    tasks = {one: _prepare(one, hits) for one, hits in CONTESTANTS.items()}
    return [
        Measurement(CASE, one.algorithm, one.name, "decisions/s", samples)
        for one, samples in interleave(NAME, tasks, rounds).items()
    ]


def _prepare(contestant: Contestant, hits: int) -> Callable[[], float]:
    limiters = THREADS if contestant.name == "pyrate-limiter" else 1
    made = [contestant.make(server().url, LIMIT) for _ in range(limiters)]
    return partial(_throughput, contestant, made * (THREADS // limiters), hits)


def _throughput(contestant: Contestant, made: Sequence[Hit], hits: int) -> float:
    server().empty()
    together = threading.Barrier(THREADS + 1)
    admitted: list[int] = []

    def work(number: int, hit: Hit) -> None:
        key = f"user:{number}"
        hit(key)  # opens the connection
        together.wait()
        admitted.append(sum(contestant.admitted(hit(key)) for _ in range(hits)))

    # Daemon threads, so that an interrupt ends the run.
    workers = [threading.Thread(target=work, args=one, daemon=True) for one in enumerate(made)]
    for worker in workers:
        worker.start()
    together.wait()
    started = perf_counter_ns()
    for worker in workers:
        worker.join()
    elapsed_ns = perf_counter_ns() - started
    if sum(admitted) != THREADS * hits:
        raise SystemExit(f"{contestant.name}, {contestant.algorithm}: admitted {sum(admitted)} of {THREADS * hits}")
    return THREADS * hits / elapsed_ns * 1e9


def tables(figures: Sequence[Measurement]) -> list[str]:
    rows = [[one.name, one.algorithm, spread(find(figures, CASE, one.algorithm, one.name))] for one in CONTESTANTS]
    return [table(["", "algorithm", "decisions/s"], rows, left=2)]


def targets(figures: Sequence[Measurement]) -> list[Target]:
    return [load.beats_peers(figures, CASE, algorithm, AT_LEAST, CASE) for algorithm in ALGORITHMS]
