"""Headers for decisions whose rules differ from request to request, as those of a policy do."""

from __future__ import annotations

from collections.abc import Sequence

from ratekeeper.algorithms import Rule
from ratekeeper.http.headers import Headers, HeaderWriter
from ratekeeper.stores.protocol import Demand

_MAX = 1_000  # sets of rules
_NO_RULES = HeaderWriter({}, Headers.off())


class HeaderWriters:
    """The writers for the sets of rules that were met lately."""

    def __init__(self, options: Headers) -> None:
        self._options = options
        self._writers: dict[tuple[int, ...], tuple[HeaderWriter, Sequence[Demand]]] = {}

    def of(self, demands: Sequence[Demand]) -> HeaderWriter:
        """Return the writer for a decision on these demands.

        It writes nothing about a request that the store was not asked about: a blocked one, or one without limits.
        """
        rules = tuple([id(demand.binding) for demand in demands if demand.binds])
        known = self._writers.get(rules)
        if known is not None:
            return known[0]
        by_name: dict[str, Rule] = {demand.binding.name: demand.binding.rule for demand in demands if demand.binds}
        writer = HeaderWriter(by_name, self._options) if by_name else _NO_RULES
        if len(self._writers) >= _MAX:
            self._writers.clear()
        self._writers[rules] = writer, demands  # which keeps the bindings, so that no other gets their ids
        return writer
