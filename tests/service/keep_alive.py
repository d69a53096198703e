"""Clients that ask again and again over connections that they keep, and what became of their requests."""

import asyncio
import threading
import time
from collections import Counter

import msgspec

HEAD = b"POST /v1/hit HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
PAUSE = 0.01  # seconds before a client that was refused tries again


class KeepAlive:
    """The clients, in an event loop of a thread of their own, as long as the `with` block lasts."""

    def __init__(self, port, body, clients=16, *, pause=0.0, note=None):
        """Each client pauses between its requests; `note` is called with when each began, and its decision."""
        self.answers = Counter()
        """How many answers there were, by status."""
        self.degraded = Counter()
        """How many of them were degraded."""
        self.told = 0
        """How many connections the server announced to close."""
        self.cut = []
        """What was wrong with the requests that were sent and not answered."""
        self.refused = 0
        self.slowest = 0.0
        """The longest time that an answer, or a refusal, took, in seconds."""
        self._port = port
        self._pause = pause
        self._note = note
        self._request = HEAD % (len(body), body)
        self._over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._all(clients)), daemon=True)

    @property
    def answered(self):
        """How many requests were answered."""
        return sum(self.answers.values())

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join(30)
        assert not self._thread.is_alive(), "a client was never answered"

    async def _all(self, clients):
        await asyncio.gather(*(self._ask() for _ in range(clients)))

    async def _ask(self):
        writer = None
        while not self._over.is_set():
            begun = time.monotonic()
            try:
                if writer is None:
                    reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            except OSError:
                self.refused += 1
                await asyncio.sleep(PAUSE)
                continue
            try:
                writer.write(self._request)
                is_kept = await self._read(reader, begun)
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                self.cut.append(repr(error))
                is_kept = False
            self.slowest = max(self.slowest, time.monotonic() - begun)
            if not is_kept:
                writer.close()
                writer = None
            if self._pause:
                await asyncio.sleep(self._pause)
        if writer is not None:
            writer.close()

    async def _read(self, reader, begun):
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        size = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        body = msgspec.json.decode(await reader.readexactly(size))
        status = int(head.split()[1])
        self.answers[status] += 1
        self.degraded[status] += body.get("degraded", False)
        if self._note is not None:
            self._note(begun, body)
        is_told = b"\r\nconnection: close" in head
        self.told += is_told
        return not is_told
