"""The command: run the suites, print the tables, store the figures."""

import argparse
import sys
from collections.abc import Sequence

from bench import (
    asgi,
    chart,
    decision,
    fresh,
    keys,
    log,
    memory,
    page,
    policies,
    redis,
    report,
    service,
    sqlite,
    threads,
    waiting,
    wsgi,
)
from tests import chromium, servers

# Each group has its own file in bench/results/; the page shows all of them.
GROUPS = {
    "memory": (decision, keys, memory, threads, log, waiting, fresh),
    "sqlite": (sqlite,),
    "redis": redis.SUITES,
    "http": (asgi, wsgi, service, policies, page),
}
SUITES = {suite.NAME: suite for group in GROUPS.values() for suite in group}
ROUNDS, QUICK_ROUNDS = 7, 2

EXAMPLE = """examples:
  python -m bench                          all suites; takes several minutes, best on a quiet machine
  python -m bench --quick --only decision  a first look at one suite
  python -m bench --group redis            all suites on Redis; needs redis-server on the PATH

Writes bench/results/*.json, docs/benchmarks.md and docs/benchmarks.svg; with --quick it writes nothing, and with
--only the figures of the other suites stay unchanged. A missed target is reported but is not an error.
"""


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure ratekeeper against its peers.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=SUITES,
        metavar="NAME",
        help=f"run this suite; may be repeated: {', '.join(SUITES)}",
    )
    parser.add_argument("--group", choices=GROUPS, help="run the suites of one group")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help=f"rounds per suite (default {ROUNDS})")
    parser.add_argument("--quick", action="store_true", help=f"run {QUICK_ROUNDS} rounds and write nothing")
    options = parser.parse_args(argv)
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    wanted = options.only or [suite.NAME for suite in GROUPS.get(options.group, SUITES.values())]
    chosen = [suite for name, suite in SUITES.items() if name in wanted]
    rounds = QUICK_ROUNDS if options.quick else options.rounds
    try:
        if set(chosen) & set(redis.SUITES):
            servers.programs()  # fail before any suite runs, otherwise its figures would be lost
        if {service, policies} & set(chosen):
            service.wrk()
        if page in chosen:
            chromium.program()
        measured = {suite.NAME: report.entry(suite.run(rounds), rounds) for suite in chosen}
    except AssertionError as missing:
        print(missing, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return 130
    print(report.page(chosen, measured))
    if not options.quick:
        write(measured)
    return 0


def write(measured: report.Stored) -> None:
    """Replace the stored figures of these suites, and write the page again."""
    everything: report.Stored = {}
    for group, suites in GROUPS.items():
        fresh_figures = {suite.NAME: measured[suite.NAME] for suite in suites if suite.NAME in measured}
        stored = {**report.load(group), **fresh_figures}
        if fresh_figures:
            print(f"wrote {report.save(group, stored)}", file=sys.stderr)
        everything |= stored
    report.PAGE.parent.mkdir(parents=True, exist_ok=True)
    report.PAGE.write_text(report.page(list(SUITES.values()), everything))
    print(f"wrote {report.PAGE}", file=sys.stderr)
    if decision.NAME in everything:
        cases = [decision.case(count, "admitted") for count in (1, decision.MANY)]
        figures = report.figures_of(everything[decision.NAME])
        title = "One decision in memory"
        chart.draw(figures, cases, decision.ALGORITHMS, title, report.CHART)
        print(f"wrote {report.CHART}", file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
