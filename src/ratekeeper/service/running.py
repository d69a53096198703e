"""One process that serves until it is told to stop, and then stops without leaving a request unanswered."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from typing import Any

from ratekeeper.service.app import App
from ratekeeper.service.certificates import Certificate
from ratekeeper.service.connections import Connections
from ratekeeper.service.granian_server import GranianServer
from ratekeeper.service.listening import admit_no_more, nobody_waits
from ratekeeper.service.rsgi import Rsgi

MAX_CONNECTIONS = 1024
LINGER = {signal.SIGTERM: 2.0, signal.SIGINT: 0.0}
"""For how many seconds new connections are still accepted, so that load balancers see that readiness has turned red."""
ACCEPTING = 1.0  # seconds at most in which the connections that wait are accepted
LAST_WORDS = 1.0  # seconds at most in which clients find their next request answered, and their connection closed
_LOOKS = 0.02  # seconds between two looks whether that is done
STOP_WITHIN = 9.5  # seconds; what is still under way then is cut off
_FAILED = 1
_log = logging.getLogger("ratekeeper")


def run(serving: Coroutine[Any, Any, int]) -> int:
    """Run a coroutine in the event loop that suits the service best."""
    try:
        import uvloop
    except ImportError:  # not available on Windows
        return asyncio.run(serving)
    return uvloop.run(serving)


class Serving:
    """An application on a listening socket, in this process.

    SIGTERM and SIGINT stop it. Unless it is one of several workers, whose supervisor sees to that, a second signal ends
    it at once. A worker also stops when `supervisor`, a descriptor, is closed at its other end. With SIGHUP, the
    application takes over what has changed, and so does TLS.
    """

    def __init__(
        self, app: App, listener: socket.socket, certificate: Certificate | None = None, supervisor: int | None = None
    ) -> None:
        is_tcp = listener.family != socket.AF_UNIX
        self._app = app
        self._listener = listener
        self._certificate = certificate
        self._certified = None if certificate is None else certificate.content()
        self._supervisor = supervisor
        self._connections = Connections(listener.getsockname()[1] if is_tcp else None, MAX_CONNECTIONS)
        self._server = self._new_server()
        self._serving: asyncio.Task[None] | None = None
        self._stop_at: asyncio.TimerHandle | None = None
        self._is_closing = False
        self.is_left_alone = False
        """Whether the supervisor is gone."""

    async def until_stopped(self, announce: Callable[[], None]) -> int:
        """Serve, call `announce` when clients can connect, and return the exit status."""
        loop = asyncio.get_running_loop()
        for number in LINGER:
            loop.add_signal_handler(number, self._told_to_stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._told_to_reload)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (*LINGER, signal.SIGHUP))  # which a supervisor has blocked
        if self._supervisor is not None:
            loop.add_reader(self._supervisor, self._left_alone)  # nothing else can be read from it
        self._connections.watch(loop)
        await self._app.begin()
        if self._stop_at is not None:  # meanwhile
            return 0
        self._serving = await self._server.start()
        announce()
        served = None
        while served is not self._serving:  # it is another one with every new certificate
            served = self._serving
            await served
        await self._app.close()
        if self._stop_at is None:
            _log.error("the HTTP server ended unexpectedly")
            return _FAILED
        return 0

    def _new_server(self) -> GranianServer:
        return GranianServer(Rsgi(self._app, self._connections), self._listener, MAX_CONNECTIONS, self._certificate)

    def _told_to_stop(self, number: signal.Signals) -> None:
        if self._stop_at is not None and self._supervisor is None:
            os._exit(128 + number)
        self._stop(LINGER[number])

    def _left_alone(self) -> None:
        assert self._supervisor is not None  # noqa: S101 - it is what became readable
        asyncio.get_running_loop().remove_reader(self._supervisor)
        self.is_left_alone = True
        self._stop(LINGER[signal.SIGINT])  # another supervisor may wait for the port

    def _stop(self, linger: float) -> None:
        """Turn readiness red and tell clients to close, at once; stop accepting after `linger` seconds."""
        loop = asyncio.get_running_loop()
        if self._stop_at is None:
            self._app.service.is_stopping = True
            self._server.tell_to_close()
            loop.call_later(STOP_WITHIN, self._give_up)
        elif linger or self._is_closing:
            return
        else:
            self._stop_at.cancel()
        self._stop_at = loop.call_later(linger, self._admit_no_more)

    def _admit_no_more(self) -> None:
        """Let the clients that are connected, or wait to be, have their answers."""
        self._is_closing = True
        admit_no_more(self._listener)
        self._when(lambda: nobody_waits(self._listener), ACCEPTING, self._refuse)

    def _refuse(self) -> None:
        self._server.stop_accepting()
        self._listener.close()
        self._when(self._connections.all_closed, LAST_WORDS, self._close)

    def _close(self) -> None:
        """Close the idle connections; the others close when they have their answers."""
        self._server.stop()  # type: ignore[no-untyped-call]

    def _when(self, condition: Callable[[], bool], seconds: float, then: Callable[[], None]) -> None:
        """Do what is next as soon as the condition holds, or after so many seconds."""
        if seconds <= 0 or condition():
            then()
        else:
            loop = asyncio.get_running_loop()
            self._stop_at = loop.call_later(_LOOKS, self._when, condition, seconds - _LOOKS, then)

    def _give_up(self) -> None:
        _log.warning("stopped with requests in progress that took longer than %s s", STOP_WITHIN)
        os._exit(0)

    def _told_to_reload(self) -> None:
        task = asyncio.ensure_future(self._reload())
        task.add_done_callback(_report)

    async def _reload(self) -> None:
        await self._app.reload()
        if self._certificate is not None and self._stop_at is None:
            self._certificate.check()
            await self._renew(self._certificate)

    async def _renew(self, certificate: Certificate) -> None:
        """Serve with the certificate that is in the files now, and end the connections that have the old one."""
        content = certificate.content()
        if content == self._certified:
            return
        renewed = self._new_server()
        before, self._serving = self._server, await renewed.start()
        self._server, self._certified = renewed, content
        before.stop_accepting()
        asyncio.get_running_loop().call_later(LINGER[signal.SIGTERM], before.stop)
        _log.info("serving with the new certificate in %s", certificate.chain)


def _report(reload: asyncio.Task[None]) -> None:
    if not reload.cancelled() and (error := reload.exception()) is not None:
        _log.error("could not reload: %s", error)
