"""Rate limits for FastAPI: a dependency for routes, routers and the application, a decorator, and the middleware.

    @app.get("/search", dependencies=[Depends(RateLimit("10/minute", key=by_user()))])
    async def search(query: str): ...

`document(app)` adds the 429 responses to the application's OpenAPI schema.
"""

import inspect
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from fastapi import Depends, FastAPI, Response
from starlette.requests import HTTPConnection

from ratekeeper.http import Admission
from ratekeeper.http.problem import PROBLEM_TYPE
from ratekeeper.http.routes import Limit
from ratekeeper.integrations import starlette
from ratekeeper.integrations.endpoints import flat, limits_of
from ratekeeper.integrations.starlette import Connection, RateLimitExceeded, RateLimitMiddleware, Route, limited, tell
from ratekeeper.rates import show

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ratekeeper.http import Options

__all__ = [
    "RESPONSES",
    "Connection",
    "RateLimit",
    "RateLimitExceeded",
    "RateLimitMiddleware",
    "Route",
    "document",
    "limited",
]


async def _nobody() -> None:
    """Return no user. FastAPI would take a parameter that is no dependency from the query, where anyone can set it."""


class RateLimit(starlette.RateLimit):
    """A limit as a dependency; as a parameter, its value is the `Admission` to pass to `correct`.

    `user` is a dependency that returns the signed-in user, for `by_user()`.
    """

    def __init__(
        self,
        limit: Limit = None,
        *,
        user: Callable[..., Any] | None = None,
        name: str | None = None,
        methods: Collection[str] | None = None,
        override_defaults: bool = True,
        **options: "Unpack[Options]",
    ) -> None:
        super().__init__(limit, name=name, methods=methods, override_defaults=override_defaults, **options)
        if user is None:
            return
        if not callable(user):
            raise TypeError(f"user must be a dependency that returns the user, not {show(user)}")
        signature = inspect.signature(self.__call__)
        *others, last = signature.parameters.values()
        self.__signature__ = signature.replace(
            parameters=[*others, last.replace(annotation=Annotated[Any, Depends(user)])]
        )

    @property
    def dependency(self) -> NoReturn:
        """There is none: FastAPI asks for it if `Depends` is left out."""
        raise TypeError("this limit is a dependency itself; write dependencies=[Depends(RateLimit(...))]")

    async def __call__(
        self, connection: HTTPConnection, response: Response, user: Annotated[Any, Depends(_nobody)] = None
    ) -> Admission | None:
        """Admit a request, or raise `RateLimitExceeded`."""
        admission = await self.admit(connection, user=user)
        tell(response, connection)
        return admission


def _integer(description: str) -> dict[str, Any]:
    return {"description": description, "schema": {"type": "integer"}}


def _text(description: str) -> dict[str, Any]:
    return {"description": description, "schema": {"type": "string"}}


RESPONSES: dict[int | str, dict[str, Any]] = {
    429: {
        "description": "Too many requests",
        "headers": {
            "Retry-After": _integer("Seconds until the same request is admitted; absent if it never is."),
            "RateLimit-Policy": _text("The limits."),
            "RateLimit": _text("What is left of each limit, and for how long."),
            "X-RateLimit-Limit": _integer("The limit that binds."),
            "X-RateLimit-Remaining": _integer("What is left of it."),
            "X-RateLimit-Reset": _integer("When there is more, in seconds since the epoch."),
        },
        "content": {
            "application/problem+json": {
                "schema": {
                    "type": "object",
                    "required": ["type", "title", "status", "violated-policies"],
                    "properties": {
                        "type": {"type": "string", "const": PROBLEM_TYPE},
                        "title": {"type": "string"},
                        "status": {"type": "integer", "const": 429},
                        "detail": {"type": "string"},
                        "violated-policies": {"type": "array", "items": {"type": "string"}},
                    },
                }
            }
        },
    }
}
"""The 429 answer, for `responses=` of a route or router; `document` adds it wherever there is a limit."""


def document(app: FastAPI) -> None:
    """Show the 429 answer of every route that is limited in the application's OpenAPI schema."""
    make_schema = app.openapi

    def openapi() -> dict[str, Any]:
        schema = make_schema()
        for route in flat(app.routes):
            for method in getattr(route, "methods", None) or ():
                if any(limits_of(route, route.endpoint, method, starlette.RateLimit)):
                    _add_response(schema, route, method)
        return schema

    app.openapi = openapi  # type: ignore[method-assign]


def _add_response(schema: dict[str, Any], route: Any, method: str) -> None:
    operation = schema.get("paths", {}).get(getattr(route, "path_format", ""), {}).get(method.lower())
    if operation is not None:
        operation.setdefault("responses", {}).setdefault("429", RESPONSES[429])
