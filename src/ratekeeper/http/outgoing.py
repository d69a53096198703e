"""Outgoing requests: wait for the budget, send, back off as the response asks, and settle the cost.

`Library` describes how HTTP libraries differ.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

from ratekeeper import arguments, queues
from ratekeeper.clock import Clock
from ratekeeper.decision import NO_LAYERS, Decision
from ratekeeper.errors import InvalidRule, RateLimited
from ratekeeper.flows import Flow, run, run_async
from ratekeeper.http.backoff import Backoff
from ratekeeper.http.client_keys import check_function
from ratekeeper.http.parse import parse_headers
from ratekeeper.http.settlement import Ledger, RealCost, Settlement
from ratekeeper.limiter import AsyncLimiter, Limiter
from ratekeeper.rates import show
from ratekeeper.reservations import AsyncReservation, Reservation
from ratekeeper.rules import Rules, with_headroom
from ratekeeper.ruleset import Costs, Keys
from ratekeeper.stores import Store
from ratekeeper.waiting import check_timeout

IDEMPOTENT = ("GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE")
_TRY_LATER = (429, 503)  # in other responses, such as a 202, Retry-After is not about rate limits
_Taken = Reservation | AsyncReservation
_PORTS = {"http": 80, "https": 443}


class Library(NamedTuple):
    """The differences between HTTP libraries; all have a method on requests, and a status and headers on responses."""

    can_repeat: Callable[[Any], bool]
    """Tells whether the body of a request can be sent twice."""
    never_left: Callable[[Exception], bool]
    """Tells whether a request failed before any of it was sent."""
    read: Callable[[Any], Any]
    """Reads a response to its end."""
    watch: Callable[[Any, Any, Settlement], Any]
    """Lets a settlement see the body of a response, chunk by chunk, until it is read or closed."""


class Outgoing:
    """What the adapters for all libraries share."""

    def __init__(
        self,
        limit: Rules | Limiter | AsyncLimiter,
        store: str | Store,
        *,
        kind: type[Limiter | AsyncLimiter],
        library: Library,
        key: Callable[[Any], Keys | None],
        cost: Costs | Callable[[Any], Costs],
        settle: RealCost | None,
        timeout: float | None,
        retries: int,
        retry_methods: Collection[str],
        headroom: float,
        enabled: bool,
    ) -> None:
        check_function("key", key, for_asyncio=False)
        if callable(cost):
            check_function("cost", cost, for_asyncio=False)
        if settle is not None and (not callable(settle) or inspect.iscoroutinefunction(settle)):
            raise TypeError(f"settle must be a plain function of the answer, not {show(settle)}")
        if isinstance(retries, bool) or not isinstance(retries, int):
            raise TypeError(f"retries must be an int, not {show(retries)}")
        if retries < 0:
            raise InvalidRule(f"retries must be at least 0, not {retries}")
        if isinstance(retry_methods, str) or not all(isinstance(method, str) for method in retry_methods):
            raise TypeError(f"retry_methods must be a list such as ['GET'], not {show(retry_methods)}")
        self._key = key
        self._cost = cost
        self._timeout = check_timeout(timeout)
        self._retries = retries
        self._retry_methods = frozenset(map(str.upper, retry_methods))
        self._library = library
        limiter = limit if isinstance(limit, Limiter | AsyncLimiter) else None
        if limiter is None:
            arguments.check_switch("enabled", enabled)
            rules = with_headroom(cast("Rules", limit), headroom)
            limiter = kind(rules, store if enabled else "memory://", enabled=enabled)
        else:
            _check_alone(limiter, kind, store, headroom, enabled)
            if limiter.version is not None and key is by_host:
                example = "lambda request: {'host': request.url.host}"
                raise InvalidRule(f"a limiter by policy needs a key function that returns attributes: key={example}")
        self.own: Any = None if limiter is limit else limiter  # which was made here and has to be closed
        if not callable(cost):
            arguments.by_name("cost", cost, list(limiter.rules), arguments.check_cost)
        self._limiter: Any = limiter
        self._timer = limiter.timer
        self._backoff = Backoff(self._timer)
        self._ledger = Ledger(settle)

    def send(self, request: Any, send: Callable[[], Any]) -> Any:
        """Send a request once it is admitted, and return the response."""
        return run(self._exchange(request, send, queues.Waiter))

    async def send_async(self, request: Any, send: Callable[[], Any]) -> Any:
        """Send a request once it is admitted, and return the response."""
        return await run_async(self._exchange(request, send, queues.AsyncWaiter))

    def _exchange(self, request: Any, send: Callable[[], Any], make_waiter: Callable[[Clock], Any]) -> Flow[Any]:
        key = self._key(request)
        if key is None:
            self._limiter.notices.note("skipped", "a request has no key: it is sent without waiting for a budget")
            return (yield send())
        hashable_key = tuple(sorted(key.items())) if isinstance(key, Mapping) else key
        cost = self._cost(request) if callable(self._cost) else self._cost
        retries = self._retries
        while True:
            taken = yield from self._until_admitted(key, hashable_key, cost, make_waiter(self._timer))
            try:
                answer = yield send()
            except Exception as error:
                if self._library.never_left(error):
                    yield from self._ledger.give_back(taken)
                raise
            is_to_retry = self._back_off(hashable_key, request, answer)
            if self._ledger.settle_function is not None:
                yield self._library.watch(request, answer, Settlement(self._ledger, taken))
            if not (retries and is_to_retry):
                return answer
            retries -= 1
            yield self._library.read(answer)  # frees its connection, and settles its cost

    def _until_admitted(self, key: Keys, hashable_key: Hashable, cost: Costs, waiter: Any) -> Flow[_Taken]:
        """Wait until the server's backoff is over and the budget admits the request."""
        timeout = self._timeout
        if not self._limiter.enabled:
            taken: _Taken = yield self._limiter.take(key, cost)
            return taken
        deadline = None if timeout is None else self._timer() + round(timeout * 1e9)
        can_fit = self._can_fit(cost)
        while True:
            while can_fit and (until := self._backoff.until(hashable_key)) > self._timer():
                if deadline is not None and until > deadline:
                    raise RateLimited(_held_by_server((until - self._timer()) / 1e9))
                yield waiter.sleep_until(until)
            # Ask the budget last and send at once: otherwise all requests would be sent together when a backoff ends.
            if timeout == 0:
                taken = yield from self._take_now(key, cost)
            else:
                left = None if deadline is None else max(0, deadline - self._timer()) / 1e9
                taken = yield self._limiter.wait_and_take(key, cost, left)
            if self._backoff.until(hashable_key) <= self._timer():
                return taken
            # In the meantime, a response asked for a longer backoff.
            yield from self._ledger.give_back(taken)

    def _can_fit(self, cost: Costs) -> bool:
        rules = self._limiter.rules  # those of a policy may change
        costs = arguments.by_name("cost", cost, list(rules), arguments.check_cost)
        return all(costs.get(name, 1) <= rule.limit for name, rule in rules.items())

    def _take_now(self, key: Keys, cost: Costs) -> Flow[_Taken]:
        """Take it now or not at all, without a place in a queue, where it might have to wait for others."""
        taken: _Taken = yield self._limiter.take(key, cost)
        decision = taken.decision
        if decision.allowed and decision.delay:
            yield from self._ledger.give_back(taken)
            decision = decision._replace(allowed=False, retry_after=decision.delay, delay=0.0, layers=NO_LAYERS)
        if not decision.allowed:
            raise RateLimited(decision)
        return taken

    def _back_off(self, hashable_key: Hashable, request: Any, answer: Any) -> bool:
        """Back off if the response asks for it; return whether to send the request again."""
        limits = parse_headers(answer.headers)
        is_refused = answer.status_code in _TRY_LATER
        if not is_refused:
            limits = limits._replace(retry_after=None)
        wait = limits.wait
        if wait:
            self._backoff.back_off(hashable_key, wait)
        return (
            is_refused
            and (wait > 0 or limits.retry_after is not None)
            and (self._timeout is None or wait <= self._timeout)
            and request.method.upper() in self._retry_methods
            and self._library.can_repeat(request)
        )


def _check_alone(limiter: object, kind: type[Any], store: object, headroom: object, enabled: object) -> None:
    """Check a limiter that was passed, and that nothing is given beside it that it has already."""
    if not isinstance(limiter, kind):
        raise TypeError(f"limit must be rules or of type {kind.__name__} here, not {show(limiter)}")
    if store != "memory://":
        raise InvalidRule("store cannot be combined with a limiter, which already has one")
    if headroom != 0:
        raise InvalidRule("headroom cannot be combined with a limiter; write Limiter(with_headroom(rules, 0.05), ...)")
    if enabled is not True:
        raise InvalidRule("enabled cannot be combined with a limiter, which has its own: Limiter(..., enabled=False)")


def by_host(request: Any) -> str | None:
    """Key by the host of a request, and its port unless it is the default of the scheme."""
    parts = urlsplit(str(request.url))
    if parts.hostname is None:
        return None
    port = "" if parts.port in (None, _PORTS.get(parts.scheme)) else f":{parts.port}"
    return f"host:{parts.hostname.rstrip('.')}{port}"


def _held_by_server(seconds: float) -> Decision:
    return Decision(False, 0, 0, seconds, seconds, 0.0, "server", NO_LAYERS, False)
