"""The settings of Flask-Limiter: read, or rejected with what to use instead, so that none is silently ignored."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ratekeeper.errors import InvalidRule
from ratekeeper.http import Headers, Route
from ratekeeper.http.client_keys import of_request
from ratekeeper.http.routes import Limit, is_rules_function
from ratekeeper.rates import show
from ratekeeper.spelling import nearest

if TYPE_CHECKING:
    from ratekeeper.http import Options

_STRATEGIES = ("fixed-window", "moving-window", "sliding-window-counter")
_OPTIONS = {
    "RATELIMIT_KEY_FUNC": "key",
    "RATELIMIT_STORAGE_URI": "store",
    "RATELIMIT_KEY_PREFIX": "prefix",
    "RATELIMIT_ON_ERROR": "on_error",
    "RATELIMIT_DEADLINE": "deadline",
}
_READ = ("RATELIMIT_DEFAULT", "RATELIMIT_APPLICATION", "RATELIMIT_ENABLED", "RATELIMIT_STRATEGY")
_AS_HERE = {  # what these settings must be: it cannot be changed
    "RATELIMIT_HEADER_LIMIT": "X-RateLimit-Limit",
    "RATELIMIT_HEADER_REMAINING": "X-RateLimit-Remaining",
    "RATELIMIT_HEADER_RESET": "X-RateLimit-Reset",
    "RATELIMIT_HEADER_RETRY_AFTER": "Retry-After",
    "RATELIMIT_HEADER_RETRY_AFTER_VALUE": "delta-seconds",
    "RATELIMIT_FAIL_ON_FIRST_BREACH": True,
    "RATELIMIT_STORAGE_OPTIONS": {},
}
_EXEMPT_WHEN = "a function of the request: {}=lambda request: None if is_exempt() else '100/minute'"
_DEDUCT_WHEN = "{}=Route('*', '100/minute', settle=...), which returns the real cost, 0 for none"
_INSTEAD = {
    "RATELIMIT_STORAGE_URL": "RATELIMIT_STORAGE_URI",
    "RATELIMIT_STORAGE_OPTIONS": "a store object, RateLimiter(store=RedisStore(client))",
    "RATELIMIT_REQUEST_IDENTIFIER": "name= of a limit, or key=",
    "RATELIMIT_HEADER_RETRY_AFTER_VALUE": "'delta-seconds'; an HTTP date could tell no time that is exact",
    "RATELIMIT_IN_MEMORY_FALLBACK": "RATELIMIT_ON_ERROR = 'local', which enforces the same limits in this process",
    "RATELIMIT_FAIL_ON_FIRST_BREACH": "one limit with several rules, which are decided together",
    "RATELIMIT_ON_BREACH_CALLBACK": "deny=, of the RateLimiter or of a limit",
    "RATELIMIT_META": "a second rule with a longer window, such as '10/minute; 100/day'",
    "RATELIMIT_ON_META_BREACH_CALLBACK": "deny=, of the RateLimiter or of a limit",
    "RATELIMIT_DEFAULTS_EXEMPT_WHEN": _EXEMPT_WHEN.format("default"),
    "RATELIMIT_DEFAULTS_DEDUCT_WHEN": _DEDUCT_WHEN.format("default"),
    "RATELIMIT_APPLICATION_EXEMPT_WHEN": _EXEMPT_WHEN.format("application"),
    "RATELIMIT_APPLICATION_DEDUCT_WHEN": _DEDUCT_WHEN.format("application"),
    **dict.fromkeys(
        [f"RATELIMIT_HEADER_{name}" for name in ("LIMIT", "REMAINING", "RESET", "RETRY_AFTER")],
        "headers=Headers(...), which selects headers; their names cannot be changed",
    ),
}


class Settings(NamedTuple):
    """What the configuration of an application says."""

    default: Limit | Route
    application: Limit | Route
    is_enabled: bool
    strategy: str | None
    options: Options


def configured(config: Mapping[str, Any]) -> Settings:
    """Read the settings of an application."""
    given = {name: value for name, value in config.items() if name.startswith("RATELIMIT_")}
    options: Options = {}
    is_enabled = given.pop("RATELIMIT_ENABLED", True)
    strategy = given.pop("RATELIMIT_STRATEGY", None)
    if strategy is not None and strategy not in _STRATEGIES:
        raise InvalidRule(f"RATELIMIT_STRATEGY must be one of {', '.join(_STRATEGIES)}, not {show(strategy)}")
    if given.pop("RATELIMIT_SWALLOW_ERRORS", False):
        options["on_error"] = "open"
    if given.pop("RATELIMIT_IN_MEMORY_FALLBACK_ENABLED", False):
        options["on_error"] = "local"
    if not given.pop("RATELIMIT_HEADERS_ENABLED", True):
        options["headers"] = Headers.off()
    for name, option in _OPTIONS.items():
        if name in given:
            options[option] = given.pop(name)  # type: ignore[literal-required]
    default = _with_options(given, "RATELIMIT_DEFAULT", "RATELIMIT_DEFAULTS")
    application = _with_options(given, "RATELIMIT_APPLICATION", "RATELIMIT_APPLICATION")
    for name, value in given.items():
        if value is None or (name in _AS_HERE and value == _AS_HERE[name]):
            continue
        if name in _INSTEAD:
            raise InvalidRule(f"{name} cannot be {show(value)} here; use {_INSTEAD[name]}")
        meant = nearest(name, [*_READ, *_OPTIONS])
        hint = "see its documentation" if meant is None else f"did you mean {meant}?"
        raise InvalidRule(f"{name} is not a setting of this extension; {hint}")
    return Settings(default, application, is_enabled, strategy, options)


def _with_options(given: dict[str, Any], name: str, options: str) -> Limit | Route:
    """Return a limit, as a route if it has options of its own."""
    limit: Limit | Route = given.pop(name, None)
    names = {"per_method": f"{options}_PER_METHOD", "cost": f"{options}_COST"}
    own = {option: given.pop(setting) for option, setting in names.items() if given.get(setting) is not None}
    if not own:
        return limit
    if limit is None:
        (option, value), setting = next(iter(own.items())), names[next(iter(own))]
        argument = name.removeprefix("RATELIMIT_").lower()
        raise InvalidRule(f"{setting} needs {name}; or write {argument}=Route('*', '1/s', {option}={show(value)})")
    return replace(limit if isinstance(limit, Route) else Route("*", limit, name=""), **own)


def with_strategy(limit: Any, strategy: str | None) -> Any:
    """Apply a strategy to rates that name no algorithm."""
    if strategy is None:
        return limit
    if is_rules_function(limit):
        function = of_request("limit", limit, for_asyncio=False)
        # It may ask for the request or for its key.
        return functools.wraps(function)(lambda asked: with_strategy(function(asked), strategy))
    if isinstance(limit, str):
        parts = (part.strip() for part in limit.replace(",", ";").replace("|", ";").split(";"))
        return "; ".join(f"{strategy} {part}" if part[:1].isdigit() else part for part in parts)
    if isinstance(limit, Mapping):
        return {name: with_strategy(rule, strategy) for name, rule in limit.items()}
    if isinstance(limit, list | tuple):
        return [with_strategy(rule, strategy) for rule in limit]
    return limit
