"""The cost of `POST /v1/hit`, compared with a bare granian handler that returns a constant."""

import contextlib
import functools
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from bench.contestants import OURS
from bench.tables import find, labels, number, ratio, spread, table
from bench.timing import Measurement, Target, interleave
from tests.servers import RedisServer, free_port, newest, programs

NAME = "service"
TITLE = "The service"
ABOUT = (
    "`POST /v1/hit` with an inline rule (a fixed window that denies nothing) on `ratekeeper serve`, one process, under "
    "wrk with 64 keep-alive connections: requests a second. Bare is an ASGI handler on the same server, granian, "
    "that returns a constant and reads nothing. Batch: `POST /v1/hit/batch` with 100 such hits on 4 connections, "
    "in decisions a second. Without metrics: with `--no-metrics`, which counts nothing for metrics and top talkers. "
    "Two workers: with `--workers 2`, beside one on such a store; wrk and Redis share the processors with them."
)
BARE, MEMORY, UNCOUNTED, REDIS = "bare", "memory", "memory, without metrics", "Redis"
FILE = "a file"
TWO_WORKERS = {FILE: "a file, two workers", REDIS: "Redis, two workers"}
BATCHES = {MEMORY: "memory, batch", UNCOUNTED: "memory, batch, without metrics", REDIS: "Redis, batch"}
IN_A_BATCH = 100
ALGORITHM = "fixed window"
CONNECTIONS, SECONDS = 64, 2
BATCH_CONNECTIONS = 4
ASK = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = [[%s]]
"""
GRANIAN = ("granian", "--interface", "asgi", "--no-ws", "--http", "1", "--log-level", "error")
HIT = '{"key": "ada", "algorithm": "fixed-window", "limit": 1000000000, "window": 60}'
BATCH = f'{{"requests": [{", ".join([HIT] * IN_A_BATCH)}]}}'


@functools.cache
def wrk() -> str:
    """Return the load generator; a client in Python would be slower than the server that it measures."""
    program = shutil.which("wrk")
    if program is None:
        raise AssertionError("wrk not found; on Debian: apt-get install wrk, on macOS: brew install wrk")
    return program


def run(rounds: int) -> list[Measurement]:
    with contextlib.ExitStack() as stack:
        redis = RedisServer(programs()[newest()])
        stack.callback(redis.stop)
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        single, batch = directory / "hit.lua", directory / "batch.lua"
        single.write_text(ASK % HIT)
        batch.write_text(ASK % BATCH)
        serve = ("ratekeeper.cli", "serve", "--store")
        commands = {
            BARE: (*GRANIAN, "bench.constant:app"),
            MEMORY: (*serve, "memory://"),
            UNCOUNTED: (*serve, "memory://", "--no-metrics"),
            REDIS: (*serve, redis.url),
            FILE: (*serve, f"sqlite://{directory}/limits.db"),
            TWO_WORKERS[FILE]: (*serve, f"sqlite://{directory}/two.db", "--workers", "2"),
            TWO_WORKERS[REDIS]: (*serve, redis.url, "--workers", "2"),
        }
        ports = {case: stack.enter_context(served(*command)) for case, command in commands.items()}
        tasks = {
            (case, BARE if case == BARE else OURS): partial(requests_a_second, port, "/v1/hit", single)
            for case, port in ports.items()
        }
        tasks |= {
            (case, OURS): partial(requests_a_second, ports[store], "/v1/hit/batch", batch, IN_A_BATCH)
            for store, case in BATCHES.items()
        }
        samples = interleave(NAME, tasks, rounds)
    return [Measurement(case, ALGORITHM, name, "requests/s", samples[case, name]) for case, name in samples]


@contextlib.contextmanager
def served(*command: str) -> Iterator[int]:
    """Run a server; yields its port."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", *command, "--port", str(port)], env={**os.environ}, stdout=subprocess.DEVNULL
    )
    try:
        listening(port)
        yield port
    finally:
        process.terminate()
        process.wait()


def listening(port: int) -> None:
    """Wait until a server listens on a port."""
    for _ in range(600):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.05)


def requests_a_second(port: int, path: str, script: Path, decisions: int = 1) -> float:
    """Return the decisions a second, of which each request has as many as this."""
    connections = CONNECTIONS if decisions == 1 else BATCH_CONNECTIONS
    options = ("-t", "1", "-c", str(connections), "-d", str(SECONDS), "-s", str(script))
    command = [wrk(), *options, f"http://127.0.0.1:{port}{path}"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if "Non-2xx" in said or "Socket errors" in said:
        raise AssertionError(said)
    return float(re.search(r"Requests/sec:\s+([\d.]+)", said)[1]) * decisions


def of(figures: Sequence[Measurement], case: str) -> Measurement | None:
    return find(figures, case, ALGORITHM, BARE if case == BARE else OURS)


def tables(figures: Sequence[Measurement]) -> list[str]:
    rows = [
        [case, spread(of(figures, case)), number(ratio(of(figures, case), of(figures, BARE)))]
        for case in labels(figures, "case")
    ]
    return [table(["", "requests a second", "of the bare handler"], rows), *two_workers(figures)]


def two_workers(figures: Sequence[Measurement]) -> list[str]:
    """Return what two workers answer of what one does, on each store."""
    gains = {store: ratio(of(figures, case), of(figures, store)) for store, case in TWO_WORKERS.items()}
    told = [f"{number(gain)} times on {store}" for store, gain in gains.items() if gain]
    return [f"Two workers answer {' and '.join(told)} what one answers there."] if told else []


def targets(figures: Sequence[Measurement]) -> list[Target]:
    kept = ratio(of(figures, MEMORY), of(figures, BARE))
    counted = ratio(of(figures, MEMORY), of(figures, UNCOUNTED))
    on_redis = ratio(of(figures, REDIS), of(figures, MEMORY))
    return [
        Target("in memory, at least 0.5 of the bare handler's requests a second", f"{kept:.2f}", kept >= 0.5),
        Target("metrics and top talkers, at most 10 % of the requests a second", f"{counted:.2f}", counted >= 0.9),
        Target("on Redis, at least 0.6 of those in memory", f"{on_redis:.2f}", on_redis >= 0.6),
        *(
            Target(f"{case}: at least 5 times the decisions of single hits", f"{gain:.1f}", gain >= 5)
            for store, case in BATCHES.items()
            if (gain := ratio(of(figures, case), of(figures, store)))
        ),
    ]
