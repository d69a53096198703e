"""The cost of a limit in a FastAPI application under uvicorn, compared with slowapi and fastapi-limiter."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial

from bench.contestants import OURS
from bench.tables import find, labels, number, spread, table
from bench.timing import Measurement, Target, interleave
from tests.servers import RedisServer, free_port, newest, programs

NAME = "asgi"
TITLE = "ASGI middleware"
ABOUT = (
    "A FastAPI application with one route under uvicorn, one process, 64 keep-alive connections, the client in a "
    "separate process: requests a second, and the microseconds that the limit adds to a request compared with the bare "
    "application. ratekeeper and slowapi are measured as middleware (`RateLimitMiddleware`, `SlowAPIASGIMiddleware`), "
    "fastapi-limiter as a dependency. All use fixed windows and send their headers, except for fastapi-limiter, which "
    "has a log and no headers."
)
BARE, SLOWAPI, FASTAPI_LIMITER = "bare", "slowapi", "fastapi_limiter"
MEMORY, REDIS = "memory", "Redis"
CASES = {MEMORY: (BARE, OURS, SLOWAPI), REDIS: (BARE, OURS, SLOWAPI, FASTAPI_LIMITER)}
CONNECTIONS = 64
SECONDS = 2.0
REQUEST = b"GET / HTTP/1.1\r\nhost: localhost\r\naccept: */*\r\n\r\n"
BODY = b"hello"


class Connection(asyncio.Protocol):
    """Sends the next request as soon as the response has arrived."""

    def __init__(self) -> None:
        self.answers = 0
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        transport.write(REQUEST)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._received.endswith(BODY):
            if not self._received.startswith(b"HTTP/1.1 200"):
                raise AssertionError(self._received)
            self._received = b""
            self.answers += 1
            self.transport.write(REQUEST)  # type: ignore[attr-defined]


def run(rounds: int) -> list[Measurement]:
    with contextlib.ExitStack() as stack:
        redis = RedisServer(programs()[newest()])
        stack.callback(redis.stop)
        ports = {
            (case, name): stack.enter_context(served(name, redis.url if case == REDIS else "memory://"))
            for case, names in CASES.items()
            for name in names
        }
        tasks = {label: partial(requests_a_second, port) for label, port in ports.items()}
        samples = interleave(NAME, tasks, rounds)
    return [Measurement(case, "fixed window", name, "requests/s", samples[case, name]) for case, name in samples]


@contextlib.contextmanager
def served(name: str, store: str) -> Iterator[int]:
    """Serve an application; yields its port."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "--port", str(port), "--no-access-log", "--log-level", "error"]
    environment = {**os.environ, "RATEKEEPER_STORE": store}
    process = subprocess.Popen([*command, f"bench.served:{name}"], env=environment)
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(REQUEST)
                if connection.recv(1024):
                    break
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait()


def requests_a_second(port: int) -> float:
    async def measure() -> float:
        loop = asyncio.get_running_loop()
        made = [await loop.create_connection(Connection, "127.0.0.1", port) for _ in range(CONNECTIONS)]
        connections = [connection for _, connection in made]
        await asyncio.sleep(SECONDS / 4)  # warm up
        before, started = sum(each.answers for each in connections), time.perf_counter()
        await asyncio.sleep(SECONDS)
        rate = (sum(each.answers for each in connections) - before) / (time.perf_counter() - started)
        for transport, _ in made:
            transport.abort()
        return rate

    return asyncio.run(measure())


def added(figures: Sequence[Measurement], case: str, name: str) -> float:
    """Return the microseconds that a limit adds to a request, compared with the bare application in the same run."""
    bare, limited = find(figures, case, "fixed window", BARE), find(figures, case, "fixed window", name)
    return 1e6 / limited.median - 1e6 / bare.median if bare and limited else float("nan")


def tables(figures: Sequence[Measurement]) -> list[str]:
    rows = [
        [name, case, spread(figure), "" if name == BARE else number(added(figures, case, name))]
        for case in labels(figures, "case")
        for name in CASES[case]
        if (figure := find(figures, case, "fixed window", name))
    ]
    return [table(["", "store", "requests a second", "added, us"], rows, left=2)]


def targets(figures: Sequence[Measurement]) -> list[Target]:
    bare, ours = (find(figures, MEMORY, "fixed window", name) for name in (BARE, OURS))
    kept = ours.median / bare.median if ours and bare else 0.0
    found = [
        Target("in memory, at least 0.85 of the bare application's requests a second", f"{kept:.2f}", kept >= 0.85)
    ]
    for case, peer in ((MEMORY, SLOWAPI), (REDIS, SLOWAPI), (REDIS, FASTAPI_LIMITER)):
        share = added(figures, case, OURS) / added(figures, case, peer)
        promise = f"adds at most a third of what {peer} adds, {case}"
        found.append(Target(promise, f"{share:.2f}", share <= 1 / 3))
    return found
