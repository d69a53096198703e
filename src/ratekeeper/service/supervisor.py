"""The supervisor of several workers: it starts them, replaces those that die, and passes signals on. No more."""

from __future__ import annotations

import logging
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from ratekeeper.clock import stopwatch
from ratekeeper.service.worker import Worker

STOP_WITHIN = 10.0  # seconds that the workers have to stop
PAUSE = 1.0  # seconds from one start of a worker to the next one under its number
FAILED = 2
_STOPPING = (signal.SIGTERM, signal.SIGINT)
_ALL = (*_STOPPING, signal.SIGHUP, signal.SIGCHLD)
_PID_BYTES = 4
_log = logging.getLogger("ratekeeper")

Serve = Callable[[Worker, int], int]
"""What a worker does. It gets its place, and a descriptor of a socket: with it, it says that it `listens`, and when the
supervisor is gone, it can read the end of the file from it. It returns its exit status. The signals that stop it or
have it reload are blocked until it unblocks them."""


def supervise(count: int, serve: Serve, announce: Callable[[], None]) -> int:
    """Run workers until a signal stops them, and return the exit status; call `announce` once all of them listen.

    SIGTERM and SIGINT are passed on; workers that have not stopped within 10 seconds are killed, and after a second
    signal all are, at once. SIGHUP is passed on as well.
    """
    directory = Path(tempfile.mkdtemp(prefix="ratekeeper-"))
    try:
        return Supervisor([Worker(index, count, directory) for index in range(count)], serve, announce).run()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def listens(supervisor: int) -> None:
    """Tell the supervisor that this worker listens."""
    os.write(supervisor, os.getpid().to_bytes(_PID_BYTES, "big"))


class Supervisor:
    """The workers, and what is to be done for them."""

    def __init__(self, places: list[Worker], serve: Serve, announce: Callable[[], None]) -> None:
        self._places = places
        self._serve = serve
        self._announce = announce
        self._is_announced = False
        self._silent: set[int] = set()  # the process ids of workers that do not listen yet
        self._workers: dict[int, Worker] = {}  # by process id
        self._started = dict.fromkeys(places, 0.0)  # when the place was last taken
        self._due = dict.fromkeys(places, 0.0)  # when to start a worker
        self._is_stopping = False
        self._kill_at: float | None = None  # when workers are killed that have not stopped
        self._status = 0
        self._signals, self._waker = socket.socketpair()
        self._news, self._for_workers = socket.socketpair()

    def run(self) -> int:
        """Run the workers until a signal stops them."""
        ends = (self._signals, self._waker, self._news, self._for_workers)
        for end in ends[:3]:
            end.setblocking(False)
        handlers = {number: signal.signal(number, lambda *_: None) for number in _ALL}
        before = signal.set_wakeup_fd(self._waker.fileno())
        try:
            while self._due or self._workers:
                self._start_due()
                self._wait()
                self._bury()
                self._kill_late()
        finally:
            signal.set_wakeup_fd(before)
            for number, handler in handlers.items():
                signal.signal(number, handler)
            for end in ends:
                end.close()
        return self._status

    def _start_due(self) -> None:
        now = _now()
        for place in [place for place, at in self._due.items() if at <= now]:
            del self._due[place]
            self._start(place)

    def _start(self, place: Worker) -> None:
        self._started[place] = _now()
        sys.stdout.flush()
        sys.stderr.flush()
        signal.pthread_sigmask(signal.SIG_BLOCK, _ALL)  # a signal must find its way to one of both processes only
        pid = os.fork()
        if pid == 0:
            self._work(place)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ALL)
        self._workers[pid] = place
        self._silent.add(pid)

    def _work(self, place: Worker) -> NoReturn:
        """Be a worker, in a process of its own, until it ends."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in _ALL:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
            for end in (self._signals, self._waker, self._news):
                end.close()
            status = self._serve(place, self._for_workers.fileno())
        except BaseException:  # noqa: BLE001 - nothing of the supervisor's may run in this process
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _wait(self) -> None:
        """Wait until there is something to do."""
        moments = [*self._due.values(), *([] if self._kill_at is None else [self._kill_at])]
        timeout = max(0.0, min(moments) - _now()) if moments else None
        select.select([self._signals, self._news], [], [], timeout)
        with suppress(BlockingIOError):
            for number in self._signals.recv(1_000):
                self._obey(number)
        with suppress(BlockingIOError):
            told = self._news.recv(1_000 * _PID_BYTES)
            self._silent -= {
                int.from_bytes(told[at : at + _PID_BYTES], "big") for at in range(0, len(told), _PID_BYTES)
            }
            if not self._is_announced and not self._silent and not self._is_stopping:
                self._is_announced = True
                self._announce()

    def _obey(self, number: int) -> None:
        if number == signal.SIGHUP:
            self._tell_all(number)
        elif number in _STOPPING and not self._is_stopping:
            self._stop(number)
        elif number in _STOPPING:
            self._status = 128 + number
            self._kill_at = _now()

    def _stop(self, number: int) -> None:
        self._is_stopping = True
        self._kill_at = _now() + STOP_WITHIN
        self._due.clear()
        self._tell_all(number)

    def _tell_all(self, number: int) -> None:
        for pid in self._workers:
            os.kill(pid, number)  # which is a worker's: who has ended keeps the id until buried

    def _bury(self) -> None:
        """See which workers have ended, and have them replaced unless all are to stop."""
        for pid, place in list(self._workers.items()):
            ended, wait_status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                continue
            del self._workers[pid]
            self._silent.discard(pid)
            if self._is_stopping:
                continue
            if not self._is_announced:  # it has said why
                self._status = FAILED
                self._stop(signal.SIGINT)
                continue
            how = _how(os.waitstatus_to_exitcode(wait_status))
            _log.warning("worker %d of %d (process %d) %s; starting another", place.index + 1, place.count, pid, how)
            self._due[place] = self._started[place] + PAUSE

    def _kill_late(self) -> None:
        if self._kill_at is not None and _now() >= self._kill_at:
            for pid, place in self._workers.items():
                _log.warning(
                    "killing worker %d of %d (process %d), which has not stopped", place.index + 1, place.count, pid
                )
            self._tell_all(signal.SIGKILL)
            self._kill_at = None


def _how(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"


def _now() -> float:
    return stopwatch() / 1e9
