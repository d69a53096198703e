"""Drills on the SQLite store. Each returns its figure, or raises AssertionError with what it saw instead."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ratekeeper import FixedWindow, LeakyBucket, Limiter, SlidingWindowCounter, SlidingWindowLog, TokenBucket
from ratekeeper.algorithms import Rule
from ratekeeper.stores import SqliteStore
from tests.torture import progress

_LONG = 30  # seconds: only distinguishes an answer from a hang


def _rules(limit: int) -> list[Rule]:
    return [
        FixedWindow(limit, 86_400),
        SlidingWindowLog(limit, 86_400),
        SlidingWindowCounter(limit, 86_400),
        TokenBucket(limit, "1/30minutes"),
        LeakyBucket(limit, "1/30minutes"),
        LeakyBucket(limit, "1/30minutes", "shaping"),
    ]


def _in_a_child(work: Callable[[], None]) -> int:
    """Fork a child that runs `work`, and return its process ID."""
    child = os.fork()
    if child:
        return child
    try:
        signal.alarm(600)
        work()
    except BaseException as error:  # noqa: BLE001 - only the parent may report to the test runner
        os.write(2, f"{error!r}\n".encode())
        os._exit(1)
    os._exit(0)


def exact_file(processes: int = 8, hits: int = 5_000, limit: int = 10_000) -> str:
    """Eight processes on one key of one file admit exactly the limit, for each algorithm."""
    with tempfile.TemporaryDirectory() as folder:
        for number, rule in enumerate(_rules(limit)):
            progress("exact_file", rule.text)
            path, told = f"{folder}/limits.db", Path(folder, f"told-{number}")

            def work(rule: Rule = rule, path: str = path, told: Path = told) -> None:
                limiter = Limiter(rule, SqliteStore(path), on_error="raise", deadline=_LONG)
                admitted = sum(limiter.hit("one").allowed for _ in range(hits))
                with told.open("ab") as file:
                    file.write(b"x" * admitted)

            children = [_in_a_child(work) for _ in range(processes)]
            failed = sum(os.waitpid(child, 0)[1] != 0 for child in children)
            assert failed == 0, f"{rule.text}: {failed} of {processes} processes failed"
            admitted = told.stat().st_size
            assert admitted == limit, f"{rule.text}: {admitted:,} admitted of {limit:,}"
    return f"6 rules, {processes} processes x {hits:,} hits: exactly {limit:,} admitted by each"


def killed_file(kills: int = 2_000, processes: int = 8) -> str:
    """Processes killed at any moment lose at most the decisions in progress, and the file stays intact."""
    chance = random.Random(1)
    rules = {rule.text: rule for rule in _rules(10**6)}
    rules["log"] = SlidingWindowLog(10**4, 3_600)  # a state that spans many pages
    del rules[SlidingWindowLog(10**6, 86_400).text]
    with tempfile.TemporaryDirectory() as folder:
        path, told = f"{folder}/limits.db", f"{folder}/told"

        def work() -> None:
            limiter = Limiter(rules, SqliteStore(path), on_error="raise", deadline=_LONG)
            file = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            number = 0
            while True:
                if limiter.hit(dict.fromkeys(rules, "one") | {"log": f"log:{number % 7}"}):
                    os.write(file, b"x")
                number += 1

        children = [_in_a_child(work) for _ in range(processes)]
        try:
            for number in range(kills):
                time.sleep(chance.random() * 0.02)
                victim = children.pop(chance.randrange(processes))
                os.kill(victim, signal.SIGKILL)
                ended = os.waitpid(victim, 0)[1]
                assert ended == signal.SIGKILL, f"a process ended by itself, with status {ended}"
                children.append(_in_a_child(work))
                if number % 50 == 0:
                    progress("killed_file", f"{number:,} of {kills:,}")
                    _check(path)
        finally:
            for child in children:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
        _check(path)
        admitted = Path(told).stat().st_size
        limiter = Limiter(rules, SqliteStore(path), on_error="raise", deadline=_LONG)
        standing = limiter.peek(dict.fromkeys(rules, "one") | {"log": "log:0"})
        limiter.store.close()
        used = {name: rules[name].limit - layer.remaining for name, layer in standing.layers.items() if name != "log"}
        lost = {name: count for name, count in used.items() if not admitted <= count <= admitted + kills + processes}
        assert not lost, f"{admitted:,} admitted, but counted: {lost}"
        assert len(set(used.values())) == 1, f"a request was counted in part: {used}"
    return f"{kills:,} of {processes} processes killed, {admitted:,} admitted, {next(iter(used.values())):,} counted"


def _check(path: str) -> None:
    connection = sqlite3.connect(path, timeout=_LONG)
    try:
        found = connection.execute("PRAGMA integrity_check").fetchall()
    finally:
        connection.close()
    assert found == [("ok",)], f"the file is damaged: {found}"


DRILLS = {"exact_file": exact_file, "killed_file": killed_file}
