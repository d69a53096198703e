"""The cost of a long sliding log that is full, so that one entry expires before every decision."""

from collections.abc import Callable, Sequence
from itertools import count

from bench.contestants import OURS
from bench.tables import find, ratio, spread, table, times
from bench.timing import Measurement, Target, interleave, per_decision
from ratekeeper import Limiter, SlidingWindowLog

NAME = "log"
TITLE = "A long sliding log"
ABOUT = (
    "Microseconds for one decision of our sliding window log when it is full: the clock advances at every "
    "reading, so that exactly one entry expires before each hit and every hit is admitted into the room that "
    "this entry leaves."
)

ALGORITHM = "sliding window log"
SHORT, LONG = 100, 100_000
HITS = 50_000
AT_MOST = 2


def run(rounds: int) -> list[Measurement]:
    tasks = {_case(limit): _prepare(limit) for limit in (SHORT, LONG)}
    samples = interleave(NAME, tasks, rounds)
    return [Measurement(what, ALGORITHM, OURS, "us", values) for what, values in samples.items()]


def _case(limit: int) -> str:
    return f"limit {limit:,}"


def _prepare(limit: int) -> Callable[[], float]:
    # Read once per decision, each time a millisecond later; no other callable is cheaper.
    clock = count(10**18, 1_000_000).__next__
    hit = Limiter(SlidingWindowLog(limit=limit, window=f"{limit}ms"), clock=clock).hit
    keys = ["user:0"] * HITS
    per_decision(hit, ["user:0"] * limit)
    decision = hit("user:0")
    if not decision or decision.remaining:
        raise SystemExit(f"{ALGORITHM}, {_case(limit)}: should be full and admit, but answers {decision!r}")
    return lambda: per_decision(hit, keys)


def _short_and_long(figures: Sequence[Measurement]) -> list[Measurement | None]:
    return [find(figures, _case(limit), ALGORITHM, OURS) for limit in (SHORT, LONG)]


def tables(figures: Sequence[Measurement]) -> list[str]:
    short, long = _short_and_long(figures)
    row = [OURS, spread(short), spread(long), times(ratio(long, short))]
    return [table(["", _case(SHORT), _case(LONG), "ratio"], [row])]


def targets(figures: Sequence[Measurement]) -> list[Target]:
    short, long = _short_and_long(figures)
    measured = ratio(long, short)
    promise = f"{ALGORITHM}, {_case(LONG)}: at most {AT_MOST} times what it costs at {_case(SHORT)}"
    return [Target(promise, times(measured), measured <= AT_MOST)]
