"""What both limiters share: everything that does not wait."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ratekeeper import arguments, flows, queues, stores, waiting
from ratekeeper.algorithms.rule import Rule
from ratekeeper.clock import Clock, stopwatch
from ratekeeper.decision import NO_LIMIT, Decision
from ratekeeper.enforcement import Enforcement
from ratekeeper.fallback import Fallback, OnError, ReentrantCalls
from ratekeeper.leases import Leases
from ratekeeper.notices import Notices
from ratekeeper.observers import HitOrWait, Observer, observed, tell
from ratekeeper.rules import Rules
from ratekeeper.ruleset import Costs, Keys, LimiterRules, Ruleset, RulesSource, RulesVersion, Shadow, StoredBy
from ratekeeper.stores.protocol import Demand, Layer, Outcome, Store

if TYPE_CHECKING:
    from fractions import Fraction

Hook = Callable[[Keys, Decision], object]
_Own = TypeVar("_Own", bound="BaseLimiter")
_log = logging.getLogger("ratekeeper")
_in_use: set[weakref.ref[BaseLimiter]] = set()
_watchers: list[Callable[[BaseLimiter], object]] = []


def limiters_in_use() -> list[BaseLimiter]:
    """Return all limiters of this process."""
    return [limiter for known in _in_use.copy() if (limiter := known()) is not None]


def watch_limiters(watcher: Callable[[BaseLimiter], object]) -> None:
    """Call `watcher` with each limiter of this process, and with each that is made from now on."""
    _watchers.append(watcher)
    for limiter in limiters_in_use():
        watcher(limiter)


def _no_quick_hit(key: Keys, cost: Costs) -> None:
    """Make no decision: the store has no shortcut past the layers."""


class BaseLimiter:
    """A limiter without the operations, which wait for the store."""

    _for_asyncio: bool
    _run_flow: Callable[[flows.Flow[Any]], Any]

    def __init__(
        self,
        rules: Rules | RulesSource,
        store: str | Store = "memory://",
        *,
        clock: Clock | None = None,
        prefix: str = "ratekeeper",
        group: str | None = None,
        on_error: OnError = "local",
        deadline: float = 0.1,
        enabled: bool = True,
        shadow: Shadow = False,
        on_decision: Hook | None = None,
        local_share: float | Fraction = 1,
        lease: float | None = None,
        notices: Notices | None = None,
        stored_by: StoredBy = "name",
    ) -> None:
        arguments.check_options(
            clock=clock, prefix=prefix, group=group, on_error=on_error, deadline=deadline, on_decision=on_decision
        )
        arguments.check_switch("enabled", enabled)
        arguments.check_stored_by(stored_by)
        self._ruleset: LimiterRules
        if hasattr(rules, "ruleset"):
            self._ruleset = rules.ruleset(prefix)
        else:
            self._ruleset = Ruleset(rules, prefix, group, stored_by, shadow)
        bindings = self._ruleset.bindings
        share = arguments.check_share(local_share)
        lease = arguments.check_lease(lease, [binding.rule for binding in bindings])
        self._owns_store = isinstance(store, str)
        store = stores.store_of(store, for_asyncio=self._for_asyncio)
        self._store_layer = store.for_asyncio() if self._for_asyncio else store.for_threads()
        self._store = store
        self._enabled = enabled
        self._notices = notices or Notices()
        self._on_decision = on_decision
        self._prefix = prefix
        options: Any = {"on_error": on_error, "deadline": deadline, "clock": clock, "notices": self._notices}
        self._beside: Callable[..., Any] = partial(type(self), store=store, local_share=share, **options)
        fallback = partial(Fallback, self._store_layer, store, share=share, run=self._run_flow, **options)
        self._below = fallback() if store.may_be_away else ReentrantCalls(self._store_layer, fallback)
        self._leases: Leases | None = None
        if store.may_be_away and (lease is not None or self._ruleset.may_lease):
            self._leases = Leases(self._below, lease, deadline, clock or stopwatch, self._run_flow)
        self._layer: Layer = self._leases or self._below
        unbind = self._ruleset.enforce(Enforcement(store, self._below, self._leases, clock, share))
        try:
            self._queues = queues.queues_of(store)
            below: Layer = self._below if store.may_be_away else self._store_layer
            self._waiting = waiting.Waiting(self._ruleset, below, self._queues, clock, self._leases)
            self._tells = on_decision is not None or self._ruleset.may_shadow
            is_plain = enabled and not self._tells and self._leases is None and len(bindings) == 1
            self._quick_hit = (store.quick_hit(bindings[0]) if is_plain else None) or _no_quick_hit
            self._quick_wait = self._untold_hit = self._quick_hit
            self._observers: tuple[Observer, ...] = ()
            _in_use.add(weakref.ref(self, _in_use.discard))
        except BaseException:  # no limiter, so its rules are not in force
            unbind()
            raise
        for watcher in _watchers:
            watcher(self)

    @property
    def rules(self) -> dict[str, Rule]:
        """The rules, by name."""
        return self._ruleset.rules

    @property
    def version(self) -> RulesVersion | None:
        """What decides on requests now, by their attributes, if this is a limiter by policy."""
        return self._ruleset.version

    @property
    def shadow(self) -> frozenset[str]:
        """The names of the rules that are only tried out: they deny nothing."""
        return self._ruleset.shadow

    @property
    def store(self) -> Store:
        """The store, to share it with another limiter or to read its counters."""
        return self._store

    @property
    def enabled(self) -> bool:
        """Whether the rules are enforced."""
        return self._enabled

    @property
    def notices(self) -> Notices:
        """Counters of the decisions that did not follow the rules in the store, and why."""
        return self._notices

    @property
    def policy(self) -> str:
        """The name of the policy that the rules are from; empty if they are from no policy."""
        return self._ruleset.policy_name

    @property
    def timer(self) -> Clock:
        """The clock that times waits: the one that was passed if it is moved by hand, otherwise a monotonic one."""
        return self._waiting.timer

    def observe(self, observer: Observer) -> None:
        """Tell an observer of every hit and wait that ends from now on."""
        self._observers = observers = (*self._observers, observer)
        self._tells = True
        if self._untold_hit is not _no_quick_hit:
            binding = self._ruleset.bindings[0]
            self._quick_hit = observed(self._untold_hit, "hit", binding, observers)
            self._quick_wait = observed(self._untold_hit, "wait", binding, observers)

    def beside(self: _Own, rules: Rules, name: str) -> _Own:  # noqa: PYI019 - typing.Self is not in Python 3.10
        """Return a limiter with other rules on the same store, and usage of its own: `name` is added to the prefix."""
        return self._beside(rules, prefix=f"{self._prefix}:{name}")  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        rules = {name: rule.text for name, rule in self.rules.items()}
        return f"{type(self).__name__}({rules}, store={self.store})"

    def _tell(
        self, key: Keys, demands: list[Demand], decision: Decision, began_ns: int, operation: HitOrWait = "hit"
    ) -> Decision:
        """Note what was denied in the shadow, and tell the hook and the observers; log what the hook raises."""
        for rule in decision.shadow_denied:
            self._notices.shadow_denied(rule)
        if not demands and decision.allowed and not decision.shadow_denied and self._enabled:
            self._notices.no_rule_applies(self.policy)
        if self._on_decision is not None:
            try:
                self._on_decision(key, decision)
            except Exception:  # noqa: BLE001
                _log.exception("on_decision raised an exception; the decision is unaffected")
        if self._observers:
            tell(self._observers, operation, demands, decision if self._enabled else NO_LIMIT, began_ns)
        return decision

    def _note_unlimited(self) -> None:
        self._notices.note("unlimited", "enabled=False admits everything; set enabled=True to enforce the rules")

    def _switched_off(self, demands: list[Demand]) -> Decision:
        self._note_unlimited()
        return self._ruleset.switched_off(demands)

    def _reset_all(self) -> flows.Flow[None]:
        if not self._enabled:
            self._note_unlimited()
            return
        yield self._layer.forget(self._ruleset.bindings)
        self._queues.nudge_all({binding.space for binding in self._ruleset.bindings})

    def _taken(self, key: Keys, demands: list[Demand], outcome: Outcome | None, began_ns: int) -> Decision:
        """Make the decision on a hit (no outcome: the store was not asked), and tell who wants to know."""
        decision = self._switched_off(demands) if outcome is None else self._ruleset.decision(demands, outcome)
        return self._tell(key, demands, decision, began_ns)
