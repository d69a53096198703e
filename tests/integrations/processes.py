"""Real servers of applications, each a process of its own on a free port."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import httpx

from tests import servers

ROOT = Path(__file__).parent.parent.parent
GUNICORN = ("gunicorn", "--bind", "127.0.0.1:{port}", "--threads", "16", "--keep-alive", "5", "--log-level", "critical")
UVICORN = ("uvicorn", "--host", "127.0.0.1", "--port", "{port}", "--no-proxy-headers", "--log-level", "critical")
GRANIAN = (
    *("granian", "--interface", "asgi", "--host", "127.0.0.1", "--port", "{port}"),
    *("--no-access-log", "--log-level", "critical"),
)
STORES = ("memory", "Redis")


class Process:
    """A server that serves an application of the tests or of the examples."""

    def __init__(self, *command: str, store: str = "memory", health: str = "/healthz", **environment: str) -> None:
        self.port = servers.free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        url = "memory://" if store == "memory" else servers.shared(servers.newest()).url
        self._process = subprocess.Popen(
            [sys.executable, *(part.format(port=self.port) for part in command)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "RATEKEEPER_STORE": url, **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # the views that fail on purpose
        )
        give_up = time.monotonic() + servers.PATIENCE
        while True:
            try:
                if httpx.get(self.url + health).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            if self._process.poll() is not None or time.monotonic() > give_up:
                self.stop()
                raise AssertionError(f"{' '.join(command)} did not come up on port {self.port}")
            time.sleep(0.02)

    def stop(self) -> None:
        """End the process."""
        self._process.terminate()
        try:
            self._process.wait(servers.PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
