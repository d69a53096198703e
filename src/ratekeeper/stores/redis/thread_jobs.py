"""Jobs in threads; each has a thread of its own."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Hashable
from contextlib import suppress

from ratekeeper.clock import stopwatch
from ratekeeper.stores.redis.jobs import Jobs, late, time_for
from ratekeeper.stores.redis.semaphore import CHECK_AGAIN

JobFunction = Callable[[int], object]
"""Does a job within its time, and puts the result where callers find it."""


class ThreadJob:
    """One job."""

    def __init__(self) -> None:
        self.begun_ns = stopwatch()
        self.waiting: set[object] = set()
        self.is_over = False
        self.error: BaseException | None = None
        self._going = threading.Lock()  # taken until the end
        self._going.acquire()

    def end(self) -> None:
        """Wake the callers that wait."""
        self.is_over = True
        self._wake_one()

    def wait(self, ends_ns: int) -> None:
        """Sleep until the job ends, or until this time."""
        while not self.is_over:
            left_ns = ends_ns - stopwatch()
            if left_ns <= 0:
                return
            self._going.acquire(timeout=min(left_ns / 1e9, CHECK_AGAIN))
        self._wake_one()  # the next one

    def _wake_one(self) -> None:
        with suppress(RuntimeError):  # one is awake already
            self._going.release()


class ThreadJobs(Jobs[ThreadJob]):
    """The jobs of one store."""

    def run(self, name: Hashable, work: JobFunction, ends_ns: int, *, shared: bool = False) -> BaseException | None:
        """Wait for a job with this name, and start it if needed; return its error, or raise Late if it takes longer."""
        if stopwatch() >= ends_ns:
            raise late()
        me = object()
        job = self._to_join(name, shared=shared)
        try:
            if job is None:
                job = ThreadJob()
                job.waiting.add(me)
                self._start(name, job, work, ends_ns)
            job.waiting.add(me)
            job.wait(ends_ns)
        finally:
            if job is not None:
                job.waiting.discard(me)
        if not job.is_over:
            raise late()
        return job.error

    def _start(self, name: Hashable, job: ThreadJob, work: JobFunction, ends_ns: int) -> None:
        arguments = name, job, work, time_for(ends_ns)
        try:
            _thread.start_new_thread(self._do, arguments)  # one C call: a signal may tear `Thread.start` apart
        except RuntimeError:  # no more threads, for example while the interpreter exits
            self._do(name, job, work, ends_ns)

    def _do(self, name: Hashable, job: ThreadJob, work: JobFunction, ends_ns: int) -> None:
        self._begin(name, job)  # not by the caller, which a signal may interrupt before the thread has started
        try:
            work(ends_ns)
        except BaseException as error:  # noqa: BLE001 - those who wait raise it
            job.error = error
        finally:
            job.end()
            self._end(name, job, succeeded=job.error is None)
