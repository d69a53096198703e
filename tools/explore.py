"""Search for failures with new random examples: runs the tests that generate their examples again and again.

    make explore                                # ten minutes
    make explore ARGS="--minutes 60 -k bucket"  # an hour, some of the tests
    make explore ARGS="--examples 2000"         # more examples for each test in a round

The search stops at the first round that fails. The failing example is saved in .hypothesis and tried first by the next
run; add it to the test with @example, then fix the code.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
HANGS = 3_600  # seconds, because a failing example is made smaller for minutes: 300 in `make test`


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10, help="when to start no further round (default: 10)")
    parser.add_argument("--examples", type=int, default=200, help="examples for each test in a round (default: 200)")
    parser.add_argument("-k", metavar="EXPRESSION", default="", help="only run matching tests, as with pytest")
    return parser.parse_args()


def main() -> int:
    arguments = parsed()
    environment = {**os.environ, "HYPOTHESIS_PROFILE": "explore", "EXAMPLES": str(arguments.examples)}
    begun = time.monotonic()
    round_number = 0
    while time.monotonic() - begun < 60 * arguments.minutes:
        round_number += 1
        print(f"round {round_number}: ", end="", flush=True)
        ended = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-m", "generated", "-n", "auto", "--dist", "worksteal"),
                *("-o", f"faulthandler_timeout={HANGS}", "-k", arguments.k),  # no seed, with which no example is saved
            ],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        minutes = (time.monotonic() - begun) / 60
        if ended.returncode:
            print(f"failed, {minutes:.1f} min", ended.stdout, ended.stderr, sep="\n")
            return 1
        print(f"{ended.stdout.splitlines()[-1].strip('= ')}; {minutes:.1f} min in all", flush=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
