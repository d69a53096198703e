"""How the cost of a decision grows with the number of keys in the store."""

from collections.abc import Callable, Sequence

from bench.contestants import ALGORITHMS, OURS, Contestant, pick
from bench.tables import find, ratio, spread, table, times
from bench.timing import Measurement, Target, interleave, names, per_decision, random_names

NAME = "keys"
TITLE = "A thousand keys and a million"
ABOUT = (
    "Microseconds for one ratekeeper decision with 1,000 and with 1,000,000 keys in the store, hit in random "
    "order, as new strings. The difference is the time that the processor waits for memory."
)

FEW, MANY = 1_000, 1_000_000
HITS = 100_000
SAMPLES = 2  # per round
LIMIT = 10_000
ROOM = 2 * MANY  # so that no key is evicted
AT_MOST = 2


def run(rounds: int) -> list[Measurement]:
    figures = []
    for algorithm in ALGORITHMS:
        ours = pick(OURS, algorithm)
        tasks = {_case(population): _prepare(ours, population) for population in (FEW, MANY)}
        samples = interleave(f"{NAME}: {algorithm}", tasks, rounds * SAMPLES)
        figures += [Measurement(what, algorithm, OURS, "us", values) for what, values in samples.items()]
    return figures


def _case(population: int) -> str:
    return f"{population:,} keys"


def _prepare(contestant: Contestant, population: int) -> Callable[[], float]:
    hit = contestant.make(LIMIT, ROOM)
    for key in names(range(population)):
        hit(key)
    traffic = random_names(population, HITS)
    return lambda: per_decision(hit, traffic())


def _few_and_many(figures: Sequence[Measurement], algorithm: str) -> list[Measurement | None]:
    return [find(figures, _case(population), algorithm, OURS) for population in (FEW, MANY)]


def tables(figures: Sequence[Measurement]) -> list[str]:
    rows = []
    for algorithm in ALGORITHMS:
        few, many = _few_and_many(figures, algorithm)
        rows.append([algorithm, spread(few), spread(many), times(ratio(many, few))])
    return [table(["", _case(FEW), _case(MANY), "ratio"], rows)]


def targets(figures: Sequence[Measurement]) -> list[Target]:
    rows = []
    for algorithm in ALGORITHMS:
        few, many = _few_and_many(figures, algorithm)
        measured = ratio(many, few)
        promise = f"{algorithm}, from {_case(FEW)} to {MANY:,}: within {AT_MOST} times"
        rows.append(Target(promise, times(measured), measured <= AT_MOST))
    return rows
