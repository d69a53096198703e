"""The ASGI application: routes, guards, and the state that they share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from fractions import Fraction

from ratekeeper import arguments, flows
from ratekeeper.clock import stopwatch
from ratekeeper.errors import StoreUnavailable
from ratekeeper.fallback import OnError
from ratekeeper.http.asgi_types import Receive, Scope, Send
from ratekeeper.playground import mount as mount_playground
from ratekeeper.policies.model import StoreOptions
from ratekeeper.service import DEADLINE, api, asgi_server, forward_auth, operating, policy_api
from ratekeeper.service.access_log import log_access
from ratekeeper.service.administration import PoliciesGiven
from ratekeeper.service.guards import Guards
from ratekeeper.service.shared import Service
from ratekeeper.service.web import HTML, Problem, Response, Router, ServiceRequest
from ratekeeper.service.worker import ALONE, Worker
from ratekeeper.stores import Store, from_url

OPENING = 2.0  # seconds to wait for the store when the service starts
_log = logging.getLogger("ratekeeper")


class App:
    """The application: `answer` does all the work. ASGI servers call the instance; `rsgi` adapts it to granian."""

    def __init__(self, router: Router, guards: Guards, service: Service, *, logs_access: bool = False) -> None:
        self.router = router
        self.service = service
        self._guards = guards
        self._logs_access = logs_access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await asgi_server.respond(send, await self.answer(asgi_server.request_of(scope, receive)))
        elif scope["type"] == "lifespan":
            await asgi_server.live(receive, send, self.begin, self.close)

    async def answer(self, request: ServiceRequest) -> Response:
        """Return the response to a request; errors become responses as well."""
        began_ns = stopwatch() if self._logs_access else 0
        try:
            self._guards.check(request)
            endpoint = self.router.find(request)
            if endpoint.needs_token:
                self._guards.check_token(request)
            response = await endpoint.handler(request)
        except Problem as problem:
            response = problem.response()
        except StoreUnavailable as error:
            response = Problem(503, str(error)).response()
        except Exception:  # noqa: BLE001 - whatever went wrong, the client gets a response
            _log.exception("a request failed")  # without the request, which is not for the log
            response = Problem(500, "internal error; see the log").response()
        if request.method == "HEAD":
            response.body = b""
        if self._logs_access:
            log_access(request, response, began_ns)
        return response

    async def begin(self) -> None:
        """Begin to look after figures regularly, and to follow what others change: they are known now, or away."""
        self.service.figures.watch(asyncio.get_running_loop())
        await self.service.policies.following.first(OPENING)

    async def reload(self) -> None:
        """Take over what has changed outside of this process, as after SIGHUP."""
        source = self.service.administration.source
        if source is not None and source.kind != "program":
            await source.reload("SIGHUP")

    async def close(self) -> None:
        """Follow others no more, and close the connections to the store."""
        self.service.policies.following.end()
        await flows.result(self.service.store.for_asyncio().close())
        self.service.figures.close()


def create_app(
    store: str | Store = "memory://",
    *,
    token: str | None = None,
    caller_token: str | None = None,
    hosts: Collection[str] = (),
    deadline: float = DEADLINE,
    playground: bool = True,
    policies: PoliciesGiven = None,
    on_error: OnError = "local",
    local_share: float | Fraction = 1,
    lease: float | None = None,
    worker: Worker = ALONE,
    metrics: bool = True,
    shows_keys: bool = False,
    trusted_proxies: Collection[str] = forward_auth.TRUSTED,
    access_log: bool = False,
    denial_log: bool = False,
) -> App:
    """Make the application.

    `token` is required for every call that changes or shows more than a hit does; with None, such calls work from this
    machine only. With `caller_token`, hits and peeks need it as well, except by policies with callers of their own.
    `hosts` are the names by which clients reach the service, besides localhost and IP addresses. The
    store has `deadline` seconds to answer before this process decides on its own. `policies` are a file, a text,
    policies that were loaded before, or "store" for those that are kept in the store. `on_error`, `local_share` and
    `lease` count where a policy has none of its own; leases are for policies only. `worker` is the place of this
    process among those that serve together. Without `metrics`, nothing is counted beyond the live chart; with
    `shows_keys`, top talkers are shown by their keys, which are otherwise hashed. `trusted_proxies` may ask for
    decisions on requests of their clients; they are addresses, networks, or "unix" for a Unix socket. `access_log`
    logs every request, and `denial_log` a sample of the denials.
    """
    if isinstance(store, str):
        store = from_url(store, for_asyncio=True)
    arguments.check_on_error(on_error)
    options = StoreOptions(on_error, arguments.check_share(local_share), lease and arguments.check_lease_seconds(lease))
    service = Service(
        store,
        deadline,
        policies,
        options,
        worker,
        token=token,
        caller_token=caller_token,
        counts=metrics,
        logs_denials=denial_log,
    )
    router = Router()
    api.mount(router, service)
    operating.mount(router, service.figures, shows_keys=shows_keys)
    policy_api.mount(router, service)
    forward_auth.mount(router, service, trusted_proxies)
    if playground:
        mount_playground(router, service)
    else:
        router.add("GET", "/", _placeholder)
    return App(router, Guards(hosts, token), service, logs_access=access_log)


async def _placeholder(_: ServiceRequest) -> Response:
    page = (
        b"<!doctype html><html lang=en><meta charset=utf-8><title>ratekeeper</title><h1>ratekeeper</h1>"
        b"<p>The service is running. See <a href=/openapi.json>its API</a>.</html>\n"
    )
    return Response(200, page, content_type=HTML)
