"""What the limits of single endpoints have from their application: its options, and one store for all of them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ratekeeper.http import AsyncGate, Options, by_address
from ratekeeper.http.asgi_types import Scope
from ratekeeper.http.client_keys import of_request, within
from ratekeeper.http.routes import Limit, is_rules_function
from ratekeeper.integrations.views import Declared

IN_SCOPE = "ratekeeper.application"
"""The key in the scope of a request for what its application has set."""
_OF_LIMITERS = frozenset({"policies", "store", "clock", "prefix", "on_error", "deadline", "enabled", "notices"})


class Application:
    """The options of one application."""

    def __init__(self, options: Options, gate: AsyncGate, default: Limit = None) -> None:
        """`gate` is that of the application; `default` applies where a function of the request returns no rules."""
        self.is_enabled = options.get("enabled", True)
        self._options: Options = {**options}
        self._options.pop("policy", None)  # which is for all requests
        if default is not None and not is_rules_function(default):
            self._options["fallback"] = default  # type: ignore[typeddict-item]
        self._gate = gate

    def gate(self, declared: Declared, scope_of: Callable[[Any], str], own: Options) -> AsyncGate:
        """Return the gate of a limit, with options of its own.

        Unless it has a name, or a policy that has keys, its usage is that of the scope of each request.
        """
        options: Options = {**self._options, **own}
        route = declared.route
        if declared.name is not None:
            options["prefix"] = f"{options.get('prefix', 'ratekeeper')}:{declared.name}"
        elif not declared.is_by_policy:
            key = of_request("key", route.key or options.get("key", by_address()))
            route = replace(route, key=within(scope_of, key))
        options["routes"] = [replace(route, name="")]
        if "store" not in own and self._shares_store(own):
            options["store"] = self._gate.maker.store
        sibling = None if _OF_LIMITERS & own.keys() else self._gate
        return AsyncGate(**options, shares_options=True, sibling=sibling)

    def _shares_store(self, own: Options) -> bool:
        """Tell whether a limit counts in the application's store: one with a clock of its own cannot, in memory."""
        return "clock" not in own or self._options.get("store", "memory://") != "memory://"


_without_middleware: weakref.WeakKeyDictionary[Any, Application] = weakref.WeakKeyDictionary()


def application_of(scope: Scope, otherwise: object) -> Application:
    """Return the options of the application that a request has come to; it may have no middleware that sets them.

    A request without an application has options in common with those that have the same `otherwise`.
    """
    known: Application | None = scope.get(IN_SCOPE)
    if known is None:
        app = scope.get("app", otherwise)
        known = _without_middleware.get(app)
        if known is None:
            known = _without_middleware[app] = Application({}, AsyncGate())
    return known
