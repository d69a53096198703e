"""A TCP proxy in front of a server, in a thread of its own: it passes on, delays, freezes, refuses, loses replies."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine
from typing import Any, Literal

Mode = Literal["pass", "freeze", "refuse", "lose"]

_MAX = 1 << 20  # bytes passed on at a time


class Proxy:
    """A proxy between clients and a server on this machine; `mode` and `delay` may be changed at any moment.

    "freeze" takes connections and requests and holds them until it is over; "refuse" closes every connection;
    "lose" passes requests on and, once the server has answered, closes the connection instead of telling.
    """

    def __init__(self, port: int, mode: Mode = "pass", delay: float = 0.0) -> None:
        self.mode: Mode = mode
        self.delay = delay  # seconds, in each direction
        self.connections = 0
        self.lost = 0
        self._target = port
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._do(asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1_000))
        self.port = int(self._server.sockets[0].getsockname()[1])
        self.url = f"redis://127.0.0.1:{self.port}/0"

    @property
    def open_connections(self) -> int:
        """How many sockets are open now, of clients and to the server."""
        return len(self._open)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def refuse(self) -> None:
        """Close every connection, also later ones."""
        self.mode = "refuse"
        self._do(self._cut())

    def reset(self) -> None:
        """Reset every connection, as a firewall does when it has been idle for long."""
        for writer in list(self._open):
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._do(self._cut())

    def stop(self) -> None:
        """Stop for good."""
        self.mode = "refuse"
        self._do(self._finish())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, action: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(action, self._loop).result(10)

    async def _cut(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()

    async def _finish(self) -> None:
        self._server.close()
        await self._cut()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=5)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there: asyncio.StreamWriter | None = None
        self._open.add(writer)
        try:
            await self._thaw()
            if self.mode != "refuse":
                answers, there = await asyncio.open_connection("127.0.0.1", self._target)
                self._open.add(there)
                ways = [self._pass_on(reader, there, asks=True), self._pass_on(answers, writer, asks=False)]
                await asyncio.wait([asyncio.ensure_future(way) for way in ways], return_when=asyncio.FIRST_COMPLETED)
                await asyncio.sleep(self.delay)  # data in transit arrives
        except OSError:
            pass  # the server is not there
        finally:
            for end in (writer, there):
                if end is not None:
                    self._open.discard(end)
                    end.transport.abort()

    async def _thaw(self) -> None:
        while self.mode == "freeze":  # noqa: ASYNC110 - changed from other threads, which no asyncio.Event may be
            await asyncio.sleep(0.005)

    async def _pass_on(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, asks: bool) -> None:
        try:
            while chunk := await source.read(_MAX):
                await self._thaw()
                if self.mode == "lose" and not asks:
                    self.lost += 1
                    return
                if self.mode == "refuse":
                    return
                if self.delay:
                    self._loop.call_later(self.delay, target.write, chunk)
                else:
                    target.write(chunk)
        except OSError:
            pass  # closed by one of them
