"""CORS where the limits run outside of Starlette's `CORSMiddleware`.

The application's own `CORSMiddleware`, with nothing behind it, then answers preflights and adds its headers to denials.
So a preflight is not counted, and a page can read a denial. A request that only looks like a preflight is one that
`CORSMiddleware` does not answer: nothing else sees it before it is counted.
"""

from __future__ import annotations

import copy
import functools
import sys
from typing import Any

from ratekeeper.http.asgi_types import AsgiApp, Receive, Scope, Send

_ANSWER = "ratekeeper.cors.answer"  # the key in the scope for what is behind the CORSMiddleware


class Cors:
    """The CORS policy that an application has inside, if any. It is looked for when it is needed first."""

    def __init__(self, app: Any) -> None:
        self._app = app

    @functools.cached_property
    def _middleware(self) -> Any:
        return _middleware_of(self._app)

    async def answers(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Answer a request if it is a preflight; tell whether it was one."""
        if self._middleware is None:
            return False
        is_preflight = True

        async def pass_on(*_: Any) -> None:
            nonlocal is_preflight
            is_preflight = False

        await self.around(pass_on)(scope, receive, send)
        return is_preflight

    def around(self, answer: AsgiApp) -> AsgiApp:
        """Return an application that answers like `answer`, with the headers of CORS."""
        if self._middleware is None:
            return answer
        return lambda scope, receive, send: self._middleware({**scope, _ANSWER: answer}, receive, send)


async def _answer(scope: Scope, receive: Receive, send: Send) -> None:
    await scope[_ANSWER](scope, receive, send)


def _middleware_of(app: Any) -> Any:
    """Return a CORSMiddleware like the one that an application is, or has inside, with nothing but `_answer` behind it.

    A class derived from it may keep the application anywhere, so only one that has not been created yet is known to.
    """
    known = sys.modules.get("starlette.middleware.cors")  # without which there is none
    while known is not None and app is not None:
        if type(app) is known.CORSMiddleware:
            alone = copy.copy(app)
            alone.app = _answer
            return alone
        for each in getattr(app, "user_middleware", ()):  # of an application that creates them when it starts
            if isinstance(each.cls, type) and issubclass(each.cls, known.CORSMiddleware):
                return each.cls(_answer, *each.args, **each.kwargs)
        app = getattr(app, "app", None)
    return None
