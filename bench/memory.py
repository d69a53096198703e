"""Memory per key, measured with tracemalloc in a separate process for each contestant.

That process is this module: `python -m bench.memory NAME ALGORITHM KEYS HITS` prints the bytes.
"""

import gc
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from bench.contestants import OUR_CONTESTANTS, PEER_CONTESTANTS, ROOM, SHAPING, Contestant, pick
from bench.tables import by_contestant, section, table
from bench.timing import Measurement, Target, clean_up

NAME = "memory"
TITLE = "Memory"
ABOUT = (
    "Bytes that a key takes after one hit, with 100,000 keys in the store, including the key itself where "
    "the store keeps it; and bytes that each unit takes in a sliding log, with 100,000 units on one key. "
    "Measured with tracemalloc."
)

COUNT = 100_000
PER_KEY, PER_UNIT = "bytes per key", "bytes per unit of a log"
LOG = "sliding window log"


def run(_rounds: int) -> list[Measurement]:
    """Count once each: the result does not depend on the time or on the machine's load."""
    everyone = [one for one in (*OUR_CONTESTANTS, *PEER_CONTESTANTS) if one.algorithm != SHAPING]
    probes = [(PER_KEY, one, COUNT) for one in everyone]
    probes += [(PER_UNIT, one, 1) for one in everyone if one.algorithm == LOG]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(_probe, *zip(*probes, strict=True)))


def _probe(what: str, contestant: Contestant, keys: int) -> Measurement:
    print(f"{NAME}: {what}: {contestant.name}, {contestant.algorithm}", file=sys.stderr)
    arguments = [contestant.name, contestant.algorithm, str(keys), str(COUNT)]
    answer = subprocess.run(
        [sys.executable, "-m", "bench.memory", *arguments], check=True, stdout=subprocess.PIPE, text=True
    )
    return Measurement(what, contestant.algorithm, contestant.name, "bytes", (int(answer.stdout) / COUNT,))


def bytes_left(contestant: Contestant, keys: int, hits: int) -> int:
    """Return the bytes that a limiter takes after this many hits, spread evenly over this many keys."""
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    hit = contestant.make(2 * hits, ROOM)
    for number in range(hits):
        hit(f"user:{number % keys}")
    clean_up()
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    return after - before


def tables(figures: Sequence[Measurement]) -> list[str]:
    return [section(what, table(*by_contestant(figures, what))) for what in (PER_KEY, PER_UNIT)]


def targets(_figures: Sequence[Measurement]) -> list[Target]:
    return []


if __name__ == "__main__":
    name, algorithm, keys, hits = sys.argv[1:]
    try:
        print(bytes_left(pick(name, algorithm), int(keys), int(hits)))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
