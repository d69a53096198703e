"""The response headers that report a decision.

>>> from ratekeeper import FixedWindow, Limiter
>>> from ratekeeper.testing import ManualClock
>>> limiter = Limiter({"user": FixedWindow(100, 60)}, clock=ManualClock(1_700_000_023))
>>> writer = HeaderWriter(limiter.rules, Headers(legacy=False))
>>> dict(writer.fields(limiter.hit("ada", 58)))
{'RateLimit-Policy': '"user";q=100;w=60', 'RateLimit': '"user";r=42;t=17'}
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Literal, get_args

from ratekeeper.algorithms import Rule
from ratekeeper.clock import wall_clock
from ratekeeper.decision import Decision
from ratekeeper.errors import InvalidRule
from ratekeeper.http import structured
from ratekeeper.rates import show

Draft = Literal[10, 7, 6]
Fields = list[tuple[str, str]]
EncodedFields = list[tuple[bytes, bytes]]
NAMES = (
    *("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "RateLimit-Policy", "RateLimit"),
    *("RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset", "Retry-After"),
)
"""Every header that may be written."""


_MAX_PREPARED = 4_096  # characters of a RateLimit-Policy; callers of a service may make up many long ones


@dataclass(frozen=True)
class Headers:
    """Which headers are written. `Headers.off()` writes none."""

    legacy: bool = True
    """`X-RateLimit-Limit`, `-Remaining` and `-Reset` (seconds since the epoch), of the deciding rule."""
    draft: Draft | None = 10
    """The version of draft-ietf-httpapi-ratelimit-headers: 10 (8, 9 and 11 use the same fields), 7, 6 or None."""
    retry_after: bool = True
    """`Retry-After` on denials, unless the request can never be admitted."""
    units: Mapping[str, str] = field(default_factory=dict)
    """The quota unit of a rule, by its name, such as "content-bytes"; by default it is requests."""
    partition_key: Callable[[Any], bytes] | None = None
    """Computes `pk` from a key; `ratekeeper.http.digest` does not reveal the key."""

    def __post_init__(self) -> None:
        if self.draft is not None and self.draft not in get_args(Draft):
            raise InvalidRule(f"draft must be 10, 7, 6 or None, not {show(self.draft)}")
        if not isinstance(self.units, Mapping) or not all(isinstance(unit, str) for unit in self.units.values()):
            raise TypeError(f"units must be a mapping of rule names to units, not {show(self.units)}")
        if self.partition_key is not None and not callable(self.partition_key):
            raise TypeError(f"partition_key must be a callable or None, not {show(self.partition_key)}")

    @classmethod
    def off(cls) -> Headers:
        """Return options that write no headers."""
        return cls(legacy=False, draft=None, retry_after=False)


class HeaderWriter:
    """Writes the headers for one set of rules; constant parts are prepared once."""

    def __init__(self, rules: Mapping[str, Rule], options: Headers) -> None:
        self._options = options
        self.reports_times = options.legacy or options.draft is not None
        """Whether the headers of an admitted request report a time."""
        self._items = {name: structured.string(name) for name in rules}
        self._limits = {name: str(rule.limit) for name, rule in rules.items()}
        self._quotas = {name: _quota(rule, options.units.get(name)) for name, rule in rules.items()}
        self._policy = self._policies(None)
        # The default headers of admitted requests are written directly as bytes, from the limit and the item of a rule.
        is_common = options.legacy and options.draft == 10 and options.partition_key is None
        is_common = is_common and len(self._policy) <= _MAX_PREPARED
        self._common = (
            {name: (self._limits[name].encode(), self._items[name].encode()) for name in rules} if is_common else None
        )
        self._encoded_policy = (b"ratelimit-policy", self._policy.encode() if is_common else b"")

    def fields(
        self, decision: Decision, key: Any = None, now: float | None = None, after: Decision | None = None
    ) -> Fields:
        """Return the headers, as names and values. `now` is the time in seconds since the epoch.

        `after` is a peek after an admitted request that has left nothing: it tells when there is more.
        """
        if decision.limit is None:  # nothing limits the request
            return []
        options = self._options
        if after is not None:
            decision = _until_more(decision, after)
        wait = _wait(decision)
        fields: Fields = []
        if options.legacy:
            ends = (wall_clock() / 1e9 if now is None else now) + (decision.reset_after if wait is None else wait)
            fields = [
                ("X-RateLimit-Limit", self._limits[decision.rule]),
                ("X-RateLimit-Remaining", str(decision.remaining)),
                ("X-RateLimit-Reset", str(ceil(ends))),
            ]
        if options.draft == 10:
            policy = self._policy if options.partition_key is None else self._policies(key)
            fields += [("RateLimit-Policy", policy), ("RateLimit", self._standing(decision, wait, key))]
        elif options.draft is not None:
            fields += self._older(decision, wait)
        if options.retry_after and not decision.allowed and wait is not None:
            fields.append(("Retry-After", str(ceil(wait))))
        return fields

    def encoded(
        self, decision: Decision, key: Any = None, now: float | None = None, after: Decision | None = None
    ) -> EncodedFields:
        """Return the headers for ASGI: bytes, with the names in lower case."""
        if self._common is None or not decision.allowed or decision.limit is None or after is not None:
            return encode(self.fields(decision, key, now, after))
        limit, item = self._common[decision.rule]
        remaining, reset_after, layers = decision.remaining, decision.reset_after, decision.layers
        if layers:
            reset_after = layers[decision.rule].reset_after
            standing = b", ".join(
                [
                    b"%b;r=%d;t=%d" % (self._common[name][1], layer.remaining, ceil(layer.reset_after))
                    for name, layer in layers.items()
                ]
            )
        else:
            standing = b"%b;r=%d;t=%d" % (item, remaining, ceil(reset_after))
        return [
            (b"x-ratelimit-limit", limit),
            (b"x-ratelimit-remaining", b"%d" % remaining),
            (b"x-ratelimit-reset", b"%d" % ceil((wall_clock() / 1e9 if now is None else now) + reset_after)),
            self._encoded_policy,
            (b"ratelimit", standing),
        ]

    def _standing(self, decision: Decision, wait: float | None, key: Any) -> str:
        if not decision.layers and self._options.partition_key is None:  # nearly always
            time_left = "" if wait is None else f";t={ceil(wait)}"
            return f"{self._items[decision.rule]};r={decision.remaining}{time_left}"
        items = []
        for name, layer in (decision.layers or {decision.rule: decision}).items():
            # In a denial, the time of a rule that was not exceeded does not tell when to retry.
            wait = None if layer.allowed and not decision.allowed else _wait(layer)
            time_left = "" if wait is None else f";t={ceil(wait)}"
            items.append(f"{self._items[name]};r={layer.remaining}{time_left}{self._partition(name, key)}")
        return ", ".join(items)

    def _policies(self, key: Any) -> str:
        if self._options.draft == 10:
            items = [f"{self._items[name]};{quota}{self._partition(name, key)}" for name, quota in self._quotas.items()]
        else:
            items = [quota.removeprefix("q=") for quota in self._quotas.values()]
        return ", ".join(items)

    def _partition(self, name: str, key: Any) -> str:
        if self._options.partition_key is None or key is None:
            return ""
        own = key[name] if isinstance(key, Mapping) else key
        return f";pk={structured.byte_sequence(self._options.partition_key(own))}"

    def _older(self, decision: Decision, wait: float | None) -> Fields:
        limit = self._limits[decision.rule]
        values = [("limit", limit), ("remaining", str(decision.remaining))]
        if wait is not None:
            values.append(("reset", str(ceil(wait))))
        if self._options.draft == 7:
            standing = ", ".join(f"{name}={value}" for name, value in values)
            return [("RateLimit-Policy", self._policy), ("RateLimit", standing)]
        return [
            *((f"RateLimit-{name.capitalize()}", value) for name, value in values),
            ("RateLimit-Policy", self._policy),
        ]


def encode(fields: Fields) -> EncodedFields:
    """Encode headers for ASGI."""
    return [(name.lower().encode("latin-1"), value.encode("latin-1", "replace")) for name, value in fields]


def _quota(rule: Rule, unit: str | None) -> str:
    window = max(1, ceil(rule.window_us / 1_000_000))  # whole seconds, rounded up
    return f"q={rule.limit}{'' if unit is None else f';qu={structured.string(unit)}'};w={window}"


def _until_more(decision: Decision, after: Decision) -> Decision:
    """Let the rules that have nothing left be reset when they admit something again; the last of these binds."""
    if not decision.layers:
        return decision._replace(reset_after=after.layers.get(decision.rule, after).retry_after)
    layers = {
        name: layer if layer.remaining else layer._replace(reset_after=after.layers[name].retry_after)
        for name, layer in decision.layers.items()
    }
    used_up = [name for name, layer in layers.items() if not layer.remaining]
    return decision._replace(rule=max(used_up, key=lambda name: layers[name].reset_after), layers=layers)


def _wait(decision: Decision) -> float | None:
    """Return the retry time of a denial (None: never), otherwise the time until the key is back to full capacity."""
    if decision.allowed:
        own = decision.layers.get(decision.rule) if decision.layers else None
        return (own or decision).reset_after
    return None if decision.retry_after == math.inf else decision.retry_after
