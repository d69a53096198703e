"""What goes to the script and what comes back: keys, arguments and answers."""

from __future__ import annotations

import binascii
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores.names import head_of, identity_of, name_of
from ratekeeper.stores.protocol import Binding, Demand, Key, Outcome, outcome_at

MAX_COST = 1 << 43  # more than any limit and any usage: a larger cost has the same answer
_ANSWER = 5  # integers
SLOTS = 16_384  # of a cluster


Result = Outcome | StoreUnavailable


Request = Sequence[Demand]


class Wire(NamedTuple):
    """A binding as the script takes it."""

    head: bytes  # of its keys, up to and including the brace that opens the hash tag
    rule: bytes  # the values that describe the rule


def wire_of(binding: Binding) -> Wire:
    """Work out what stays the same for all requests on a rule."""
    rule = b"".join((_text(binding.rule.script), *map(_number, binding.rule.numbers)))
    return Wire(head_of(binding), rule)


def key_name(wire: Wire, key: Key) -> bytes:
    """Name a key in Redis. All rules of one identity share a hash tag; no two identities share a name."""
    return name_of(wire.head, key)


def slot_of(key: Key) -> int:
    """Return the slot of a cluster that all keys of an identity are in."""
    return binascii.crc_hqx(identity_of(key), 0) % SLOTS


def encode(now_us: int | None, requests: Sequence[Request], wires: dict[int, Wire]) -> tuple[list[bytes], bytes]:
    """Return the script's keys and its argument. Requests in a row that are alike become one run."""
    if now_us is None and len(requests) == 1 and len(requests[0]) == 1:
        binding, key, cost, operation, _, _ = requests[0][0]
        if operation == "hit":  # as most calls of a lone caller are
            wire = wires[id(binding)]
            return [key_name(wire, key)], wire.rule + _number(min(cost, MAX_COST))
    names: list[bytes] = []
    table: dict[int, int] = {}  # the rules, by the ids of their bindings, and their numbers
    parts: list[bytes] = []
    last: Hashable = None  # what the requests of the last run have in common
    last_key: Key | None = None  # of a run with one demand each
    count = times = at = 0  # how many requests the last run has, how often each comes, and where these numbers stand
    for demands in requests:
        kind: Hashable
        if len(demands) == 1:  # nearly always
            binding, key, cost, operation, binds, receipt = demands[0]
            kind = operation, id(binding), cost, binds, receipt
            if kind == last and type(key) is str is type(last_key) and key == last_key and count == 1:
                times += 1
                continue
            last_key = key
            names.append(key_name(wires[id(binding)], key))
        else:
            kind = tuple([(each.operation, id(each.binding), each.cost, each.binds, each.receipt) for each in demands])
            names += [key_name(wires[id(demand.binding)], demand.key) for demand in demands]
        if kind == last and times == 1:
            count += 1
            continue
        if count:
            parts[at], parts[at + 1] = _number(count), _number(times)
        last, count, times, at = kind, 1, 1, len(parts)
        parts += _ONE, _ONE, _number(len(demands))
        for binding, _, cost, operation, binds, receipt in demands:
            number = table.setdefault(id(binding), len(table) + 1)
            parts += _text(operation), _TRUE if binds else _FALSE, _number(number), _number(min(cost, MAX_COST))
            if operation == "give_back" and receipt is not None:
                parts += _number(receipt.at_us), _number(receipt.ends_us)
    parts[at], parts[at + 1] = _number(count), _number(times)
    time = _FALSE if now_us is None else _number(now_us)
    rules = [wires[binding].rule for binding in table]
    length = _length(2 + _RULE * len(rules) + len(parts))
    return names, b"".join((length, time, _number(len(rules)), *rules, *parts))


# MessagePack, as much of it as is needed: it is one argument instead of a dozen, and Lua reads it at once.

_RULE = 5  # values that describe a rule
_FALSE, _TRUE = b"\xc2", b"\xc3"
_ONE = b"\x01"
_SMALL = [bytes((value,)) for value in range(128)]
_WIDTHS = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}


def _number(value: int) -> bytes:
    return _SMALL[value] if 0 <= value < 128 else b"\xcf" + value.to_bytes(8, "big")


def _length(values: int) -> bytes:
    return b"\xdd" + values.to_bytes(4, "big")


def _text(value: str) -> bytes:
    return bytes((0xA0 | len(value),)) + value.encode()


def numbers_in(value: bytes) -> tuple[int, ...]:
    """Return the numbers of a state, as the script has stored them."""
    numbers = []
    at = 1  # behind the format
    while at < len(value):
        width = _WIDTHS.get(value[at])
        if width is None:
            numbers.append(value[at])
            at += 1
        else:
            numbers.append(int.from_bytes(value[at + 1 : at + 1 + width], "big"))
            at += 1 + width
    return tuple(numbers)


def decode(reply: Sequence[int], requests: Sequence[Request]) -> list[Outcome]:
    """Return the outcome of each request."""
    if len(reply) == 2 + _ANSWER and len(requests) == 1:  # one demand, as most calls of a lone caller have
        now, steady, allowed, remaining, retry, reset_after, delay = reply
        answer = (allowed == 1, remaining, None if retry < 0 else retry, reset_after, delay)
        return [outcome_at(now, [answer], steady)]
    now = reply[0]
    if len(reply) == 1 + (1 + _ANSWER) * len(requests):  # one demand each, nearly always
        rest = iter(reply[1:])
        return [
            outcome_at(now, [(allowed == 1, remaining, None if retry < 0 else retry, reset_after, delay)], steady)
            for steady, allowed, remaining, retry, reset_after, delay in zip(*[rest] * (1 + _ANSWER), strict=True)
        ]
    outcomes = []
    at = 1
    for demands in requests:
        steady = reply[at]
        at += 1
        answers = []
        for _ in demands:
            allowed, remaining, retry_after, reset_after, delay = reply[at : at + _ANSWER]
            answers.append((allowed == 1, remaining, None if retry_after < 0 else retry_after, reset_after, delay))
            at += _ANSWER
        outcomes.append(outcome_at(now, answers, steady))
    return outcomes
