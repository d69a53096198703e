"""Run the drills: `make torture`, or some of them: `make torture ARGS="flood"`.

Each prints one line with its figure; the exit status is 1 when a promise is broken, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from tests.torture import (
    changes,
    clusters,
    crowds,
    figures,
    identities,
    interruptions,
    links,
    load,
    memory,
    policies,
    progress,
    redis,
    services,
    sqlite,
    states,
)

DRILLS: dict[str, Callable[[], str]] = {
    **memory.DRILLS,
    **interruptions.DRILLS,
    **sqlite.DRILLS,
    **redis.DRILLS,
    **links.DRILLS,
    **states.DRILLS,
    **load.DRILLS,
    **identities.DRILLS,
    **figures.DRILLS,
    **clusters.DRILLS,
    **services.DRILLS,
    **policies.DRILLS,
    **changes.DRILLS,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make torture",
        description="Run the drills, each against real servers, files and processes.",
        epilog='example: make torture ARGS="flood fork"',
    )
    parser.add_argument("drill", nargs="*", help=f"drills to run (default: all): {', '.join(DRILLS)}")
    names = parser.parse_args().drill or list(DRILLS)
    unknown = [name for name in names if name not in DRILLS]
    if unknown:
        parser.error(f"unknown drill {unknown[0]!r}; there are {', '.join(DRILLS)}")
    broken = 0
    crowds.quiet = True
    crowds.tolerance = 4.0  # times the promise
    for name in names:
        progress(name, "...")
        started = time.perf_counter()
        try:
            figure, verdict = DRILLS[name](), "kept"
        except Exception as error:  # noqa: BLE001 - an error that reaches a caller breaks a promise too
            figure = str(error) if isinstance(error, AssertionError) else repr(error)
            verdict = "BROKEN"
            broken += 1
        progress("", "")
        print(f"{name:<13} {verdict:<6} {time.perf_counter() - started:6.1f} s  {figure}", flush=True)
    print(f"{len(names) - broken} passed, {broken} failed")
    return 1 if broken else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
