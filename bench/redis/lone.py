"""The time of one decision when nothing else runs: the round trip, and the work around it."""

from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import NamedTuple

from bench.contestants import ALGORITHMS, FLOOR, OURS
from bench.redis.contestants import FLOOR_CONTESTANTS, OUR_CONTESTANTS, PEER_CONTESTANTS, Contestant
from bench.redis.server import server
from bench.tables import by_contestant, find, ratio, section, table, times
from bench.timing import Measurement, Target, interleave, names

NAME = "redis-lone"
TITLE = "On Redis: one caller"
ABOUT = (
    "Microseconds for one admitted decision by one thread, one after another; and how much of that is CPU time of the "
    'server. ratekeeper runs `Limiter(rule, url, on_error="raise", deadline=30).hit(key)`. The floor is redis-py\'s '
    "bare `EVALSHA` of `return 1` with one key. Eight keys take turns. ratekeeper checks each stored value before it "
    "uses it, so that a damaged one concerns its own key alone; these checks are 1 to 6 % of its server time here, and "
    "in batches 0 to 4 % (5 % for the log)."
)

KEYS = names(range(8))
HITS = 320
SAMPLES = 6  # per round
LIMIT = 100_000
AT_MOST = 1.15

ROUND_TRIP, SERVER = "microseconds", "microseconds of the server's processor"
CONTESTANTS = [one for one in (*OUR_CONTESTANTS, *PEER_CONTESTANTS, *FLOOR_CONTESTANTS) if one.make]


class Lone(NamedTuple):
    elapsed_us: float
    server_us: float


def run(rounds: int) -> list[Measurement]:
    figures = []
    for algorithm in ALGORITHMS:
        server().empty()
        tasks = {one: _prepare(one) for one in CONTESTANTS if one.algorithm == algorithm}
        samples = interleave(f"{NAME}: {algorithm}", tasks, rounds * SAMPLES)
        for what, column in ((ROUND_TRIP, 0), (SERVER, 1)):
            for one, taken in samples.items():
                values = tuple(sample[column] for sample in taken)
                figures.append(Measurement(what, algorithm, one.name, "us", values))
    return figures


def _prepare(contestant: Contestant) -> Callable[[], Lone]:
    hit = contestant.make(server().url, LIMIT)
    keys = KEYS * (HITS // len(KEYS))

    def sample() -> Lone:
        for key in KEYS:
            hit(key)
        processor_us, started = server().processor_us(), perf_counter_ns()
        answers = [hit(key) for key in keys]
        elapsed_us = (perf_counter_ns() - started) / 1000
        processor_us = server().processor_us() - processor_us
        if not all(map(contestant.admitted, answers)):
            raise SystemExit(f"{contestant.name}, {contestant.algorithm}: all should have been admitted")
        return Lone(elapsed_us / HITS, processor_us / HITS)

    return sample


def tables(figures: Sequence[Measurement]) -> list[str]:
    header, rows = by_contestant(figures, ROUND_TRIP)
    beside = ["**ours / floor**", *(f"**{times(_ratio(figures, algorithm))}**" for algorithm in header[1:])]
    return [
        section(ROUND_TRIP, table(header, [*rows, beside])),
        section(SERVER, table(*by_contestant(figures, SERVER))),
    ]


def _ratio(figures: Sequence[Measurement], algorithm: str) -> float:
    return ratio(find(figures, ROUND_TRIP, algorithm, OURS), find(figures, ROUND_TRIP, algorithm, FLOOR))


def targets(figures: Sequence[Measurement]) -> list[Target]:
    rows = []
    for algorithm in ALGORITHMS:
        measured = _ratio(figures, algorithm)
        promise = f"on Redis, {algorithm}, one caller: at most {AT_MOST} times a bare EVALSHA"
        rows.append(Target(promise, times(measured), measured <= AT_MOST))
    return rows
