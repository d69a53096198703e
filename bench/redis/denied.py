"""A flood of traffic that is almost all denied."""

from collections.abc import Sequence
from functools import partial

from bench.redis import load
from bench.redis.callers import ALGORITHMS, OURS_HERE, PEERS
from bench.redis.contestants import Contestant
from bench.redis.load import METRICS, Load
from bench.redis.server import server
from bench.tables import table
from bench.timing import Measurement, Target

NAME = "redis-denied"
TITLE = "On Redis: a flood of which 99 % is denied"
ABOUT = (
    "64 callers in one event loop, a limit of 1: each caller hits a key a hundred times, is admitted once, and moves "
    "on to the next key. ratekeeper answers most denials from memory, without asking Redis: a denial holds until its "
    "`retry_after`, and the process remembers it for at most a second (on by default; `remember_denials=False` turns "
    "it off). The peers ask Redis each time."
)

CASE = "99 % denied"
CALLERS, HITS = 64, 100  # hits per key
OUR_KEYS, PEER_KEYS = 10, 1  # per caller
AT_LEAST = 20
RATE = f"{CASE}: {METRICS['per_second']}"


def run(rounds: int) -> list[Measurement]:
    tasks = {one: partial(_flood, one, OUR_KEYS if one in OURS_HERE else PEER_KEYS) for one in (*OURS_HERE, *PEERS)}
    return load.measure(NAME, CASE, tasks, (rounds + 1) // 2)  # the peers need seconds for each


def _flood(contestant: Contestant, keys: int) -> Load:
    server().empty()
    traffic = [[f"user:{caller}:{number}" for number in range(keys) for _ in range(HITS)] for caller in range(CALLERS)]
    return load.sample(contestant, traffic, limit=1, admits=CALLERS * keys)


def tables(figures: Sequence[Measurement]) -> list[str]:
    metrics = (METRICS["per_second"], METRICS["server_us"])
    rows = [load.row(figures, CASE, one, metrics) for one in (*OURS_HERE, *PEERS)]
    return [table(["", "algorithm", *metrics], rows, left=2)]


def targets(figures: Sequence[Measurement]) -> list[Target]:
    return [load.beats_peers(figures, RATE, algorithm, AT_LEAST, CASE) for algorithm in ALGORITHMS]
