"""Reservations: hits that can be given back, or corrected once the real cost is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ratekeeper.decision import Decision
from ratekeeper.flows import Flow, run, run_async
from ratekeeper.queues import Queues
from ratekeeper.ruleset import Costs, Keys, LimiterRules, give_backs
from ratekeeper.stores.protocol import Demand, Layer, Outcome


class _Reservation:
    """What both reservations share: what each rule was charged, and the flows that undo it."""

    def __init__(  # noqa: PLR0917 - only limiters make reservations
        self,
        ruleset: LimiterRules,
        layer: Layer,
        queues: Queues,
        key: Keys,
        decision: Decision,
        demands: Sequence[Demand],
        outcome: Outcome | None,
    ) -> None:
        """`outcome` is the answers to the demands; None if no store was asked."""
        self.decision = decision
        """The decision on the hit."""
        self._ruleset = ruleset.of(demands)
        self._layer = layer
        self._queues = queues
        self._key = key
        self._counts = decision.allowed and outcome is not None
        self._held = [] if outcome is None else give_backs(demands, outcome)
        charged = {demand.binding.name for demand in self._held}
        self._not_charged = {demand.binding.name for demand in demands} - charged  # denied without denying the request

    def __bool__(self) -> bool:
        return self.decision.allowed

    def __repr__(self) -> str:
        held = {demand.binding.name: demand.cost for demand in self._held}
        return f"{type(self).__name__}({held}, {self.decision.advice!r})"

    def _give_back(self) -> Flow[None]:
        """Give back everything that is still held; a second call does nothing."""
        held, self._held = self._held, []
        self._counts = False
        yield from undo(self._layer, self._queues, held)

    def _correct(self, real_cost: Costs) -> Flow[None]:
        """For each rule, charge what the request cost more than was taken, or give back what it cost less.

        One correction charges a rule at most its limit: the real cost may come from a response that is wrong.
        """
        rules = self._ruleset.rules
        paid = {name: 0 for name in rules if name not in self._not_charged}
        of_space: Counter[tuple[str, object]] = Counter()
        for demand in self._held:
            of_space[demand.binding.name, demand.binding.space] += demand.cost
        for (name, _), cost in of_space.items():  # a rule may be charged in several spaces, in each the same
            paid[name] = max(paid[name], cost)
        real = paid | self._ruleset.costs("the real cost", real_cost)
        if not self._counts:
            return
        more = {name: min(real[name] - paid[name], rules[name].limit) for name in paid if real[name] > paid[name]}
        if more:
            charges = self._ruleset.demands("charge", self._key, dict.fromkeys(rules, 0) | more)
            outcome: Outcome = yield self._layer.execute(charges)
            self._held += give_backs(charges, outcome)
        less = []
        for (name, space), cost in of_space.items():
            excess = cost - real[name]
            for at in reversed(range(len(self._held))):  # the latest charge is given back first
                demand = self._held[at]
                if (demand.binding.name, demand.binding.space) == (name, space) and excess > 0:
                    part = min(excess, demand.cost)
                    excess -= part
                    less.append(demand._replace(cost=part))
                    self._held[at] = demand._replace(cost=demand.cost - part)
        self._held = [demand for demand in self._held if demand.cost]
        yield from undo(self._layer, self._queues, less)


def undo(layer: Layer, queues: Queues, charges: Sequence[Demand]) -> Flow[None]:
    """Give back charges, and wake who waits for them. `charges` are give-backs, with the receipts of the charges."""
    for degraded in (False, True):  # charges to the fallback are given back there
        part = [demand for demand in charges if demand.receipt is not None and demand.receipt.degraded is degraded]
        if part:
            yield layer.execute(part)
            queues.nudge(part)


class Reservation(_Reservation):
    """A hit that can be given back or corrected, as `Limiter.take` returns it. True when admitted."""

    def give_back(self) -> None:
        """Give back what was taken, as far as it still counts: not, for example, after its window has ended."""
        run(self._give_back())

    def correct(self, real_cost: Costs) -> None:
        """Charge or give back the difference to the real cost; a mapping corrects only the rules that it names.

        At most the limit of a rule is charged, whatever the real cost.
        """
        run(self._correct(real_cost))


class AsyncReservation(_Reservation):
    """A hit that can be given back or corrected, as `AsyncLimiter.take` returns it. True when admitted."""

    async def give_back(self) -> None:
        """Give back what was taken, as far as it still counts: not, for example, after its window has ended."""
        await run_async(self._give_back())

    async def correct(self, real_cost: Costs) -> None:
        """Charge or give back the difference to the real cost; a mapping corrects only the rules that it names.

        At most the limit of a rule is charged, whatever the real cost.
        """
        await run_async(self._correct(real_cost))
