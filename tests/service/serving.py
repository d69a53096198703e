"""The service as its users meet it: a process that answers on a port, or the application itself."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx

from ratekeeper.service.app import create_app
from tests.servers import PATIENCE, free_port

COMMAND = [sys.executable, "-m", "ratekeeper.cli", "serve"]


def patched(code):
    """Return the command, with some code that runs before it."""
    run = "import sys\nfrom ratekeeper.cli import main\nsys.exit(main(['serve', *sys.argv[1:]]))\n"
    return [COMMAND[0], "-c", code + run]


class Served:
    """`ratekeeper serve`, a process of its own on a free port."""

    def __init__(self, store="memory://", *options, command=COMMAND, client=None, port=None, **environment):
        self.store, self.options = store, options
        self.port = port or free_port()
        self.process = subprocess.Popen(
            [*command, "--port", str(self.port), *([] if store is None else ["--store", store]), *options],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.errors = ""  # what it has said on standard error when it is stopped
        self.said = self.process.stdout.readline()  # "Listening on URL (...)"
        self.url = self.said.split()[2] if self.said else f"http://127.0.0.1:{self.port}"
        self._client = client(self) if client is not None else httpx.Client(base_url=self.url)
        give_up = time.monotonic() + PATIENCE
        while True:
            try:
                self._client.get("/healthz")
            except httpx.TransportError:
                if self.process.poll() is not None or time.monotonic() > give_up:
                    self.stop()
                    raise AssertionError(f"the service did not come up on port {self.port}") from None
                time.sleep(0.02)
            else:
                return

    def ask(self, method, path, **arguments):
        return self._client.request(method, path, **arguments)

    def hang_up(self):
        """Close the connections of `ask`."""
        self._client.close()

    def stop(self):
        """End the process; return its exit status."""
        self._client.close()
        self.process.send_signal(signal.SIGINT)
        status = self.process.wait(PATIENCE)
        if not self.process.stderr.closed:
            self.errors = self.process.stderr.read()
        self.process.stdout.close()
        self.process.stderr.close()
        return status

    @property
    def workers(self):
        """The process ids of its workers."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return {int(pid) for pid in children.read_text().split()}


class InProcess:
    """The application, without a server around it."""

    def __init__(self, **options):
        self.app = create_app(**options)

    def ask(self, method, path, **arguments):
        return asyncio.run(self.asking(method, path, **arguments))

    async def asking(self, method, path, peer="127.0.0.1", **arguments):
        transport = httpx.ASGITransport(self.app, client=(peer, 50_000))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, **arguments)

    def stop(self):
        pass
