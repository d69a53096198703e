"""Flows: logic that threads and tasks share.

A flow is a generator that yields whatever may have to be awaited, such as what a store returns, and is sent the
result. In a thread everything that it yields is a result already; a task awaits it first. So the logic is written once
and the two drivers differ in the await only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from ratekeeper.errors import StoreUnavailable

if TYPE_CHECKING:
    import asyncio

_Result = TypeVar("_Result")

Flow = Generator[Any, Any, _Result]


def run(flow: Flow[_Result]) -> _Result:
    """Drive a flow in this thread."""
    try:
        step = next(flow)
        while True:
            if hasattr(step, "__await__"):
                getattr(step, "close", bool)()
                step = flow.throw(TypeError("it returned an awaitable, which cannot be awaited here"))
            else:
                step = flow.send(step)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


async def run_async(flow: Flow[_Result]) -> _Result:
    """Drive a flow in this task. What is raised while it awaits, a cancellation included, is raised in the flow."""
    try:
        step = next(flow)
        while True:
            try:
                if hasattr(step, "__await__"):
                    step = await step
            except BaseException as error:  # noqa: BLE001 - the flow decides what becomes of it
                step = flow.throw(error)
            else:
                step = flow.send(step)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


async def result(coming: Any) -> Any:
    """Return a result, once it is there: what is no awaitable is one already."""
    return await coming if hasattr(coming, "__await__") else coming


def if_abandoned(coming: Any, undo: Callable[[Any], Awaitable[object] | object]) -> Any:
    """Return what a flow may yield in place of `coming`, if a cancelled task has to undo what it asked for.

    A result that is there already is returned as it is. Otherwise what is under way goes on when the task is
    cancelled, and `undo` is called with its result, and awaited.
    """
    return _outlasting(coming, undo) if hasattr(coming, "__await__") else coming


async def _outlasting(coming: Awaitable[_Result], undo: Callable[[_Result], Awaitable[object] | object]) -> _Result:
    import asyncio  # which a program of threads need not load

    asked = asyncio.ensure_future(coming)
    try:
        return await asyncio.shield(asked)
    except asyncio.CancelledError:
        if not asked.cancelled():
            undoing = asyncio.ensure_future(_undone(asked, undo))
            _undoing.add(undoing)
            undoing.add_done_callback(_undoing.discard)
        raise


async def _undone(asked: Awaitable[_Result], undo: Callable[[_Result], Awaitable[object] | object]) -> None:
    with suppress(StoreUnavailable):  # nobody waits for it any more
        undone = undo(await asked)
        if isinstance(undone, Awaitable):
            await undone


_undoing: set[asyncio.Future[None]] = set()  # an event loop holds its tasks weakly
