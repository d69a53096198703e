"""What a request does to the states of its keys, in every store that decides in Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ratekeeper.algorithms.rule import EMPTY
from ratekeeper.decision import RuleAnswer
from ratekeeper.stores.protocol import Demand, asks

ReadState = Callable[[Demand], Any]
"""Returns the state of a demand's key; None if the key is untouched."""
WriteState = Callable[[Demand, Any, Any, int], None]
"""Takes a demand, its key's current state, the next state (`EMPTY`: forget the key) and the time."""


def carry_out(demands: Sequence[Demand], now: int, read: ReadState, write: WriteState) -> list[RuleAnswer]:
    """Carry out the demands, all or none, and return their answers. Nobody else may write meanwhile."""
    if len(demands) == 1:
        return [_do(demands[0], now, False, read, write)]
    steps = []  # of the usual request: only hits that bind, by rules whose steps can be taken before all have admitted
    for demand in demands:
        binding, _, cost, operation, binds, _ = demand
        if operation != "hit" or not binds or binding.rule.changes_states:
            denied = any(_denies(each, now, read) for each in demands)
            break
        before = read(demand)
        step = binding.rule.decide(before, now, cost, True)
        if not step[1]:
            denied = True
            break
        steps.append((demand, before, step))
    else:
        for demand, before, step in steps:
            write(demand, before, step[0], now)
        return [step[1:] for _, _, step in steps]
    return [_do(demand, now, denied, read, write) for demand in demands]


def _denies(demand: Demand, now: int, read: ReadState) -> bool:
    """Return whether a demand denies the whole request."""
    return demand.binds and asks(demand) and not _peek(demand, now, demand.cost, read)[0]


def _do(demand: Demand, now: int, denied: bool, read: ReadState, write: WriteState) -> RuleAnswer:
    """Carry out one demand, unless its request is denied, and return its answer."""
    operation = demand.operation
    if operation == "peek" or (denied and operation == "hit"):
        return _peek(demand, now, demand.cost, read)
    if operation == "hit":
        before = read(demand)
        step = demand.binding.rule.decide(before, now, demand.cost, True)
        if step[1]:
            write(demand, before, step[0], now)
        return step[1:]
    if not denied:
        _change(demand, now, read, write)
    return _peek(demand, now, 1, read)


def _peek(demand: Demand, now: int, cost: int, read: ReadState) -> RuleAnswer:
    return demand.binding.rule.decide(read(demand), now, cost, False)[1:]


def _change(demand: Demand, now: int, read: ReadState, write: WriteState) -> None:
    rule, operation, cost = demand.binding.rule, demand.operation, demand.cost
    before = read(demand)
    if operation == "charge":
        state = rule.charge(before, now, cost)
    elif before is None:
        return
    elif operation == "reset":
        state = EMPTY
    elif operation == "refund":
        state = rule.refund(before, now, cost)
    elif demand.receipt is not None:
        state = rule.give_back(before, now, cost, demand.receipt.at_us, demand.receipt.ends_us)
    write(demand, before, state, now)
