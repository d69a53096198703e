"""The time of a decision on SQLite: alone, and with several processes on one key.

Each of these processes runs this module: `python -m bench.sqlite PATH SECONDS` prints its decisions and longest wait.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter_ns

from bench.contestants import ALGORITHMS, OURS, rule
from bench.tables import by_contestant, find, section, table
from bench.timing import Measurement, Target, interleave, names, per_decision
from ratekeeper import Limiter, stores

NAME = "sqlite"
TITLE = "On SQLite: one machine, no server"
ABOUT = (
    "CPU time in microseconds, including system time, for one admitted decision by a single thread; eight keys take "
    "turns. And how many decisions a second several processes make together on one key of one file (fixed window, "
    "each asking again at once), with the longest time that any decision took. "
    'Ours is `Limiter(rule, SqliteStore(path), on_error="raise")`.'
)

HITS = 2_000
LIMIT = 1_000  # for the log, which is rewritten in full with each hit
SECONDS = 1.0
COUNTS = (1, 2, 4, 8)
AT_MOST_US = 60
AT_LEAST = 0.5
ALONE, TOGETHER, LONGEST = "microseconds, alone", "decisions a second, together", "longest wait, ms"


def run(rounds: int) -> list[Measurement]:
    with tempfile.TemporaryDirectory() as folder:
        tasks = {algorithm: _alone(algorithm, folder) for algorithm in ALGORITHMS}
        figures = [
            Measurement(ALONE, algorithm, OURS, "us", values)
            for algorithm, values in interleave(f"{NAME}: alone", tasks, rounds).items()
        ]
        together = {count: _together(count, f"{folder}/{count}.db") for count in COUNTS}
        for count, samples in interleave(f"{NAME}: together", together, rounds).items():
            figures.append(Measurement(TOGETHER, _processes(count), OURS, "1/s", tuple(rate for rate, _ in samples)))
            figures.append(Measurement(LONGEST, _processes(count), OURS, "ms", tuple(wait for _, wait in samples)))
    return figures


def _alone(algorithm: str, folder: str) -> Callable[[], float]:
    limit = LIMIT if "log" in algorithm else 10**7
    limiter = Limiter(
        rule(algorithm, limit), stores.SqliteStore(f"{folder}/{algorithm}.db"), on_error="raise", deadline=5
    )
    keys = names(range(8)) * (HITS // 8)

    def sample() -> float:
        for key in keys[:8]:
            limiter.reset(key)
        taken_us = per_decision(limiter.hit, keys)
        if not 0 < limit - limiter.peek(keys[0]).remaining <= HITS // 8:  # a bucket has leaked a little since
            raise SystemExit(f"{NAME}, {algorithm}: the file does not have these {HITS} hits")
        return taken_us

    return sample


def _together(count: int, path: str) -> Callable[[], tuple[float, float]]:
    command = [sys.executable, "-m", "bench.sqlite", path, str(SECONDS)]

    def sample() -> tuple[float, float]:
        processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)
        ]
        for process in processes:
            process.stdout.readline()  # it is ready
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        answers = [process.communicate()[0].split() for process in processes]
        return sum(float(rate) for rate, _ in answers), max(float(wait) for _, wait in answers)

    return sample


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def hammer(path: str, seconds: float) -> tuple[float, float]:
    """Hit one key for as long; return how many a second, and the longest in milliseconds."""
    limiter = Limiter(rule("fixed window", 10**9), stores.SqliteStore(path), on_error="raise", deadline=5)
    limiter.hit("one")
    print("ready", flush=True)
    sys.stdin.readline()
    count = longest = 0
    started = now = perf_counter_ns()
    while now - started < seconds * 1e9:
        limiter.hit("one")
        before, now = now, perf_counter_ns()
        longest = max(longest, now - before)
        count += 1
    return count / (now - started) * 1e9, longest / 1e6


def tables(figures: Sequence[Measurement]) -> list[str]:
    return [section(what, table(*by_contestant(figures, what))) for what in (ALONE, TOGETHER, LONGEST)]


def targets(figures: Sequence[Measurement]) -> list[Target]:
    rows = []
    for algorithm in ALGORITHMS:
        alone = find(figures, ALONE, algorithm, OURS)
        if alone is not None:
            promise = f"on a file, {algorithm}, alone: at most {AT_MOST_US} us a decision"
            rows.append(Target(promise, f"{alone.median:.1f} us", alone.median <= AT_MOST_US))
    one, four = (find(figures, TOGETHER, _processes(count), OURS) for count in (1, 4))
    wait = find(figures, LONGEST, _processes(4), OURS)
    if one is not None and four is not None and wait is not None:
        share = four.median / one.median
        promise = f"on a file, 4 processes on one key: at least {AT_LEAST} times the decisions of one"
        rows.append(Target(promise, f"{share:.2f}, longest wait {max(wait.samples):.0f} ms", share >= AT_LEAST))
    return rows


if __name__ == "__main__":
    print(*hammer(str(Path(sys.argv[1])), float(sys.argv[2])))
