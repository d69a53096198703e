"""What an event loop asks a server for."""

from __future__ import annotations

import asyncio

from ratekeeper.stores.protocol import Outcome
from ratekeeper.stores.redis.wire import Request


class Asked:
    """One caller's request on its way."""

    __slots__ = ("asked_at", "ends", "future", "request", "sent_at")

    def __init__(self, request: Request, future: asyncio.Future[Outcome], asked_at: float, ends: float) -> None:
        self.request = request
        self.future = future
        self.asked_at = asked_at
        self.ends = ends
        self.sent_at: float | None = None
