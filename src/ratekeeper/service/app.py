"""The ASGI application, and what all of its routes share."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Collection, Hashable, Mapping
from importlib import import_module
from importlib.util import find_spec

from ratekeeper import AsyncLimiter
from ratekeeper.algorithms import Rule
from ratekeeper.errors import StoreUnavailable
from ratekeeper.http import Headers, HeaderWriter
from ratekeeper.service import api
from ratekeeper.service.guards import Guards
from ratekeeper.service.live import Live
from ratekeeper.service.web import HTML, Problem, Receive, Request, Response, Router, Scope, Send
from ratekeeper.stores import AsyncRedisStore, MemoryStore, from_url

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

    def __init__(self, store: MemoryStore | AsyncRedisStore) -> None:
        self.store = store
        self.live = Live()
        self._limiters: OrderedDict[Hashable, Limited] = OrderedDict()

    def limiter(self, rules: RulesGiven, *, prefix: str = "ratekeeper") -> AsyncLimiter:
        """Return a limiter on the service's store: one rule, or several by name. The latest thousand are kept."""
        return self.limited(rules, prefix=prefix).limiter

    def limited(self, rules: RulesGiven, *, prefix: str = "ratekeeper") -> Limited:
        """Return a limiter, with its headers."""
        key = (prefix, tuple(rules.items()) if isinstance(rules, Mapping) else rules)
        known = self.recall(key)
        return known or self.keep(key, Limited(AsyncLimiter(rules, self.store, prefix=prefix)))

    def recall(self, key: Hashable) -> Limited | None:
        """Return what is kept under a key."""
        known = self._limiters.get(key)
        if known is not None:
            self._limiters.move_to_end(key)
        return known

    def keep(self, key: Hashable, limited: Limited) -> Limited:
        """Keep a limiter; the one that was not used for longest goes."""
        self._limiters[key] = limited
        if len(self._limiters) > MOST_LIMITERS:
            self._limiters.popitem(last=False)
        return limited


class App:
    """The ASGI application."""

    def __init__(self, router: Router, guards: Guards, service: Service) -> None:
        self.router = router
        self.service = service
        self._guards = guards

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._lifespan(scope, receive, send)
            return
        try:
            request = Request(scope, receive)
            self._guards.check(request)
            route = self.router.find(request)
            if route.needs_token:
                self._guards.check_token(request)
            response = await route.handler(request)
        except Exception as error:  # noqa: BLE001 - whatever it is, who asked gets an answer
            response = _trouble(error, scope).response()
        await send({"type": "http.response.start", "status": response.status, "headers": response.headers})
        body = b"" if scope["method"] == "HEAD" else response.body
        await send({"type": "http.response.body", "body": body})

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        while scope["type"] == "lifespan":
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                if isinstance(self.service.store, AsyncRedisStore):
                    await self.service.store.close()
                await send({"type": "lifespan.shutdown.complete"})
                return
            await send({"type": "lifespan.startup.complete"})


def create_app(
    store: str | MemoryStore | AsyncRedisStore = "memory://",
    *,
    token: str | None = None,
    hosts: Collection[str] = (),
    playground: bool = True,
) -> App:
    """Make the application.

    `token` is asked for by all that changes more than a hit; None asks for none. `hosts` are names that it is reached
    by, besides localhost and addresses.
    """
    if isinstance(store, str):
        made = from_url(store, for_asyncio=True)
        assert isinstance(made, MemoryStore | AsyncRedisStore)  # noqa: S101 - what for_asyncio asks for
        store = made
    service = Service(store)
    router = Router()
    api.mount(router, service)
    if playground and find_spec("ratekeeper.playground") is not None:
        import_module("ratekeeper.playground").mount(router, service)
    else:
        router.add("GET", "/", _placeholder)
    return App(router, Guards(hosts, token), service)


def _trouble(error: Exception, scope: Scope) -> Problem:
    """Say what is wrong."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, StoreUnavailable):
        return Problem(503, str(error))
    _log.error("%s %s failed", scope["method"], scope["path"], exc_info=error)
    return Problem(500, "this should not have happened; the log says more")


async def _placeholder(_: Request) -> Response:
    page = (
        b"<!doctype html><html lang=en><meta charset=utf-8><title>ratekeeper</title><h1>ratekeeper</h1>"
        b"<p>The service is up. <a href=/openapi.json>What it answers</a>.</html>\n"
    )
    return Response(200, page, content_type=HTML)
