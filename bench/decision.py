"""The cost of one decision, for one key and for many, admitted and denied."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from bench.contestants import (
    ALGORITHMS,
    FLOOR,
    FLOOR_CONTESTANTS,
    OUR_CONTESTANTS,
    OURS,
    PEER_CONTESTANTS,
    ROOM,
    Contestant,
)
from bench.tables import by_contestant, find, labels, ratio, section, table, times
from bench.timing import Hit, Measurement, Target, interleave, names, per_decision, random_names

NAME = "decision"
TITLE = "One decision"
ABOUT = (
    "Microseconds for one decision: the median of the rounds (minimum to maximum). ratekeeper runs "
    "`Limiter(rule).hit(key)` and returns the complete answer; the table of contestants says what the peers return. "
    "Admitted: a limit of 10,000 a day that is never reached; denied: a limit of 1 that is used up. Many keys "
    "are hit in random order, as new strings. The floor is a function call, a dict get and a clock read."
)

MANY = 100_000
LIMITS = {"admitted": 10_000, "denied": 1}
CONTESTANTS = (*OUR_CONTESTANTS, *PEER_CONTESTANTS, *FLOOR_CONTESTANTS)

# Short samples on a fresh limiter keep every log short, since some peers get slower as it grows.
ONE_KEY_HITS = 1_000
ONE_KEY_SAMPLES = 5  # per round
MANY_KEYS_HITS = 30_000
MANY_KEYS_SAMPLES = 2
WARM_UP = 10

FASTER, AIM = 3, 5

Tasks = Mapping[Contestant, Callable[[], float]]


def run(rounds: int) -> list[Measurement]:
    figures = []
    for traffic, limit in LIMITS.items():
        tasks = {one: partial(_one_key, one, limit) for one in CONTESTANTS}
        figures += _measure(case(1, traffic), "", tasks, rounds * ONE_KEY_SAMPLES)
    for traffic, limit in LIMITS.items():
        for algorithm in labels(CONTESTANTS, "algorithm"):
            tasks = {one: _many_keys(one, limit) for one in CONTESTANTS if one.algorithm == algorithm}
            figures += _measure(case(MANY, traffic), algorithm, tasks, rounds * MANY_KEYS_SAMPLES)
    return figures


def case(keys: int, traffic: str) -> str:
    return f"{_population(keys)}, {traffic}"


def _population(keys: int) -> str:
    return "one key" if keys == 1 else f"{keys:,} keys"


def _measure(what: str, detail: str, tasks: Tasks, rounds: int) -> list[Measurement]:
    samples = interleave(": ".join(filter(None, (NAME, what, detail))), tasks, rounds)
    return [Measurement(what, one.algorithm, one.name, "us", values) for one, values in samples.items()]


def _one_key(contestant: Contestant, limit: int) -> float:
    hit = contestant.make(limit, ROOM)
    for key in ["user:0"] * WARM_UP:
        hit(key)
    sample = per_decision(hit, ["user:0"] * ONE_KEY_HITS)
    _check(contestant, hit, limit)
    return sample


def _many_keys(contestant: Contestant, limit: int) -> Callable[[], float]:
    hit = contestant.make(limit, ROOM)
    for key in names(range(MANY)):
        hit(key)
    _check(contestant, hit, limit)
    traffic = random_names(MANY, MANY_KEYS_HITS)
    return lambda: per_decision(hit, traffic())


def _check(contestant: Contestant, hit: Hit, limit: int) -> None:
    if contestant.name != FLOOR:
        contestant.check(hit, "user:0", expected=limit > 1)


def fastest_peer(figures: Sequence[Measurement], what: str, algorithm: str) -> Measurement | None:
    """Return the fastest peer for this algorithm, or for one that admits the same traffic."""
    peers = [
        figure
        for figure in figures
        if (figure.case, figure.algorithm) == (what, algorithm) and figure.contestant not in (OURS, FLOOR)
    ]
    return min(peers, key=lambda figure: figure.median, default=None)


def tables(figures: Sequence[Measurement]) -> list[str]:
    return [section(what, _table(figures, what)) for what in labels(figures, "case")]


def _table(figures: Sequence[Measurement], what: str) -> str:
    header, rows = by_contestant(figures, what)
    faster, slower = ["**fastest peer / ours**"], ["ours / floor"]
    for algorithm in header[1:]:
        ours = find(figures, what, algorithm, OURS)
        faster.append(f"**{times(ratio(fastest_peer(figures, what, algorithm), ours))}**")
        slower.append(times(ratio(ours, find(figures, what, algorithm, FLOOR))))
    return table(header, [*rows, faster, slower])


def targets(figures: Sequence[Measurement]) -> list[Target]:
    return [_target(figures, keys, algorithm) for keys in (1, MANY) for algorithm in ALGORITHMS]


def _target(figures: Sequence[Measurement], keys: int, algorithm: str) -> Target:
    what = case(keys, "admitted")
    peer = fastest_peer(figures, what, algorithm)
    measured = ratio(peer, find(figures, what, algorithm, OURS))
    promise = f"{algorithm}, {_population(keys)}: {FASTER} times as fast as the fastest peer (aim: {AIM})"
    who = peer.contestant if peer else "no peer"
    return Target(promise, f"{times(measured)} ({who})", measured >= FASTER)
