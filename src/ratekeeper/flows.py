"""Flows: logic that threads and tasks share.

A flow is a generator that yields whatever may have to be awaited, such as the return value of a store, and is sent the
result. In a thread, everything that a flow yields already is a result; a task awaits it first. So the logic is written
once, and the two drivers differ only in the await.
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
                step = flow.throw(TypeError("the call returned an awaitable, which a Limiter cannot await"))
            else:
                step = flow.send(step)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


async def run_async(flow: Flow[_Result]) -> _Result:
    """Drive a flow in this task. An exception during an await, including a cancellation, is raised in the flow."""
    try:
        step = next(flow)
        while True:
            try:
                if hasattr(step, "__await__"):
                    step = await step
            except BaseException as error:  # noqa: BLE001 - the flow decides how to handle it
                step = flow.throw(error)
            else:
                step = flow.send(step)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


async def result(coming: Any) -> Any:
    """Return a result, awaiting it first if it is an awaitable."""
    return await coming if hasattr(coming, "__await__") else coming


def if_abandoned(coming: Any, undo: Callable[[Any], Awaitable[object] | object]) -> Any:
    """Wrap `coming` for a flow to yield, so that it is undone if the task is cancelled meanwhile.

    A value that is not an awaitable is returned unchanged. Otherwise `coming` still completes when the task is
    cancelled; then `undo` is called with its result, and awaited if necessary.
    """
    return _outlasting(coming, undo) if hasattr(coming, "__await__") else coming


async def _outlasting(coming: Awaitable[_Result], undo: Callable[[_Result], Awaitable[object] | object]) -> _Result:
    import asyncio  # programs that only use threads need not load it

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
    with suppress(StoreUnavailable):  # no caller is left to handle it
        undone = undo(await asked)
        if isinstance(undone, Awaitable):
            await undone


_undoing: set[asyncio.Future[None]] = set()  # an event loop holds only weak references to its tasks
