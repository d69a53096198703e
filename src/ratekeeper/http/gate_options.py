"""The options that every integration takes, and passes on to its gate."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypedDict, cast

from ratekeeper.clock import Clock
from ratekeeper.fallback import OnError
from ratekeeper.http.client_keys import KeyFunction
from ratekeeper.http.headers import Headers
from ratekeeper.http.policy_limits import Unidentified
from ratekeeper.http.request_attributes import AttributeFunction
from ratekeeper.http.routes import CostFunction, Deny, ExemptFunction, Route, SettleFunction
from ratekeeper.limiter import AsyncLimiter, Limiter
from ratekeeper.notices import Notices
from ratekeeper.rates import show
from ratekeeper.rules import Rules
from ratekeeper.ruleset import Costs, Shadow
from ratekeeper.spelling import nearest
from ratekeeper.stores.protocol import Store

if TYPE_CHECKING:
    from ratekeeper.policies import Policies


class Options(TypedDict, total=False):
    """The options of every integration besides its `limit`; see `Gate` for what each means."""

    policies: Policies | str | os.PathLike[str] | None
    policy: str | None
    attributes: Mapping[str, AttributeFunction]
    routes: Iterable[Route]
    exempt: Iterable[str | ExemptFunction]
    key: KeyFunction
    cost: Costs | CostFunction
    settle: SettleFunction | None
    per_method: bool
    unidentified: Unidentified
    fallback: Rules | Limiter | AsyncLimiter
    headers: Headers
    deny: Deny
    shadow: Shadow
    count_preflights: bool
    max_waiters: int
    max_waiters_per_key: int
    store: str | Store
    clock: Clock | None
    prefix: str
    on_error: OnError | None
    deadline: float
    enabled: bool
    notices: Notices | None


def no_option(option: object, options: Iterable[str]) -> TypeError:
    """Return the error for an option that there is not, with those that there are."""
    meant = nearest(option, options)
    hint = "" if meant is None else f" (did you mean {meant!r}?)"
    return TypeError(f"there is no option {show(option)}{hint}; the options are {', '.join(options)}")


def for_several(options: Options) -> Options:
    """Return options that can be used for several gates: iterators are read once, now."""
    read = {name: list(value) if isinstance(value, Iterator) else value for name, value in options.items()}
    return cast("Options", read)
