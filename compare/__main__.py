"""Compare this library with others, each in an environment of its own with its newest release.

Each pattern of docs/moving.md is run as users of the other library write it, and as it is written here. Both
must answer the same, unless the page says why they differ, and ours must answer what the page says.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from compare.moving.both import DIFFERS, SAME, WRONG, compare
from compare.moving.peer import MODULES
from tests.servers import RedisServer, newest, programs


def main() -> int:
    """Run the comparisons."""
    parser = argparse.ArgumentParser(
        prog="make compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog='Example: make compare ARGS="slowapi limits"',
    )
    parser.add_argument(
        "peers", nargs="*", choices=[[], *MODULES], help=f"some of {', '.join(MODULES)}; all by default"
    )
    peers = parser.parse_args().peers or list(MODULES)
    redis = RedisServer(programs()[newest()])
    try:
        found = Counter(result.verdict for peer in peers for result in compare(peer, f"redis://127.0.0.1:{redis.port}"))
    finally:
        redis.stop()
    named = f"{found[SAME]} the same, {found[DIFFERS]} differ as the page says, {found[WRONG]} wrong"
    print(f"\n{found.total()} patterns: {named}")
    return 1 if found[WRONG] else 0


if __name__ == "__main__":
    sys.exit(main())
