"""Jobs in tasks of one event loop."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Hashable

from ratekeeper.clock import stopwatch
from ratekeeper.stores.redis.jobs import Jobs, late, time_for
from ratekeeper.stores.redis.redis_errors import interrupted

Coming = Callable[[int], Awaitable[object]]
"""Does a job within its time, and puts the result where callers find it."""


class TaskJob:
    """One job."""

    def __init__(self, task: asyncio.Future[object]) -> None:
        self.begun_ns = stopwatch()
        self.waiting: set[object] = set()
        self.task = task

    @property
    def error(self) -> BaseException | None:
        """The error that it raised, if any."""
        return interrupted() if self.task.cancelled() else self.task.exception()


class TaskJobs(Jobs[TaskJob]):
    """The jobs of one event loop."""

    async def run(self, name: Hashable, work: Coming, ends_ns: int, *, shared: bool = False) -> BaseException | None:
        """Wait for a job with this name, and start it if needed; return its error, or raise Late if it takes longer."""
        left_ns = ends_ns - stopwatch()
        if left_ns <= 0:
            raise late()
        job = self._to_join(name, shared=shared) or self._started(name, work, time_for(ends_ns))
        me = object()
        job.waiting.add(me)
        try:
            await asyncio.wait((job.task,), timeout=left_ns / 1e9)
        finally:
            job.waiting.discard(me)
        if not job.task.done():
            raise late()
        return job.error

    def cancel(self) -> None:
        """End all jobs."""
        for jobs in list(self._under_way.values()):
            for job in list(jobs.values()):
                job.task.cancel()

    def _started(self, name: Hashable, work: Coming, ends_ns: int) -> TaskJob:
        job = TaskJob(asyncio.ensure_future(work(ends_ns)))
        self._begin(name, job)
        job.task.add_done_callback(functools.partial(self._ended, name, job))
        return job

    def _ended(self, name: Hashable, job: TaskJob, _: object) -> None:
        self._end(name, job, succeeded=job.error is None)
