"""Limits as they are declared for single views, and which of them replace the defaults of the application."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ratekeeper import arguments
from ratekeeper.http import AsyncGate, Gate, Route
from ratekeeper.http.routes import is_by_policy

_MARK = "ratekeeper_limits"


@dataclass(frozen=True)
class Declared:
    """A limit as declared; gates are made from it and the options of the application."""

    route: Route
    name: str | None = None
    """Limits with the same name share their usage; without a name, each view has its own."""
    override_defaults: bool = True

    def __post_init__(self) -> None:
        arguments.check_switch("override_defaults", self.override_defaults)

    @property
    def is_by_policy(self) -> bool:
        """Whether it counts by a policy, whose usage is the same for all views."""
        return self.route.policy is not None or is_by_policy(self.route.limit)

    def check(self, kind: type[Gate | AsyncGate] = Gate) -> None:
        """Raise if the limit cannot work, whatever the application. Which policies there are, applications know."""
        if self.route.policy is None:
            kind(routes=[self.route])

    def replaces_defaults(self, method: str) -> bool:
        """Tell whether the limit replaces the defaults for a request with this method."""
        return self.override_defaults and self.route.is_for(method)


def mark(limited: Callable[..., Any], view: Any, limit: Any) -> None:
    """Note that a view, which may have limits already, has a further one."""
    setattr(limited, _MARK, (*getattr(view, _MARK, ()), limit))


def own_limits(view: Any, method: str) -> tuple[Any, ...]:
    """Return the limits of a view, with those of the method of a class that handles the request."""
    own: tuple[Any, ...] = getattr(view, _MARK, ())
    kind = view if inspect.isclass(view) else getattr(view, "view_class", None)
    if kind is None:
        return own
    name = method.lower()
    handler = getattr(kind, name, None) or (getattr(kind, "get", None) if name == "head" else None)
    return (*own, *getattr(handler, _MARK, ()))
