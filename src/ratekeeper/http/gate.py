"""The way of a request past the limits: what all integrations share, so that each of them is thin.

An integration adapts its request, asks the gate to `admit` it, and then passes it on with `headers`, or answers with
`denial`; when the answer is there it may `settle`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypedDict, cast

from ratekeeper.clock import Clock, wall_clock
from ratekeeper.decision import Decision
from ratekeeper.errors import InvalidRule
from ratekeeper.fallback import OnError
from ratekeeper.flows import run, run_async
from ratekeeper.http import problem
from ratekeeper.http.admission import Admission, correct, decide, decide_on, is_plain, place_of, settle
from ratekeeper.http.headers import EncodedFields, Fields, Headers
from ratekeeper.http.keys import KeyFunction, by_address, check_function
from ratekeeper.http.plan import Limited, Plan, Unidentified
from ratekeeper.http.request import Answer, Reply, Request
from ratekeeper.http.routes import CostFunction, Limit, Route, SettleFunction, exemption
from ratekeeper.http.waiters import Waiters
from ratekeeper.limiter import AsyncLimiter, Limiter
from ratekeeper.rates import show
from ratekeeper.ruleset import Costs
from ratekeeper.stores.protocol import Store

DenyFunction = Callable[[Any, Decision], Reply]
_BY_ADDRESS = by_address()
_HEADERS = Headers()


class Options(TypedDict, total=False):
    """What every integration takes besides its `limit`; `Gate` says what each means."""

    routes: Iterable[Route]
    exempt: Iterable[str]
    key: KeyFunction
    cost: Costs | CostFunction
    settle: SettleFunction | None
    unidentified: Unidentified
    headers: Headers
    deny: DenyFunction | None
    max_waiters: int
    max_waiters_per_key: int
    store: str | Store
    clock: Clock | None
    prefix: str
    on_error: OnError
    deadline: float


def for_several(options: Options) -> Options:
    """Return options that several gates can be made of: what can be read only once is read now."""
    read = {name: list(value) if isinstance(value, Iterator) else value for name, value in options.items()}
    return cast("Options", read)


class _Gate:
    """What both gates share."""

    _limiter: type[Limiter | AsyncLimiter]
    _for_asyncio: bool

    def __init__(
        self,
        limit: Limit = None,
        *,
        routes: Iterable[Route] = (),
        exempt: Iterable[str] = (),
        key: KeyFunction = _BY_ADDRESS,
        cost: Costs | CostFunction = 1,
        settle: SettleFunction | None = None,
        unidentified: Unidentified = "shared",
        headers: Headers = _HEADERS,
        deny: DenyFunction | None = None,
        max_waiters: int = 1000,
        max_waiters_per_key: int = 100,
        store: str | Store = "memory://",
        clock: Clock | None = None,
        prefix: str = "ratekeeper",
        on_error: OnError = "local",
        deadline: float = 0.1,
    ) -> None:
        if unidentified not in ("shared", "deny", "skip"):
            raise InvalidRule(f"unidentified must be 'shared', 'deny' or 'skip', not {show(unidentified)}")
        if not isinstance(headers, Headers):
            raise TypeError(f"headers must be Headers(...), not {show(headers)}")
        if deny is not None:
            check_function("deny", deny, "the decision", for_asyncio=False)
        self._store = store
        self._owner: Any = None
        self._prefix = prefix
        self._limiter_options: dict[str, Any] = {"clock": clock, "on_error": on_error, "deadline": deadline}
        self._clock = clock or wall_clock
        self._headers = headers
        self._deny = deny
        self._waiters = Waiters(max_waiters, max_waiters_per_key)
        self._plans = [
            Plan(
                route,
                key,
                cost,
                settle,
                unidentified=unidentified,
                make_limited=self._limited,
                for_asyncio=self._for_asyncio,
            )
            for route in (*map(exemption, _listed("exempt", exempt)), *_routes(routes), Route("*", limit, name=""))
        ]
        for plan in self._plans:
            plan.otherwise = self._plans[-1].limited

    def headers(self, admission: Admission) -> Fields:
        """Return the headers that tell a client how it stands."""
        return admission.limited.writer.fields(admission.decision, admission.key, self._clock() / 1e9)

    def encoded_headers(self, admission: Admission) -> EncodedFields:
        """Return the same in bytes, the names in lower case."""
        return admission.limited.writer.encoded(admission.decision, admission.key, self._clock() / 1e9)

    def denial(self, request: Request, admission: Admission) -> Reply:
        """Return the answer to a request that is not admitted."""
        told = self.headers(admission)
        if self._deny is None:
            body = problem.body(admission.decision, ", ".join(request.header("accept")))
            about = [("Content-Type", body.content_type), ("Content-Length", str(len(body.content)))]
            reply = Reply(429, [*about, *told], body.content)
        else:
            reply = self._deny(request, admission.decision)
            has = {name.lower() for name, _ in reply.headers}
            reply = reply._replace(headers=[*reply.headers, *(each for each in told if each[0].lower() not in has)])
        return reply._replace(body=b"") if request.method == "HEAD" else reply

    def wait_with(self, other: _Gate) -> None:
        """Count those who wait together with another gate's, under its bounds."""
        self._waiters = other._waiters

    def leave(self, admission: Admission) -> None:
        """Say that a request which was held is no longer, whatever became of it."""
        if admission.waits:
            self._waiters.leave(place_of(admission.plan, admission.key))

    def _plan(self, request: Request) -> Plan:
        for plan in self._plans:
            if plan.matches is None or plan.matches(request):
                break
        return plan  # the last matches all

    def _limited(self, limit: Any, name: str) -> Limited:
        if isinstance(limit, Limiter | AsyncLimiter):
            if not isinstance(limit, self._limiter):
                raise TypeError(f"limit must be rules or of type {self._limiter.__name__} here, not {show(limit)}")
            return Limited(limit, self._headers)
        prefix = f"{self._prefix}:{name}" if name else self._prefix
        limiter = self._limiter(limit, self._store, prefix=prefix, **self._limiter_options)
        if isinstance(self._store, str):  # one store for all
            self._owner, self._store = limiter, limiter.store
        return Limited(limiter, self._headers)


