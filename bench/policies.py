"""The cost of `POST /v1/hit` by policy, compared with a bare granian handler that reads the body."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from bench.contestants import OURS
from bench.service import (
    ALGORITHM,
    ASK,
    BARE,
    GRANIAN,
    IN_A_BATCH,
    MEMORY,
    REDIS,
    listening,
    requests_a_second,
    served,
)
from bench.tables import find, labels, number, ratio, spread, table
from bench.timing import Measurement, Target, interleave
from tests.servers import RedisServer, free_port, newest, programs

NAME = "policies"
TITLE = "The service, by policy"
ABOUT = (
    "`POST /v1/hit` by a policy with two rules, each with a key of its own, that deny nothing, on `ratekeeper serve`, "
    "one process, under wrk with 64 keep-alive connections: requests a second. Bare is an ASGI handler on the same "
    "server, granian, that reads the body and returns a constant. Batch: `POST /v1/hit/batch` with 100 such hits on 4 "
    "connections, in decisions a second. Envoy's rate limit service, where `ratelimit` is on the PATH, decides by two "
    "such limits on Redis, asked over `/json`."
)
ENVOYS = "Envoy's ratelimit"
BATCHES = {MEMORY: "memory, batch", REDIS: "Redis, batch"}
HIT = '{"policy": "api", "attributes": {"user": "ada"}}'
POLICIES = """
[[policies.api.rules]]
name = "user"
limit = "fixed-window 1000000000/minute"
key = "{user}"

[[policies.api.rules]]
name = "all"
limit = "fixed-window 1000000000/minute"
key = "all"
"""
ENVOYS_HIT = """{"domain": "api", "descriptors": [
    {"entries": [{"key": "user", "value": "ada"}]}, {"entries": [{"key": "all", "value": "all"}]}]}"""
ENVOYS_LIMITS = """
domain: api
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 1000000000}
  - key: all
    rate_limit: {unit: minute, requests_per_unit: 1000000000}
"""


def run(rounds: int) -> list[Measurement]:
    with contextlib.ExitStack() as stack:
        redis = RedisServer(programs()[newest()])
        stack.callback(redis.stop)
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        policies = directory / "policies.toml"
        policies.write_text(POLICIES)
        serve = ("ratekeeper.cli", "serve", "--policies", str(policies), "--store")
        commands = {
            BARE: (*GRANIAN, "bench.constant:reading"),
            MEMORY: (*serve, "memory://"),
            REDIS: (*serve, redis.url),
        }
        ports = {case: stack.enter_context(served(*command)) for case, command in commands.items()}
        single = asking(directory / "hit.lua", HIT)
        batch = asking(directory / "batch.lua", f'{{"requests": [{", ".join([HIT] * IN_A_BATCH)}]}}')
        tasks = {
            (case, contestant(case)): partial(requests_a_second, port, "/v1/hit", single)
            for case, port in ports.items()
        }
        tasks |= {
            (case, OURS): partial(requests_a_second, ports[store], "/v1/hit/batch", batch, IN_A_BATCH)
            for store, case in BATCHES.items()
        }
        program = shutil.which("ratelimit")
        if program is not None:
            port = stack.enter_context(envoys(program, redis, directory / "envoy"))
            asked = asking(directory / "envoy.lua", ENVOYS_HIT)
            tasks[ENVOYS, ENVOYS] = partial(requests_a_second, port, "/json", asked)
        samples = interleave(NAME, tasks, rounds)
    return [Measurement(case, ALGORITHM, name, "requests/s", samples[case, name]) for case, name in samples]


@contextlib.contextmanager
def envoys(program: str, redis: RedisServer, directory: Path) -> Iterator[int]:
    """Run Envoy's own rate limit service; yields its port."""
    limits = directory / "limits" / "config" / "api.yaml"
    limits.parent.mkdir(parents=True)
    limits.write_text(ENVOYS_LIMITS)
    ports = [free_port() for _ in range(3)]
    settings = {
        "RUNTIME_ROOT": str(directory),
        "RUNTIME_SUBDIRECTORY": "limits",
        "RUNTIME_WATCH_ROOT": "false",
        "BACKEND_TYPE": "redis",
        "REDIS_SOCKET_TYPE": "tcp",
        "REDIS_URL": f"127.0.0.1:{redis.port}",
        "USE_STATSD": "false",
        "LOG_LEVEL": "error",
        "PORT": str(ports[0]),
        "GRPC_PORT": str(ports[1]),
        "DEBUG_PORT": str(ports[2]),
    }
    process = subprocess.Popen(
        [program], env={**os.environ, **settings}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        listening(ports[0])
        yield ports[0]
    finally:
        process.terminate()
        process.wait()


def asking(path: Path, body: str) -> Path:
    """Write what wrk asks with."""
    path.write_text(ASK % body)
    return path


def contestant(case: str) -> str:
    return case if case in (BARE, ENVOYS) else OURS


def of(figures: Sequence[Measurement], case: str) -> Measurement | None:
    return find(figures, case, ALGORITHM, contestant(case))


def tables(figures: Sequence[Measurement]) -> list[str]:
    rows = [
        [case, spread(of(figures, case)), number(ratio(of(figures, case), of(figures, BARE)))]
        for case in labels(figures, "case")
    ]
    return [table(["", "requests a second", "of the bare handler"], rows)]


def targets(figures: Sequence[Measurement]) -> list[Target]:
    kept = ratio(of(figures, MEMORY), of(figures, BARE))
    on_redis = ratio(of(figures, REDIS), of(figures, MEMORY))
    found = [
        Target("by policy in memory, at least 0.4 of the bare handler's requests a second", f"{kept:.2f}", kept >= 0.4),
        Target("by policy on Redis, at least 0.6 of those in memory", f"{on_redis:.2f}", on_redis >= 0.6),
    ]
    for store, case in BATCHES.items():
        gain = ratio(of(figures, case), of(figures, store))
        found.append(Target(f"by policy, {case}: at least 5 times single hits", f"{gain:.1f}", gain >= 5))
    ahead = ratio(of(figures, REDIS), of(figures, ENVOYS))
    if of(figures, ENVOYS) is not None:
        found.append(Target(f"by policy on Redis, at least as many as {ENVOYS}", f"{ahead:.2f}", ahead >= 1))
    return found
