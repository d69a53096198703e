"""Jobs: work that decisions need but that may take longer than one of them may, such as opening a connection.

A caller waits for a job as long as it has time. The job goes on without the caller, and later callers find its result.
So a link can be used if a single exchange on it is fast enough, however many exchanges a new connection needs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, Protocol, TypeVar

from ratekeeper.clock import stopwatch
from ratekeeper.stores.redis.redis_errors import Late

_MAX = 4  # jobs with one name: as many as there can be exchanges with one server at a time
_YOUNG_NS = 1_000_000_000  # an older job may hang because a packet was lost, so the next caller starts another
_LEAST_NS = 1_000_000_000  # every job has at least this much time
_MAX_NS = 60_000_000_000
_EXCHANGES = 8  # a new connection has time for this many exchanges that each take as long as the caller has


class Job(Protocol):
    """A job of either kind, in a thread or in a task."""

    begun_ns: int
    waiting: set[object]  # the callers that wait for it


_Job = TypeVar("_Job", bound=Job)


class Jobs(Generic[_Job]):
    """The jobs that are under way, by name."""

    def __init__(self, left_behind: Callable[[Any], object]) -> None:
        """`left_behind` is called with the name of a job that succeeds when no caller waits for it any more."""
        self._under_way: dict[Hashable, dict[int, _Job]] = {}
        self._left_behind = left_behind

    def _to_join(self, name: Hashable, *, shared: bool) -> _Job | None:
        """Return a job to wait for; None if a new one is needed. A job that is not `shared` serves one caller."""
        jobs = list(self._under_way.get(name, {}).values())
        latest = stopwatch() - _YOUNG_NS
        for job in jobs:
            if job.begun_ns > latest and (shared or not job.waiting):
                return job
        return jobs[-1] if len(jobs) >= _MAX else None

    def _begin(self, name: Hashable, job: _Job) -> None:
        self._under_way.setdefault(name, {})[id(job)] = job

    def _end(self, name: Hashable, job: _Job, *, succeeded: bool) -> None:
        self._under_way.get(name, {}).pop(id(job), None)
        if succeeded and not job.waiting:
            self._left_behind(name)


def time_for(ends_ns: int) -> int:
    """Return when a job must end if its caller has time until `ends_ns`."""
    now = stopwatch()
    return max(ends_ns, now + min(max(_LEAST_NS, _EXCHANGES * (ends_ns - now)), _MAX_NS))


def late() -> Late:
    """Return the error of a caller that has no time left to wait for a job."""
    error = Late()
    error.__cause__ = TimeoutError("no connection was ready in time")
    return error
