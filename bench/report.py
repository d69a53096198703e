"""Where figures go: JSON for programs, a Markdown page for people."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

from bench.contestants import OURS
from bench.peers import PEERS
from bench.tables import table
from bench.timing import Measurement
from tests import servers

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
CHART = ROOT / "docs" / "benchmarks.svg"

PACKAGES = (
    *("ratekeeper", "limits", "throttled-py", "pyrate-limiter", "aiolimiter"),
    *("redis", "hiredis", "coredis"),
    *("slowapi", "fastapi-limiter", "uvicorn", "flask", "flask-limiter"),
)

METHOD = (
    "Every figure comes from `make bench`. Contestants take turns within each round and the median of the rounds "
    "counts; a ratio is the median of the rounds' ratios, so that it holds where single figures depend on the "
    "machine. The cost of a decision in memory is the processor time of the process, a library's background threads "
    "included. On Redis the clock on the wall counts; the server runs on the same machine, started for this, and "
    "saves nothing to disk. The garbage collector runs, as it does in production, and passes over what the "
    "benchmark itself keeps."
)

# What a group's file holds: for each suite its environment and its figures.
Stored = dict[str, dict[str, Any]]


def environment(rounds: int) -> dict[str, Any]:
    """What a figure depends on besides the code."""
    return {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.machine()}",
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "redis": _redis(),
        "rounds": rounds,
        "packages": {package: version(package) for package in PACKAGES},
    }


def _redis() -> str:
    try:
        return f"Redis {servers.newest()}"
    except AssertionError:
        return "no Redis"


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown processor"


def entry(figures: Sequence[Measurement], rounds: int) -> dict[str, Any]:
    """What is kept of one suite's run."""
    return {
        "environment": environment(rounds),
        "figures": [{**asdict(figure), "median": figure.median} for figure in figures],
    }


def figures_of(stored: Mapping[str, Any]) -> list[Measurement]:
    """The figures of one suite as they were measured."""
    names = [field.name for field in fields(Measurement)]
    rows = [{name: figure[name] for name in names} for figure in stored["figures"]]
    return [Measurement(**{**row, "samples": tuple(row["samples"])}) for row in rows]


def load(group: str) -> Stored:
    path = RESULTS / f"{group}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def save(group: str, stored: Stored) -> Path:
    path = RESULTS / f"{group}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(stored, indent=1) + "\n")
    return path


def page(suites: Sequence[ModuleType], stored: Stored) -> str:
    """The Markdown page for these suites, as far as they were run."""
    present = [suite for suite in suites if suite.NAME in stored]
    newest = max((stored[suite.NAME]["environment"] for suite in present), key=lambda one: one["date"])
    parts = [
        "<!-- Written by `python -m bench`; edits are lost. -->",
        "# Benchmarks",
        METHOD,
        "![Microseconds for one decision in memory](benchmarks.svg)",
        _environment_line(newest),
        "## Contestants",
        _contestants(newest["packages"]),
    ]
    for suite in present:
        one = stored[suite.NAME]
        parts += [f"## {suite.TITLE}", suite.ABOUT]
        if one["environment"] != newest:
            parts.append(_environment_line(one["environment"]))
        parts += suite.tables(figures_of(one))
    parts += ["## Targets", _targets(present, stored)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _environment_line(one: Mapping[str, Any]) -> str:
    machine = ", ".join(one[part] for part in ("python", "system", "processor", "redis") if part in one)
    return f"Measured on {one['date']}: {machine}, {one['rounds']} rounds."


def _contestants(packages: Mapping[str, str]) -> str:
    rows = [[OURS, packages[OURS], "`Limiter(rule).hit(key)`, in memory", "all of `Decision`"]]
    rows += [[peer.name, packages[peer.package], peer.configuration, peer.answers] for peer in PEERS]
    rows.append(
        [
            "aiolimiter",
            packages["aiolimiter"],
            "`await AsyncLimiter(rate, period).acquire()`",
            "nothing; it waits",
        ]
    )
    return table(["", "version", "as measured", "answers"], rows, left=4)


def _targets(suites: Sequence[ModuleType], stored: Stored) -> str:
    rows = [
        [target.promise, target.measured, "met" if target.met else "**missed**"]
        for suite in suites
        for target in suite.targets(figures_of(stored[suite.NAME]))
    ]
    return table(["target", "measured", ""], rows, left=3) if rows else "No target in the suites that ran."
