"""Finds out when a Django response has been sent, and its size."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from typing import Any

from asgiref.sync import async_to_sync

from ratekeeper.http import Answer
from ratekeeper.integrations.wsgi import Counted


def at_end(response: Any, settle: Callable[[Answer], None]) -> None:
    """Settle once the response has been sent."""
    if not _is_rendered(response):
        response.add_post_render_callback(functools.partial(at_end, settle=settle))
        return

    def settle_size(size: int) -> None:
        settle(Answer(response.status_code, size))

    async def settle_in_passing(size: int) -> None:  # the event loop that Django makes for a stream serves nothing else
        settle_size(size)

    if not response.streaming:
        settle_size(len(response.content))
    elif response.is_async:
        response.streaming_content = _counted(response.streaming_content, settle_in_passing)
    else:
        response.streaming_content = Counted(response.streaming_content, settle_size)


async def at_end_async(response: Any, settle: Callable[[Answer], Awaitable[None]]) -> None:
    """Settle once the response has been sent."""
    if not _is_rendered(response):  # Django renders it in a thread
        response.add_post_render_callback(async_to_sync(functools.partial(at_end_async, settle=settle)))
        return

    async def settle_size(size: int) -> None:
        await settle(Answer(response.status_code, size))

    if not response.streaming:
        await settle_size(len(response.content))
    elif response.is_async:
        response.streaming_content = _counted(response.streaming_content, settle_size)
    else:  # Django closes it in a thread
        response.streaming_content = Counted(response.streaming_content, async_to_sync(settle_size))


def _is_rendered(response: Any) -> bool:
    """Tell whether a response is rendered: a view may return a template that Django renders later."""
    return getattr(response, "is_rendered", True)


async def _counted(body: AsyncIterable[bytes], at_end: Callable[[int], Awaitable[None]]) -> AsyncIterator[bytes]:
    size = 0
    try:
        async for chunk in body:
            size += len(chunk)
            yield chunk
    finally:
        await at_end(size)
