"""The throughput of many threads on one key, compared with one thread."""

import threading
from collections.abc import Sequence
from functools import partial
from time import perf_counter_ns

from bench import peers
from bench.contestants import ALGORITHMS, OUR_CONTESTANTS, OURS, ROOM, SHAPING, Contestant, pick
from bench.tables import find, ratio, spread, table, times
from bench.timing import Measurement, Target, interleave

NAME = "threads"
TITLE = "Sixteen threads on one key"
ABOUT = (
    "Thousands of decisions a second on one key, by one thread and by sixteen that start together and share "
    "the same number of decisions; each peer runs its fastest algorithm. With the GIL the best possible "
    "ratio is 1."
)

MANY = 16
LIMIT = 1_000_000
AT_LEAST = 0.6

# Each thread works for several of the interpreter's switch intervals (5 ms), otherwise they would run one by one.
OUR_HITS, PEER_HITS = 320_000, 96_000

CONTESTANTS = {
    **{one: OUR_HITS for one in OUR_CONTESTANTS if one.algorithm != SHAPING},
    pick("limits", "fixed window"): PEER_HITS,
    pick("throttled-py", "fixed window"): PEER_HITS,
    Contestant("pyrate-limiter", "sliding window log", peers.pyrate_log_blocking): PEER_HITS,
}


def run(rounds: int) -> list[Measurement]:
    tasks = {
        (one, threads): partial(_throughput, one, hits, threads)
        for one, hits in CONTESTANTS.items()
        for threads in (1, MANY)
    }
    return [
        Measurement(_case(threads), one.algorithm, one.name, "thousand decisions a second", samples)
        for (one, threads), samples in interleave(NAME, tasks, rounds).items()
    ]


def _case(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"


def _throughput(contestant: Contestant, hits: int, threads: int) -> float:
    hit = contestant.make(LIMIT, ROOM)
    keys = ["user:0"] * (hits // threads)
    together = threading.Barrier(threads + 1)

    def work() -> None:
        together.wait()
        for key in keys:
            hit(key)

    # Daemon threads, so that an interrupt ends the run.
    workers = [threading.Thread(target=work, daemon=True) for _ in range(threads)]
    for worker in workers:
        worker.start()
    started = perf_counter_ns()
    together.wait()
    for worker in workers:
        worker.join()
    elapsed_ms = (perf_counter_ns() - started) / 1_000_000
    contestant.check(hit, "user:0", expected=True)
    return hits / elapsed_ms


def _one_and_many(figures: Sequence[Measurement], algorithm: str, name: str) -> list[Measurement | None]:
    return [find(figures, _case(threads), algorithm, name) for threads in (1, MANY)]


def tables(figures: Sequence[Measurement]) -> list[str]:
    rows = []
    for contestant in CONTESTANTS:
        one, many = _one_and_many(figures, contestant.algorithm, contestant.name)
        who = [contestant.name, contestant.algorithm]
        rows.append([*who, spread(one), spread(many), times(ratio(many, one))])
    return [table(["", "algorithm", _case(1), _case(MANY), "ratio"], rows, left=2)]


def targets(figures: Sequence[Measurement]) -> list[Target]:
    rows = []
    for algorithm in ALGORITHMS:
        one, many = _one_and_many(figures, algorithm, OURS)
        measured = ratio(many, one)
        promise = f"{algorithm}, {_case(MANY)} on one key: at least {AT_LEAST} of one thread's throughput"
        rows.append(Target(promise, times(measured), measured >= AT_LEAST))
    return rows
