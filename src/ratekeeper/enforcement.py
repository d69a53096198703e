"""Where the rules of a limiter are in force: in its store, and in what decides while the store cannot."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from ratekeeper.clock import Clock
from ratekeeper.fallback import Fallback, OnError, ReentrantCalls
from ratekeeper.rules import share_of
from ratekeeper.stores.protocol import Binding, Store


class Enforcement:
    """Puts rules in force for one limiter, and ends that."""

    def __init__(self, store: Store, fallback: Fallback | ReentrantCalls, clock: Clock | None, share: Fraction) -> None:
        self._store = store
        self._fallback = fallback
        self._clock = clock
        self._share = share

    def bind(self, binding: Binding) -> None:
        """Put a rule in force; raise InvalidRule if the store or the fallback cannot enforce it."""
        share_of(binding.rule, self._share)
        self._store.bind(binding, self._clock)

    def unbind(self, bindings: Sequence[Binding]) -> None:
        """End rules that may be in force. Garbage collection may call this at any moment."""
        self._store.unbind(bindings)
        self._fallback.release(bindings)

    def set_on_error(self, on_error: OnError) -> None:
        """Say what decisions are while the store cannot answer."""
        self._fallback.set_on_error(on_error)
