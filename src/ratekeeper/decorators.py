"""Decorators for limited functions, as returned by the `limited` method of both limiters."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar

from ratekeeper.decision import Decision
from ratekeeper.errors import RateLimited
from ratekeeper.rates import show

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def limited(
    hit: Callable[[Any, Any], Decision], key: Any, cost: Any
) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result]]:
    """Return a decorator that makes a function hit before it runs."""

    def decorate(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
        if inspect.iscoroutinefunction(function):
            raise TypeError(f"{_title(function)} is a coroutine function; limit it with an AsyncLimiter")

        @functools.wraps(function)
        def call(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
            _admit(hit(_computed(key, args, kwargs), _computed(cost, args, kwargs)))
            return function(*args, **kwargs)

        return call

    return decorate


def limited_async(
    hit: Callable[[Any, Any], Awaitable[Decision]], key: Any, cost: Any
) -> Callable[[Callable[_Parameters, Awaitable[_Result]]], Callable[_Parameters, Awaitable[_Result]]]:
    """Return a decorator that makes a coroutine function hit before it runs."""

    def decorate(function: Callable[_Parameters, Awaitable[_Result]]) -> Callable[_Parameters, Awaitable[_Result]]:
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"{_title(function)} is not a coroutine function; limit it with a Limiter")

        @functools.wraps(function)
        async def call(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
            _admit(await hit(_computed(key, args, kwargs), _computed(cost, args, kwargs)))
            return await function(*args, **kwargs)

        return call

    return decorate


def _computed(value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return value(*args, **kwargs) if callable(value) else value


def _admit(decision: Decision) -> None:
    if not decision.allowed:
        raise RateLimited(decision)


def _title(function: Any) -> str:
    return getattr(function, "__qualname__", None) or show(function)
