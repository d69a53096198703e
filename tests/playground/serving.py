"""The service in this process, behind a real socket."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

import uvicorn

from ratekeeper.service.app import create_app
from tests.servers import PATIENCE, free_port


@contextmanager
def served(store="memory://"):
    """Serve an application of its own, and give its address."""
    port = free_port()
    config = uvicorn.Config(
        create_app(store, deadline=10),  # the machine may be busy
        port=port,
        log_level="critical",
        ws="none",
        proxy_headers=False,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    give_up = time.monotonic() + PATIENCE
    while not server.started:
        assert thread.is_alive(), "the server did not come up"
        assert time.monotonic() < give_up, "the server did not come up"
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
