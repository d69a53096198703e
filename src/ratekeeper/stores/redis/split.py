"""One request whose keys are in different slots of a cluster: never one unit over, all or nothing in the end.

All parts are peeked at first: a denial costs one round trip and takes nothing. Then hits are charged part by part,
in the same order for all callers. If another caller got there first at a later part, or it is not decided, what was
taken is given back. Until then, or until it expires if the give-back is interrupted, the earlier parts count more than
was admitted, never less. Operations that cannot be denied come last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ratekeeper.flows import Flow
from ratekeeper.stores.protocol import Demand, Outcome, admits, asks
from ratekeeper.stores.redis.redis_errors import Result, Torn
from ratekeeper.stores.redis.wire import slot_of

_Parts = Sequence[Sequence[int]]  # positions in the request's demands
_Demands = Sequence[Demand]


class Nodes(Protocol):
    """How one request asks the nodes of a cluster. Each method returns its result, or an awaitable of it."""

    def find(self) -> Any:
        """Make sure that it is known which node has which slot."""

    def ask(self, demands: _Demands) -> Any:
        """Return the outcome of a request whose keys are all on one node."""

    def ask_all(self, requests: Sequence[_Demands]) -> Any:
        """Return the result or error of each request; if they hit, leave time to give them back."""

    def give_back(self, requests: Sequence[_Demands]) -> Any:
        """Send these requests as far as time allows; their results are ignored."""

    def to_its_end(self, flow: Flow[Outcome]) -> Any:
        """Run a flow that must not stop halfway, even if nobody waits for it any more."""


def decide(demands: _Demands, nodes: Nodes) -> Flow[Outcome]:
    """Have a request decided by the nodes that have its keys."""
    yield nodes.find()
    parts = _parts_of(demands)
    try:
        if len(parts) == 1:
            outcome = yield nodes.ask(demands)
        else:
            outcome = yield nodes.to_its_end(_across(demands, parts, nodes))
    except Torn:  # the slot is being moved to another node
        outcome = yield nodes.to_its_end(_across(demands, [[at] for at in range(len(demands))], nodes))
    return outcome  # type: ignore[no-any-return]


def _parts_of(demands: _Demands) -> _Parts:
    """Return the positions of the demands whose keys one call can decide."""
    if len({demand.key for demand in demands}) == 1:  # nearly always
        return [range(len(demands))]
    parts: dict[int, list[int]] = {}
    for at, demand in enumerate(demands):
        parts.setdefault(slot_of(demand.key), []).append(at)
    return list(parts.values())


def _across(demands: _Demands, parts: _Parts, nodes: Nodes) -> Flow[Outcome]:
    """Decide a request part by part."""
    if all(demand.operation == "peek" for demand in demands) or not any(map(asks, demands)):
        return (yield from _at_once(demands, parts, nodes))
    peeks = [[_peek_for(demands[at]) for at in part] for part in parts]
    seen = _merged(parts, _checked((yield nodes.ask_all(peeks))))
    if not admits(demands, seen):
        return seen
    taken: list[_Demands] = []  # the give-back of each charge so far, separately: a slot may move meanwhile
    try:
        outcome = yield from _change(demands, parts, nodes, seen, taken)
    except GeneratorExit:
        raise
    except BaseException:  # including a signal that interrupts the caller
        if taken:
            yield nodes.give_back(taken)
        raise
    if taken and not admits(demands, outcome):
        yield nodes.give_back(taken)  # only once, even if interrupted: twice would give back too much
    return outcome


def _change(demands: _Demands, parts: _Parts, nodes: Nodes, seen: Outcome, taken: list[_Demands]) -> Flow[Outcome]:
    """Charge the hits part by part, then do the rest; stop with a denial if another caller got there first."""
    outcome = seen
    for part in parts:
        hits = [at for at in part if demands[at].operation == "hit"]
        if not hits:
            continue
        asked = [demands[at] for at in hits]
        (result,) = _checked((yield nodes.ask_all([asked])))
        if not admits(asked, result):
            return _with(seen, hits, result)  # the other answers stay as the peeks gave them
        outcome = _with(outcome, hits, result)
        for demand, receipt, answer in zip(asked, result.receipts, result.answers, strict=True):
            if answer[0]:
                taken.append([demand._replace(operation="give_back", receipt=receipt)])
    rest = [part for part in ([at for at in part if not asks(demands[at])] for part in parts) if part]
    if rest:
        done = yield from _at_once(demands, rest, nodes)
        outcome = _with(outcome, sorted(at for part in rest for at in part), done)
    return outcome


def _at_once(demands: _Demands, parts: _Parts, nodes: Nodes) -> Flow[Outcome]:
    """Do what no part can deny; the demands of torn parts, which were not executed, are sent again one by one."""
    results = yield nodes.ask_all([[demands[at] for at in part] for part in parts])
    done = [each for each in zip(parts, results, strict=True) if not isinstance(each[1], Torn)]
    torn = [[at] for part, result in zip(parts, results, strict=True) if isinstance(result, Torn) for at in part]
    if torn:
        done += zip(torn, (yield nodes.ask_all([[demands[at] for at in part] for part in torn])), strict=True)
    return _merged([part for part, _ in done], _checked([result for _, result in done]))


def _peek_for(demand: Demand) -> Demand:
    """Return the peek for a demand; for an operation that cannot be denied, at cost 1."""
    return demand._replace(operation="peek") if asks(demand) else demand._replace(operation="peek", cost=1)


def _checked(results: Sequence[Result]) -> Sequence[Outcome]:
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results  # type: ignore[return-value]


def _with(outcome: Outcome, positions: Sequence[int], part: Outcome) -> Outcome:
    """Return an outcome with other answers at some positions."""
    answers, times = list(outcome.answers), list(outcome.times_us)
    for at, answer, time in zip(positions, part.answers, part.times_us or [part.now_us] * len(positions), strict=True):
        answers[at], times[at] = answer, time
    return Outcome(max(times), answers, times_us=times)


def _merged(parts: _Parts, outcomes: Sequence[Outcome]) -> Outcome:
    by_position = {
        at: (answer, outcome.now_us)
        for part, outcome in zip(parts, outcomes, strict=True)
        for at, answer in zip(part, outcome.answers, strict=True)
    }
    in_order = [by_position[at] for at in sorted(by_position)]
    return Outcome(
        max(outcome.now_us for outcome in outcomes),
        [answer for answer, _ in in_order],
        steady_us=min(outcome.steady_us for outcome in outcomes),
        times_us=[time for _, time in in_order],
    )
