"""Jobs of arq with one rate for all workers.

    @limited("10/s", store="redis://localhost")
    async def deliver(ctx, url): ...

A job over the limit is deferred until its turn has come. Its tries are not spent, and the worker runs another job.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from arq.constants import retry_key_prefix
from arq.worker import Retry

from ratekeeper.flows import run_async
from ratekeeper.integrations.postponing import TaskCost, TaskKey, TaskLimit, check_task
from ratekeeper.limiter import AsyncLimiter
from ratekeeper.rules import Rules
from ratekeeper.stores import Store

__all__ = ["limited"]

_Context = TypeVar("_Context", bound=dict[Any, Any])
_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def limited(
    limit: Rules | AsyncLimiter,
    store: str | Store | None = None,
    *,
    key: TaskKey = None,
    cost: TaskCost = 1,
    enabled: bool = True,
) -> Callable[
    [Callable[Concatenate[_Context, _Parameters], Awaitable[_Result]]],
    Callable[Concatenate[_Context, _Parameters], Awaitable[_Result]],
]:
    """Limit a function that a worker runs. `limit` is rules, counted on `store`, or a limiter.

    `key` says what is limited, by default the function; it and `cost` may be computed from the function's arguments,
    `ctx` included. A job that can never be admitted fails with RateLimited, and so does one that runs in no worker,
    because it was called directly. `enabled=False` limits nothing.
    """
    task_limit = TaskLimit(limit, store, kind=AsyncLimiter, key=key, cost=cost, enabled=enabled)

    def decorate(
        function: Callable[Concatenate[_Context, _Parameters], Awaitable[_Result]],
    ) -> Callable[Concatenate[_Context, _Parameters], Awaitable[_Result]]:
        check_task(function, is_async=True)

        @functools.wraps(function)
        async def call(ctx: _Context, /, *args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
            postponed = await run_async(task_limit.ask(function.__qualname__, (ctx, *args), kwargs))
            if postponed is None:
                return await function(ctx, *args, **kwargs)
            if "job_id" not in ctx:
                raise postponed.error
            await ctx["redis"].decr(retry_key_prefix + ctx["job_id"])  # or the worker would count this as a try
            raise Retry(defer=postponed.seconds) from postponed.error

        return call

    return decorate
