"""The endpoints of Starlette and FastAPI: which of them a request will come to, and the limits that are its own.

A middleware runs before the routes. So it looks for the route itself, in the same order as the application will.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from starlette.routing import Match
from starlette.staticfiles import StaticFiles

from ratekeeper.http.asgi_types import Scope
from ratekeeper.integrations.views import own_limits


class MatchedEndpoint(NamedTuple):
    """What answers a request, and its route."""

    answers: Any
    """A function, a class or an ASGI application."""
    route: Any
    path: str
    """The path of the route and of the mounts that it is in, with the names of its parameters."""

    @property
    def title(self) -> str:
        """What it is called in stored keys."""
        return titled(self.answers, self.path)


def titled(answers: Any, path: str) -> str:
    """Return what an endpoint is called in stored keys."""
    return f"{getattr(answers, '__module__', '')}.{getattr(answers, '__qualname__', '')} {path}"


def find_endpoint(app: Any, scope: Scope) -> MatchedEndpoint | None:
    """Return the endpoint that a request will come to; None if no view will answer it, or if it is for static files."""
    scope = dict(scope)  # matching leaves something in it
    path = ""
    routes = _routes_inside(app)
    route: Any = None
    while routes:
        for each in flat(routes):
            match, inner = each.matches(scope)
            if match is Match.FULL:
                route = each
                break
        else:
            return None
        scope.update(inner)
        path += getattr(route, "path", "") or ""
        routes = getattr(route, "routes", None)  # of a mount or a host
    answers = scope.get("endpoint")
    return None if route is None or isinstance(answers, StaticFiles) else MatchedEndpoint(answers, route, path)


def flat(routes: Iterable[Any]) -> Iterable[Any]:
    """Return routes, with those of the routers that a FastAPI application includes."""
    fastapi = sys.modules.get("fastapi.routing")  # without which there are none
    flatten = getattr(fastapi, "iter_route_contexts", iter)  # its older releases keep them flat
    return flatten(routes)


def limits_of(route: Any, answers: Any, method: str, kind: type[Any]) -> Iterator[Any]:
    """Give the limits of this kind that an endpoint has itself: of its decorators and its dependencies."""
    yield from (limit for limit in own_limits(answers, method) if isinstance(limit, kind))
    waiting = [getattr(route, "dependant", None)]
    while waiting:
        dependant = waiting.pop()
        if dependant is not None:
            if isinstance(dependant.call, kind):
                yield dependant.call
            waiting += dependant.dependencies


def all_limits(app: Any, kind: type[Any]) -> Iterator[Any]:
    """Give all limits of this kind that the endpoints of an application have, or that are at the routes above them."""
    waiting = [_routes_inside(app)]
    while waiting:
        for route in flat(waiting.pop() or ()):
            answers = getattr(route, "endpoint", None)
            for method in getattr(route, "methods", None) or ("GET",):
                yield from limits_of(route, answers, method, kind)
            if not hasattr(getattr(route, "app", None), "user_middleware"):  # an application has options of its own
                waiting.append(getattr(route, "routes", None))


def _routes_inside(app: Any) -> Any:
    """Return the routes of the application that a middleware is around."""
    while app is not None:
        routes = getattr(app, "routes", None)
        if routes is not None:
            return routes
        app = getattr(app, "app", None)
    return None
