"""Jobs: what a decision needs and what may take longer than a decision may, such as a connection, is made beside it.

A caller waits for a job as long as it has time. The job goes on without it, and what it makes is there for those that
come later. So a link is used if one exchange on it is fast enough, however many the set-up of a connection needs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, Protocol, TypeVar

from ratekeeper.clock import stopwatch
from ratekeeper.stores.redis.redis_errors import Late

_MOST = 4  # jobs of one name: as many as there are exchanges with one server at a time
_YOUNG_NS = 1_000_000_000  # an older job may hang on a packet that was lost: the next caller starts another
_LEAST_NS = 1_000_000_000  # the time that every job has
_MOST_NS = 60_000_000_000
_EXCHANGES = 8  # how many exchanges, each as long as the caller's time, the set-up of a connection may have


class Job(Protocol):
    """A job of either kind, in a thread or in a task."""

    begun_ns: int
    waiting: set[object]  # those who wait for it


_Job = TypeVar("_Job", bound=Job)


class Jobs(Generic[_Job]):
    """The jobs that are under way, by name."""

    def __init__(self, left_behind: Callable[[Any], object]) -> None:
        """`left_behind` is called with the name of a job that succeeds once nobody waits for it any more."""
        self._under_way: dict[Hashable, dict[int, _Job]] = {}
        self._left_behind = left_behind

    def _to_join(self, name: Hashable, *, shared: bool) -> _Job | None:
        """Return a job to wait for; None if one more is needed. One that is not `shared` serves one caller."""
        jobs = list(self._under_way.get(name, {}).values())
        latest = stopwatch() - _YOUNG_NS
        for job in jobs:
            if job.begun_ns > latest and (shared or not job.waiting):
                return job
        return jobs[-1] if len(jobs) >= _MOST else None

    def _begin(self, name: Hashable, job: _Job) -> None:
        self._under_way.setdefault(name, {})[id(job)] = job

    def _end(self, name: Hashable, job: _Job, *, succeeded: bool) -> None:
        self._under_way.get(name, {}).pop(id(job), None)
        if succeeded and not job.waiting:
            self._left_behind(name)


def time_for(ends_ns: int) -> int:
    """Return when a job must end that a caller needs by `ends_ns`."""
    now = stopwatch()
    return max(ends_ns, now + min(max(_LEAST_NS, _EXCHANGES * (ends_ns - now)), _MOST_NS))


def late() -> Late:
    """Return the error of a caller that has no time left to wait for a job."""
    error = Late()
    error.__cause__ = TimeoutError("no connection was there in time")
    return error
