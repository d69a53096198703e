"""Real ASGI servers, each a process of its own on a free port."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import httpx

from tests.servers import PATIENCE, free_port

ROOT = Path(__file__).parent.parent.parent
COMMANDS = {
    "uvicorn": ("uvicorn", "--host", "127.0.0.1", "--no-proxy-headers", "--log-level", "critical"),
    "granian": ("granian", "--interface", "asgi", "--host", "127.0.0.1", "--no-access-log", "--log-level", "critical"),
}


class AsgiServer:
    """A server that serves an application of the tests."""

    def __init__(self, server: str, application: str, store: str, health: str = "/healthz") -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.name = server
        self._process = subprocess.Popen(
            [sys.executable, "-m", *COMMANDS[server], "--port", str(self.port), application],
            cwd=ROOT,
            env={**os.environ, "RATEKEEPER_STORE": store},
            stderr=subprocess.DEVNULL,  # the views that fail on purpose
        )
        give_up = time.monotonic() + PATIENCE
        while True:
            try:
                if httpx.get(self.url + health).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            if self._process.poll() is not None or time.monotonic() > give_up:
                self.stop()
                raise AssertionError(f"{server} did not come up on port {self.port}")
            time.sleep(0.02)

    def stop(self) -> None:
        """End the process."""
        self._process.terminate()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
