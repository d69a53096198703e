"""Decorators in the wrong order: a route that got its view before the view was limited calls it without the limit."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_REFERENCES = 5  # a view that belongs to a route has more; one that was just defined, or is in a module, has fewer


def is_endpoint(view: Callable[..., Any]) -> bool:
    """Tell whether a route of Starlette or FastAPI has this view as its endpoint.

    There is no list of all routes, so those who refer to the view are asked, as far as the interpreter knows them.
    """
    if getattr(sys, "getrefcount", lambda _: 0)(view) <= _REFERENCES:  # nearly always: finding them takes milliseconds
        return False
    for referrer in gc.get_referrers(view):
        fields = referrer if isinstance(referrer, dict) else getattr(referrer, "__dict__", {})
        if fields.get("endpoint") is view and "path" in fields:
            return True
    return False


def bypassed(
    limited: Iterable[tuple[Callable[..., Any], Callable[..., Any]]], views: Iterable[Callable[..., Any]]
) -> Iterator[Callable[..., Any]]:
    """Give the views that are registered as they are, although they were limited; `limited` has pairs of both."""
    registered = list(views)
    reached = {id(layer) for view in registered for layer in _layers(view)}
    for view, wrapper in limited:
        if id(wrapper) not in reached and any(view is each for each in registered):
            yield view


def _layers(view: Any) -> Iterator[Any]:
    for _ in range(100):
        yield view
        view = getattr(view, "__wrapped__", None)
        if view is None:
            return
