"""The ASGI application, and what all of its routes share."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Collection, Hashable, Mapping

from ratekeeper import AsyncLimiter, flows
from ratekeeper.algorithms import Rule
from ratekeeper.errors import StoreUnavailable
from ratekeeper.http import Headers, HeaderWriter
from ratekeeper.playground import mount as mount_playground
from ratekeeper.service import DEADLINE, api, asgi
from ratekeeper.service.guards import Guards
from ratekeeper.service.live import Live
from ratekeeper.service.web import HTML, Problem, Request, Response, Router
from ratekeeper.stores import Store, from_url

_log = logging.getLogger("ratekeeper")
MOST_LIMITERS = 1_000

RulesGiven = str | Rule | Mapping[str, str | Rule]


class Limited:
    """A limiter and who writes the headers of its decisions."""

    __slots__ = ("limiter", "writer")

    def __init__(self, limiter: AsyncLimiter) -> None:
        self.limiter = limiter
        self.writer = HeaderWriter(limiter.rules, Headers())


class Service:
    """What all routes share: one store, its limiters, the counters."""

    def __init__(self, store: Store, deadline: float = DEADLINE) -> None:
        self.store = store
        self._deadline = deadline
        self.live = Live()
        self._limiters: OrderedDict[Hashable, Limited] = OrderedDict()

    def limiter(self, rules: RulesGiven, *, prefix: str = "ratekeeper") -> AsyncLimiter:
        """Return a limiter on the service's store: one rule, or several by name. The latest thousand are kept."""
        return self.limited(rules, prefix=prefix).limiter

    def limited(self, rules: RulesGiven, *, prefix: str = "ratekeeper") -> Limited:
        """Return a limiter, with its headers."""
        key = (prefix, tuple(rules.items()) if isinstance(rules, Mapping) else rules)
        return self.recall(key) or self.keep(key, rules, prefix=prefix)

    def recall(self, key: Hashable) -> Limited | None:
        """Return what is kept under a key."""
        known = self._limiters.get(key)
        if known is not None:
            self._limiters.move_to_end(key)
        return known

    def keep(self, key: Hashable, rules: RulesGiven, *, prefix: str = "ratekeeper") -> Limited:
        """Make a limiter and keep it under a key; the one that was not used for longest goes."""
        limited = Limited(AsyncLimiter(rules, self.store, prefix=prefix, deadline=self._deadline))
        self._limiters[key] = limited
        if len(self._limiters) > MOST_LIMITERS:
            self._limiters.popitem(last=False)
        return limited


class App:
    """The application: `answer` is all of it, and it can be called as ASGI servers do. `rsgi` is for granian."""

    def __init__(self, router: Router, guards: Guards, service: Service) -> None:
        self.router = router
        self.service = service
        self._guards = guards

    async def __call__(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        if scope["type"] == "http":
            await asgi.respond(send, await self.answer(asgi.request_of(scope, receive)))
        elif scope["type"] == "lifespan":
            await asgi.live(receive, send, self.close)

    async def answer(self, request: Request) -> Response:
        """Return the answer to a request, whatever it is."""
        try:
            self._guards.check(request)
            route = self.router.find(request)
            if route.needs_token:
                self._guards.check_token(request)
            response = await route.handler(request)
        except Problem as problem:
            response = problem.response()
        except StoreUnavailable as error:
            response = Problem(503, str(error)).response()
        except Exception:  # noqa: BLE001 - whatever it is, who asked gets an answer
            _log.exception("a request failed")  # what was asked is not for the log; the traceback says where
            response = Problem(500, "this should not have happened; the log says more").response()
        if request.method == "HEAD":
            response.body = b""
        return response

    async def close(self) -> None:
        """Close the connections to the store."""
        await flows.result(self.service.store.for_asyncio().close())


def create_app(
    store: str | Store = "memory://",
    *,
    token: str | None = None,
    hosts: Collection[str] = (),
    deadline: float = DEADLINE,
    playground: bool = True,
) -> App:
    """Make the application.

    `token` is asked for by all that changes more than a hit; None asks for none. `hosts` are names that it is reached
    by, besides localhost and addresses. Redis has `deadline` seconds for a decision; then this process decides.
    """
    if isinstance(store, str):
        store = from_url(store, for_asyncio=True)
    service = Service(store, deadline)
    router = Router()
    api.mount(router, service)
    if playground:
        mount_playground(router, service)
    else:
        router.add("GET", "/", _placeholder)
    return App(router, Guards(hosts, token), service)


async def _placeholder(_: Request) -> Response:
    page = (
        b"<!doctype html><html lang=en><meta charset=utf-8><title>ratekeeper</title><h1>ratekeeper</h1>"
        b"<p>The service is up. <a href=/openapi.json>What it answers</a>.</html>\n"
    )
    return Response(200, page, content_type=HTML)
