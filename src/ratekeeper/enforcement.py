"""Where the rules of a limiter are in force: in its store, and in what decides while the store cannot."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from ratekeeper.clock import Clock
from ratekeeper.fallback import Fallback, OnError, ReentrantCalls
from ratekeeper.leases import Leases
from ratekeeper.rules import share_of
from ratekeeper.stores.protocol import Binding, Store


class Enforcement:
    """Puts rules in force for one limiter, and ends that."""

    def __init__(
        self,
        store: Store,
        fallback: Fallback | ReentrantCalls,
        leases: Leases | None,
        clock: Clock | None,
        share: Fraction,
    ) -> None:
        self._store = store
        self._fallback = fallback
        self._leases = leases
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

    def set_options(self, on_error: OnError, share: Fraction, lease: float | None) -> None:
        """Say how decisions are made without the store, and for how long usage may be taken ahead."""
        self._share = share
        self._fallback.set_options(on_error, share)
        if self._leases is not None:
            self._leases.set_length(lease)
