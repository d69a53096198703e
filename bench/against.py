"""Compare this tree with an earlier revision: `python -m bench.against REVISION [SUITE ...]` prints each row's change.

Both run this tree's suites, alternating in separate processes, without other libraries where possible. A ratio is the
median of the rounds' ratios; above 1, this tree is better.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = """
import json, sys
from bench import timing
from bench.contestants import FLOOR, OURS

def is_ours(label):
    name = getattr(label, "name", label[0] if isinstance(label, tuple) else label)
    return str(name).startswith((OURS, FLOOR))

def of_ours(what, tasks, rounds, everybody=timing.interleave):
    ours = {label: task for label, task in tasks.items() if is_ours(label)}
    return everybody(what, ours or tasks, rounds)

timing.interleave = of_ours
from bench.__main__ import SUITES
figures = SUITES[sys.argv[1]].run(1)
ours = [each for each in figures if each.contestant.startswith(OURS)]
print(json.dumps([[f"{each.case} | {each.algorithm}", each.unit, each.median] for each in ours]))
"""
BETTER_IF_MORE = ("/s", "a second", "times")


def main() -> int:
    from bench.__main__ import GROUPS, SUITES

    parser = argparse.ArgumentParser(prog="python -m bench.against", description=__doc__.partition("\n")[0])
    parser.add_argument("revision", help="revision to compare with, such as HEAD~5")
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"suites or groups: {', '.join((*GROUPS, *SUITES))}")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds of each suite (default: 5)")
    options = parser.parse_args()
    wanted = [suite.NAME for name in options.suites or ["memory"] for suite in GROUPS.get(name) or [SUITES[name]]]
    with tempfile.TemporaryDirectory() as earlier:
        _check_out(options.revision, Path(earlier))
        for name in wanted:
            rounds = []
            for number in range(options.rounds):
                print(f"{name}: round {number + 1} of {options.rounds}", file=sys.stderr)
                sources = [Path(earlier) / "src", ROOT / "src"]
                samples = {source: _sample(source, name) for source in (sources if number % 2 else sources[::-1])}
                rounds.append([samples[source] for source in sources])
            _show(name, rounds)
    return 0


def _check_out(revision: str, into: Path) -> None:
    archive = subprocess.run(["git", "archive", revision, "src"], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    subprocess.run(["tar", "-x", "-C", str(into)], input=archive.stdout, check=True)


def _sample(source: Path, suite: str) -> dict[str, tuple[str, float]]:
    environment = os.environ | {"PYTHONPATH": f"{source}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-c", SAMPLE, suite]
    said = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if said.returncode:
        raise SystemExit(f"{suite} on {source} failed:\n{said.stderr[-2000:]}")
    return {row: (unit, median) for row, unit, median in json.loads(said.stdout.splitlines()[-1])}


def _show(suite: str, rounds: list[list[dict[str, tuple[str, float]]]]) -> None:
    print(f"\n{suite}: earlier, now, ratio (above 1: better now)")
    for row, (unit, _) in rounds[0][1].items():
        pairs = [(old[row][1], new[row][1]) for old, new in rounds if row in old]
        if not pairs or not all(old and new for old, new in pairs):
            continue
        more = any(word in unit for word in BETTER_IF_MORE)
        ratio = statistics.median(new / old if more else old / new for old, new in pairs)
        before, now = (statistics.median(side) for side in zip(*pairs, strict=True))
        print(f"  {row:60} {before:12.4g} {now:12.4g} {unit:8} {ratio:6.3f}{'  worse' if ratio < 0.95 else ''}")


if __name__ == "__main__":
    raise SystemExit(main())
