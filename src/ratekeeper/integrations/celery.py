"""Celery tasks with one rate for all workers.

    @app.task
    @limited("10/s", store="redis://localhost")
    def deliver(url): ...

A task over the limit is sent again, to run when its turn has come. Its retries are not spent, and the process that
would have run it runs another task.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn, ParamSpec, TypeVar

from celery import Task, current_task
from celery.exceptions import Retry
from celery.local import Proxy

from ratekeeper.clock import wall_clock
from ratekeeper.errors import RateLimited
from ratekeeper.flows import run
from ratekeeper.integrations.postponing import TaskCost, TaskKey, TaskLimit, check_task
from ratekeeper.limiter import Limiter
from ratekeeper.rules import Rules
from ratekeeper.stores import Store

__all__ = ["limited"]

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_TURN = "ratekeeper-turn"  # the header with the time, in seconds since the epoch, before which a task need not ask
_LONGEST_COUNTDOWN = 600  # seconds: brokers deliver a message again that a worker has held for too long
_VISIBILITY_TIMEOUT = 3600  # seconds, unless the broker's options say otherwise


def limited(
    limit: Rules | Limiter,
    store: str | Store | None = None,
    *,
    key: TaskKey = None,
    cost: TaskCost = 1,
    enabled: bool = True,
) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result]]:
    """Limit a task; write it below `@app.task`. `limit` is rules, counted on `store`, or a limiter.

    `key` says what is limited, by default the task; it and `cost` may be computed from the task's arguments. A task
    that can never be admitted fails with RateLimited, and so does one that runs in no worker, because it was called
    directly or eagerly. `enabled=False` limits nothing.
    """
    task_limit = TaskLimit(limit, store, kind=Limiter, key=key, cost=cost, enabled=enabled)

    def decorate(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
        if issubclass(type(function), Task | Proxy):
            raise TypeError("write @limited(...) below @app.task, not above it")
        check_task(function, is_async=False)

        @functools.wraps(function)
        def call(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
            is_in_worker = _is_in_worker()
            if is_in_worker:
                early = _headers().get(_TURN, 0) - wall_clock() / 1e9
                if early > 0:
                    _postpone(early)
            name = current_task.name if current_task else f"{function.__module__}.{function.__name__}"
            postponed = run(task_limit.ask(name, args, kwargs))
            if postponed is None:
                return function(*args, **kwargs)
            if is_in_worker:
                _postpone(postponed.seconds, postponed.error)
            raise postponed.error

        return call

    return decorate


def _is_in_worker() -> bool:
    return bool(current_task) and not (current_task.request.called_directly or current_task.request.is_eager)


def _headers() -> dict[str, Any]:
    return current_task.request.headers or {}


def _postpone(seconds: float, error: RateLimited | None = None) -> NoReturn:
    """Send the current task again, as `Task.retry` does, but without counting a retry."""
    options = current_task.app.conf.broker_transport_options or {}
    longest = min(_LONGEST_COUNTDOWN, options.get("visibility_timeout", _VISIBILITY_TIMEOUT) / 2)
    countdown = min(seconds, longest)
    headers = {name: value for name, value in _headers().items() if name != _TURN}
    if countdown < seconds:
        headers[_TURN] = wall_clock() / 1e9 + seconds
    current_task.signature_from_request(countdown=countdown, headers=headers).apply_async()
    raise Retry(exc=error, when=countdown)
