"""The throughput of one event loop with many concurrent callers."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from bench.contestants import OURS
from bench.redis import load, node
from bench.redis.contestants import OUR_CONTESTANTS, PEER_CONTESTANTS, Contestant
from bench.redis.load import METRICS, Load
from bench.redis.server import server
from bench.tables import find, ratio, section, table, times
from bench.timing import Measurement, Target

NAME = "redis-callers"
TITLE = "On Redis: many callers in one event loop"
ABOUT = (
    "Each caller requests one decision after another, all admitted, on its own key or all on one hot key. The columns "
    "are decisions a second, the 50th and 99th percentiles of latency, the server's CPU microseconds for each, and "
    'the number of errors. ratekeeper runs `await AsyncLimiter(rule, url, on_error="raise", deadline=30).hit(key)`: '
    "with the default deadline of 0.1 s, slower decisions would count as errors. Requests that arrive while a call "
    "is in flight go together into one call. The peers send one call per decision, over a blocking pool of 64 "
    "connections; their p99 includes the wait for a connection. Each peer runs its fixed window or its token "
    "bucket, whichever it has; throttled-py's fixed window is a plain `INCRBY`, all others are scripts."
)

ALGORITHMS = ("fixed window", "token bucket")
LIMIT = 1_000_000
OUR_HITS = {64: 150, 512: 24, 5_000: 3}  # hits per caller, by the number of callers
PEER_HITS = {64: 30, 512: 5, 5_000: 2}
MOST = max(OUR_HITS)
NODE_CALLERS, NODE_HITS = 512, 40
HOT = (64, 512)

AT_LEAST = {64: 4, 512: 8}
AIM = {64: " (aim: 7)", 512: ""}
HOT_AT_LEAST = 1.2
RATE, P99, ERRORS = METRICS["per_second"], METRICS["p99_ms"], METRICS["errors"]

PEERS = [one for one in PEER_CONTESTANTS if one.algorithm in ALGORITHMS and one.open]
OURS_HERE = [one for one in OUR_CONTESTANTS if one.algorithm in ALGORITHMS]
HOT_HERE = [replace(one, name=f"{OURS}, one hot key") for one in OURS_HERE]


def run(rounds: int) -> list[Measurement]:
    figures = []
    for callers, hits in OUR_HITS.items():
        tasks = {one: partial(_distinct, one, callers, hits) for one in OURS_HERE}
        tasks |= {one: partial(_distinct, one, callers, PEER_HITS[callers]) for one in PEERS}
        if callers in HOT:
            tasks |= {one: partial(_hot, one, callers, hits) for one in HOT_HERE}
        if callers == NODE_CALLERS and not node.missing():
            tasks[node.NODE] = partial(node.sample, callers, NODE_HITS)
        # Fewer rounds with the most callers: the peers need seconds for each.
        figures += load.measure(NAME, _case(callers), tasks, rounds if callers < MOST else (rounds + 2) // 3)
    return figures


def _case(callers: int) -> str:
    return f"{callers:,} callers"


def _distinct(contestant: Contestant, callers: int, hits: int) -> Load:
    server().empty()
    return load.sample(contestant, [[f"user:{number}"] * hits for number in range(callers)], LIMIT, callers * hits)


def _hot(contestant: Contestant, callers: int, hits: int) -> Load:
    server().empty()
    return load.sample(contestant, [["user:0"] * hits] * callers, LIMIT, callers * hits)


def tables(figures: Sequence[Measurement]) -> list[str]:
    metrics = tuple(METRICS.values())
    parts = []
    for callers in OUR_HITS:
        case = _case(callers)
        everyone = (*OURS_HERE, *HOT_HERE, *PEERS, node.NODE)
        measured = [one for one in everyone if find(figures, f"{case}: {RATE}", one.algorithm, one.name)]
        rows = [load.row(figures, case, one, metrics) for one in measured]
        if callers == NODE_CALLERS and node.NODE not in measured:
            rows.append([node.NODE.name, "not measured: it could not be installed here", *[""] * len(metrics)])
        parts.append(section(case, table(["", "algorithm", *metrics], rows, left=2)))
    return parts


def targets(figures: Sequence[Measurement]) -> list[Target]:
    rows = []
    for one in OURS_HERE:
        for callers in OUR_HITS:
            rows += _beside_peers(figures, one.algorithm, callers)
        for callers in HOT:
            case = f"{_case(callers)}: {RATE}"
            hot = find(figures, case, one.algorithm, HOT_HERE[0].name)
            measured = ratio(hot, find(figures, case, one.algorithm, OURS))
            promise = f"on Redis, {one.algorithm}, {_case(callers)} on one hot key: {HOT_AT_LEAST} times distinct keys"
            rows.append(Target(promise, times(measured), measured >= HOT_AT_LEAST))
    case = f"{_case(NODE_CALLERS)}: {RATE}"
    theirs = find(figures, case, node.NODE.algorithm, node.NODE.name)
    if theirs:
        measured = ratio(find(figures, case, node.NODE.algorithm, OURS), theirs)
        promise = f"on Redis, fixed window, {_case(NODE_CALLERS)}: as many decisions as {node.NODE.name}"
        rows.append(Target(promise, times(measured), measured >= 1))
    return rows


def _beside_peers(figures: Sequence[Measurement], algorithm: str, callers: int) -> list[Target]:
    case, rows = _case(callers), []
    if callers in AT_LEAST:
        rows.append(load.beats_peers(figures, f"{case}: {RATE}", algorithm, AT_LEAST[callers], case, AIM[callers]))
    ours, peers = find(figures, f"{case}: {P99}", algorithm, OURS), load.best_peer(figures, f"{case}: {P99}", min)
    measured = ratio(ours, peers)
    rows.append(Target(f"on Redis, {algorithm}, {case}: p99 below every Python peer's", times(measured), measured < 1))
    if callers == MOST:
        failed = find(figures, f"{case}: {ERRORS}", algorithm, OURS)
        count = sum(failed.samples) if failed else -1
        rows.append(Target(f"on Redis, {algorithm}, {case}: no error", f"{count:.0f}", count == 0))
    return rows