class Gate(_Gate):
    """The gate of integrations that call functions.

    `limit` (rules, a limiter, a function of the request, or None) is for all that `routes` and `exempt` do not match.
    `key` makes a key of a request, `cost` is what one takes, and `settle` corrects it when the answer is there.
    `unidentified` says what becomes of a request without a key: they share one, are denied, or are not limited.
    `headers` says which headers are written; `deny(request, decision)` makes the `Reply` to a denied request.
    At most `max_waiters` requests are held for their shaping delay at a time, `max_waiters_per_key` of one key.
    The rest is as for a `Limiter`.
    """

    _limiter = Limiter
    _for_asyncio = False

    def admit(self, request: Request, *, correctable: bool = True) -> Admission | None:
        """Decide on a request; None: it is not limited. One that is not to be corrected by hand costs less time."""
        plan = self._plan(request)
        limited = plan.plain
        if limited is None or correctable:
            return run(decide(plan, request, self._waiters))
        key = plan.find_key(request)
        if not is_plain(key):
            return run(decide_on(key, plan, limited, request, self._waiters))
        return Admission(limited.limiter.hit(key, plan.cost), plan, limited, key)

    def hold(self, admission: Admission) -> None:
        """Wait through the delay of a bucket that shapes."""
        try:
            if admission.decision.allowed and admission.decision.delay:
                time.sleep(admission.decision.delay)
        finally:
            self.leave(admission)

    def settle(self, request: Request, admission: Admission, answer: Answer) -> None:
        """Correct the cost of a request that was answered."""
        if admission.plan.settle is not None and admission.decision.allowed:
            run(settle(request, admission, answer))

    def correct(self, admission: Admission, real_cost: Costs) -> None:
        """Charge what a request cost more than estimated, and give back what it cost less."""
        run(correct(admission, real_cost))

    def close(self) -> None:
        """Close the store, if it was given as a URL."""
        if self._owner is not None:
            self._owner.close()


class AsyncGate(_Gate):
    """A `Gate` whose methods are awaited."""

    _limiter = AsyncLimiter
    _for_asyncio = True

    async def admit(self, request: Request, *, correctable: bool = True) -> Admission | None:
        """Decide on a request; None: it is not limited. One that is not to be corrected by hand costs less time."""
        plan = self._plan(request)
        limited = plan.plain
        if limited is None or correctable:
            return await run_async(decide(plan, request, self._waiters))
        key = plan.find_key(request)
        if not is_plain(key):
            return await run_async(decide_on(key, plan, limited, request, self._waiters))
        return Admission(await limited.limiter.hit(key, plan.cost), plan, limited, key)

    async def settle(self, request: Request, admission: Admission, answer: Answer) -> None:
        """Correct the cost of a request that was answered."""
        if admission.plan.settle is not None and admission.decision.allowed:
            await run_async(settle(request, admission, answer))

    async def correct(self, admission: Admission, real_cost: Costs) -> None:
        """Charge what a request cost more than estimated, and give back what it cost less."""
        await run_async(correct(admission, real_cost))

    async def close(self) -> None:
        """Close the store, if it was given as a URL."""
        if self._owner is not None:
            await self._owner.close()


def _listed(argument: str, given: Any) -> list[Any]:
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise TypeError(f"{argument} must be a list, not {show(given)}")
    return list(given)


def _routes(given: Any) -> list[Route]:
    routes = _listed("routes", given)
    for place, route in enumerate(routes):
        if not isinstance(route, Route):
            raise TypeError(f"routes[{place}] must be a Route, not {show(route)}")
    return routes
