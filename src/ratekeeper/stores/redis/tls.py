"""TLS: certificates take tens of milliseconds to read, so that is done once for a store, and never in an event loop.

redis-py reads them for each connection. Its own code still does, whatever its options mean, so that none gets lost.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

_WITH_A_STEP_OF_THEIR_OWN = ("ssl_validate_ocsp", "ssl_validate_ocsp_stapled")  # after the handshake


def thread_context(kind: Any, arguments: dict[str, Any]) -> Any:
    """Return the context with which a connection wraps its socket; None if redis-py must do that."""
    from redis.connection import Connection, SSLConnection

    if kind is not SSLConnection or any(arguments.get(option) for option in _WITH_A_STEP_OF_THEIR_OWN):
        return None

    class NotConnected(Connection):
        def _connect(self) -> socket.socket:
            return socket.socket()

    maker = type("Maker", (SSLConnection, NotConnected), {})
    with maker(**arguments)._connect() as wrapped:  # noqa: SLF001 - third-party
        return wrapped.context


async def share_context(connection: Any, contexts: dict[bool, Any], of_sentinels: bool) -> None:
    """Let a connection of an event loop have the same context as the others of its store."""
    own = getattr(connection, "ssl_context", None)
    if own is not None:
        connection.ssl_context = contexts.setdefault(of_sentinels, own)
        if connection.ssl_context.context is None:
            await asyncio.get_running_loop().run_in_executor(None, connection.ssl_context.get)
