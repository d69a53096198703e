"""Gates: the way of a request past the limits, shared by all integrations so that each of them is thin.

An integration adapts its request, asks the gate to `admit` it, and then passes it on with `headers` or answers with
`denial`. Once the application has answered, it may `settle` the real cost.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from ratekeeper import arguments
from ratekeeper.clock import Clock, wall_clock
from ratekeeper.errors import InvalidRule
from ratekeeper.fallback import OnError
from ratekeeper.flows import result, run, run_async
from ratekeeper.http.admission import Admission, correct, leave, look_after, settle
from ratekeeper.http.admitting import UNKNOWN, decide, decide_by_all
from ratekeeper.http.client_keys import KeyFunction, address_of, by_address
from ratekeeper.http.exemptions import Exemptions
from ratekeeper.http.gate_options import Options, no_option
from ratekeeper.http.headers import Headers
from ratekeeper.http.held_requests import HeldRequests
from ratekeeper.http.limiter_maker import LimiterMaker
from ratekeeper.http.matching import NOT_CONFIGURED, SWITCHED_OFF, NoRoutes, RouteTable
from ratekeeper.http.policy_limits import Unidentified, loaded
from ratekeeper.http.problem import body
from ratekeeper.http.reports import Report, report
from ratekeeper.http.request import Answer, Reply, Request, context_of
from ratekeeper.http.request_attributes import AttributeFunction
from ratekeeper.http.route_limits import RouteLimit
from ratekeeper.http.routes import CostFunction, Deny, ExemptFunction, Limit, Route, SettleFunction, exemption
from ratekeeper.keys import SURELY_SHORT
from ratekeeper.limiter import AsyncLimiter, Limiter
from ratekeeper.notices import Notices
from ratekeeper.rates import show
from ratekeeper.rules import Rules
from ratekeeper.ruleset import Costs, Shadow
from ratekeeper.stores.protocol import Store

if TYPE_CHECKING:
    from ratekeeper.policies import Policies

_BY_ADDRESS = by_address()
_HEADERS = Headers()
_NONE: Mapping[str, Any] = {}
FALLBACK = "60/minute"
"""The rules if a function of the request returned no valid ones and there is no fixed `limit`."""
_new = tuple.__new__  # a named tuple's own constructor takes twice as long


class _Gate:
    """What both gates share."""

    _limiter: type[Limiter | AsyncLimiter]
    _for_asyncio: bool

    def __init__(
        self,
        limit: Limit = None,
        *,
        policies: Policies | str | os.PathLike[str] | None = None,
        policy: str | None = None,
        attributes: Mapping[str, AttributeFunction] = _NONE,
        routes: Iterable[Route] = (),
        exempt: Iterable[str | ExemptFunction] = (),
        key: KeyFunction = _BY_ADDRESS,
        cost: Costs | CostFunction = 1,
        settle: SettleFunction | None = None,
        per_method: bool = False,
        unidentified: Unidentified = "shared",
        fallback: Rules | Limiter | AsyncLimiter = FALLBACK,
        headers: Headers = _HEADERS,
        deny: Deny = None,
        shadow: Shadow = False,
        count_preflights: bool = False,
        max_waiters: int = 1000,
        max_waiters_per_key: int = 100,
        store: str | Store = "memory://",
        clock: Clock | None = None,
        prefix: str = "ratekeeper",
        on_error: OnError | None = None,
        deadline: float = 0.1,
        enabled: bool = True,
        notices: Notices | None = None,
        shares_options: bool = False,
        sibling: _Gate | None = None,
        **unknown: NoReturn,
    ) -> None:
        """With `shares_options`, the options are those of several gates, and not each has to have an effect here.

        A sibling has the same options: held requests are counted together, and a policy has one limiter for both.
        """
        for option in unknown:
            raise no_option(option, ["limit", *Options.__annotations__])
        if unidentified not in ("shared", "deny", "skip"):
            raise InvalidRule(f"unidentified must be 'shared', 'deny' or 'skip', not {show(unidentified)}")
        if not isinstance(headers, Headers):
            raise TypeError(f"headers must be Headers(...), or Headers.off() for none, not {show(headers)}")
        arguments.check_switch("enabled", enabled)
        arguments.check_switch("per_method", per_method)
        arguments.check_switch("count_preflights", count_preflights)
        shadow = arguments.as_shadow(shadow)
        self.count_preflights = count_preflights
        """Whether CORS preflights are counted."""
        self._notices = notices or Notices()
        self.maker = LimiterMaker(
            self._limiter,
            store if enabled else "memory://",
            prefix=prefix,
            on_error=on_error,
            policies=policies,
            attributes=attributes,
            headers=headers,
            unidentified=unidentified,
            notices=self._notices,
            clock=clock,
            deadline=deadline,
        )
        """Makes its limiters."""
        if sibling is not None:
            self.maker.by_policy = sibling.maker.by_policy
        self._clock = clock or wall_clock
        self._held = HeldRequests(max_waiters, max_waiters_per_key) if sibling is None else sibling.held
        listed = _listed("exempt", exempt)
        exemptions = Exemptions(listed, self._notices, for_asyncio=self._for_asyncio)
        self._exempts = exemptions or None
        exempt_routes = [exemption(each) for each in listed if not callable(each)]
        self._route_limits = route_limits = [
            RouteLimit(
                route,
                key,
                cost,
                settle,
                per_method=per_method,
                deny=deny,
                unidentified=unidentified,
                shadow=shadow,
                make_limiter=self.maker.http_limiter,
                make_policy_limit=self.maker.policy_limit,
                notices=self._notices,
                prefix=prefix,
                for_asyncio=self._for_asyncio,
            )
            for route in (*exempt_routes, *_routes(routes), Route("*", limit, name="", policy=policy))
        ]
        if not shares_options:
            _check_shadow(shadow, route_limits)
            _check_policies(policies, key, route_limits)
        for route_limit in route_limits:
            if route_limit.rules_function is not None:
                route_limit.otherwise = route_limits[-1].http_limiter or route_limit.limiter_of(fallback)
        self._routes: RouteTable | NoRoutes = RouteTable(route_limits)
        self._only = None if self._exempts else self._routes.only
        if not enabled:
            self._limit_nothing(SWITCHED_OFF)
        elif all(route_limit.is_exempt for route_limit in route_limits):
            self._limit_nothing(NOT_CONFIGURED)

    @property
    def notices(self) -> Notices:
        """Counters of the requests that the rules in the store did not decide, and why."""
        return self._notices

    @property
    def held(self) -> HeldRequests:
        """Counters of the requests that are held for their shaping delay, and of those that were refused it."""
        return self._held

    def report(self, context: MutableMapping[str, Any], admission: Admission) -> Report:
        """Return what the response reports: the tightest decision of all gates that the request has come to so far.

        They find each other in `context`, such as the ASGI scope of the request.
        """
        return report(context, admission, self._clock() / 1e9)

    def denial(self, request: Request, admission: Admission) -> Reply:
        """Return the response to a denied request."""
        fields = self.report(context_of(request), admission).fields()
        answer = admission.route_limit.answer_to(request, admission.decision)
        if isinstance(answer, Reply):
            names = {name.lower() for name, _ in answer.headers}
            missing = [field for field in fields if field[0].lower() not in names]
            reply = answer._replace(headers=[*answer.headers, *missing])
        else:
            content_type, content = body(admission.decision, ", ".join(request.header("accept")), answer)
            own = [("Content-Type", content_type), ("Content-Length", str(len(content)))]
            reply = Reply(429, [*own, *fields], content, answer)
        return reply._replace(body=b"") if request.method.upper() == "HEAD" else reply

    def _limit_nothing(self, reason: str) -> None:
        self._only, self._exempts, self._routes = None, None, NoRoutes(self._notices, reason)

    def leave(self, admission: Admission) -> None:
        """Stop counting a request as held, whatever happened to it."""
        leave(self._held, admission)


class Gate(_Gate):
    """The gate for synchronous integrations.

    `limit` (rules, a limiter, a function of the request, or None) applies to every request that `routes` and `exempt`
    do not match; `exempt` lists paths, and functions of the request that return True. `key` computes a request's key,
    `cost` is what a request consumes, and `settle` corrects the cost after the application has answered. With
    `per_method`, each HTTP method has its own usage. `unidentified` says what happens to requests without a key: they
    share one key, are denied, or are not limited. Where rules are a function of the request, and it fails or returns no
    valid rules, `limit` applies if it is fixed, otherwise `fallback`. `headers` selects the response headers. `deny` is
    what a denied request gets: a text for the usual response, or a function of the request and the decision that
    returns a `Reply`, such a text, or None. With `shadow=True`, or for the rules in a list of names, nothing is denied:
    what would have been is counted in `notices`, sometimes logged, and in the decision. CORS preflights that the
    framework answers by itself are counted only with `count_preflights`. At most `max_waiters` requests are held for
    their shaping delay at a time, and at most `max_waiters_per_key` for one key. Gates with the same `notices` count
    together. With `enabled=False`, nothing is limited, and each request is counted as `unlimited`. The other options
    are those of a `Limiter`.

    A function that needs no argument, because it uses a context variable, may take none instead of the request.
    """

    _limiter = Limiter
    _for_asyncio = False

    # Written again in `AsyncGate`: a flow would make the walk of nearly every request three calls longer, a fifth.
    # What needs more than a key and a hit is one flow for both.
    def admit(self, request: Request, *, correctable: bool = True) -> Admission | None:
        """Decide on a request; None means that it is not limited.

        `correctable=False` is faster, and leaves nothing for `correct` to start from.
        """
        route_limit = self._only
        if route_limit is None:
            if self._exempts is not None and run(self._exempts.include(request)):
                return None
            found = self._routes.find(request)
            if len(found) != 1:
                return run(decide_by_all(found, request, self._held))
            route_limit = found[0]
        simple = route_limit.simple
        key: Any = UNKNOWN
        if simple is not None and not correctable:
            key = route_limit.find_key(request)
            if type(key) is str and 0 < len(key) <= SURELY_SHORT:  # as nearly all keys; `decide` looks at others
                decision = simple.limiter.hit(key, route_limit.cost)
                admission = _new(Admission, (decision, route_limit, simple, key, None, None, (), None))
                if decision.remaining != 0 or not decision.allowed:
                    return admission
                return run(look_after(admission))
        return run(decide(route_limit, request, self._held, key))

    def hold(self, admission: Admission) -> None:
        """Wait for the delay of a shaping bucket."""
        try:
            if admission.decision.allowed and admission.decision.delay:
                time.sleep(admission.decision.delay)
        finally:
            self.leave(admission)

    def settle(self, request: Request, admission: Admission, answer: Answer) -> None:
        """Correct the cost of a request that the application has answered."""
        if admission.settles and admission.decision.allowed:
            run(settle(request, admission, answer))

    def correct(self, admission: Admission, real_cost: Costs) -> None:
        """Charge what a request cost above its estimate, or give back what it cost below."""
        run(correct(admission, real_cost))

    def close(self) -> None:
        """Close the store if it was given as a URL."""
        if self.maker.own_store is not None:
            self.maker.own_store.for_threads().close()


class AsyncGate(_Gate):
    """A `Gate` whose methods are awaited."""

    _limiter = AsyncLimiter
    _for_asyncio = True

    async def admit(self, request: Request, *, correctable: bool = True) -> Admission | None:
        """Decide on a request; None means that it is not limited.

        `correctable=False` is faster, and leaves nothing for `correct` to start from.
        """
        route_limit = self._only
        if route_limit is None:
            if self._exempts is not None and await run_async(self._exempts.include(request)):
                return None
            found = self._routes.find(request)
            if len(found) != 1:
                return await run_async(decide_by_all(found, request, self._held))
            route_limit = found[0]
        simple = route_limit.simple
        key: Any = UNKNOWN
        if simple is not None and not correctable:
            key = route_limit.find_key(request)
            if type(key) is str and 0 < len(key) <= SURELY_SHORT:  # as nearly all keys; `decide` looks at others
                decision = await simple.limiter.hit(key, route_limit.cost)
                admission = _new(Admission, (decision, route_limit, simple, key, None, None, (), None))
                if decision.remaining != 0 or not decision.allowed:
                    return admission
                return await run_async(look_after(admission))
        return await run_async(decide(route_limit, request, self._held, key))

    async def settle(self, request: Request, admission: Admission, answer: Answer) -> None:
        """Correct the cost of a request that the application has answered."""
        if admission.settles and admission.decision.allowed:
            await run_async(settle(request, admission, answer))

    async def correct(self, admission: Admission, real_cost: Costs) -> None:
        """Charge what a request cost above its estimate, or give back what it cost below."""
        await run_async(correct(admission, real_cost))

    async def close(self) -> None:
        """Close the store if it was given as a URL."""
        if self.maker.own_store is not None:
            await result(self.maker.own_store.for_asyncio().close())


def _check_shadow(shadow: Shadow, route_limits: Sequence[RouteLimit]) -> None:
    """Raise InvalidRule if a name is that of no rule; which rules a function will return is not known."""
    if not (isinstance(shadow, bool) or any(each.rules_function or each.policy for each in route_limits)):
        arguments.check_shadow(shadow, [name for each in route_limits for name in each.rules])


def _check_policies(policies: Any, key: KeyFunction, route_limits: Sequence[RouteLimit]) -> None:
    """Raise InvalidRule if policies, or a key, are given and not used."""
    of_policies = [each for each in route_limits if each.policy is not None]
    if policies is not None and not of_policies:
        raise InvalidRule(f"policies needs policy, the name of one of them: {', '.join(loaded(policies))}")
    if of_policies and address_of(key) is None and all(each.policy or each.is_exempt for each in route_limits):
        raise InvalidRule(
            "a policy has keys of its own; `key` can only be by_address(...), which says how `ip` is found"
        )


def _listed(argument: str, given: Any) -> list[Any]:
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise TypeError(f"{argument} must be a list, not {show(given)}")
    return list(given)


def _routes(given: Any) -> list[Route]:
    routes = _listed("routes", given)
    for index, route in enumerate(routes):
        if not isinstance(route, Route):
            raise TypeError(f"routes[{index}] must be a Route such as Route('/login', '5/minute'), not {show(route)}")
    return routes
