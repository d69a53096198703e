"""What goes to the script and what comes back: keys, arguments and answers."""

from __future__ import annotations

import binascii
import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from ratekeeper.decision import Answer
from ratekeeper.stores.port import Binding, Charge, Demand, Key, Operation, Outcome

MAX_COST = 1 << 43  # more than any limit and any usage: a larger cost has the same answer
_LONG = 96  # bytes of an identity beyond which it is stored hashed
_SHORT_NAMES = {
    "fixed-window": "fw",
    "sliding-window-log": "sl",
    "sliding-window-counter": "sc",
    "token-bucket": "tb",
    "leaky-bucket": "lb",
}
_SPECIAL = bytes((*b"%{}", *range(0x20), 0x7F))  # what would end the hash tag, or is hard to read
_ANSWER = 5  # integers
_SLOTS = 16_384  # of a cluster


class Request(NamedTuple):
    """One request as a store takes it."""

    operation: Operation
    demands: Sequence[Demand]
    charge: Charge | None = None


class Wire(NamedTuple):
    """A binding as the script takes it."""

    head: bytes  # of its keys, up to and including the brace that opens the hash tag
    rule: tuple[bytes, ...]  # the arguments that describe the rule


def wire_of(binding: Binding) -> Wire:
    """Work out what stays the same for all requests on a rule."""
    prefix, algorithm, name = binding.space
    parts = (prefix, _SHORT_NAMES[algorithm], name)
    head = b":".join(_escape(part.encode("utf-8", "surrogatepass"), _SPECIAL + b":") for part in parts)
    return Wire(head + b":{", (binding.rule.script.encode(), *(b"%d" % number for number in binding.rule.numbers)))


def key_name(wire: Wire, key: Key) -> bytes:
    """Name a key in Redis. All rules of one identity share a hash tag; no two identities share a name."""
    return wire.head + _identity(key) + b"}"


def slot_of(key: Key) -> int:
    """Return the slot of a cluster that all keys of an identity are in."""
    return binascii.crc_hqx(_identity(key), 0) % _SLOTS


def _identity(key: Key) -> bytes:
    # What is no str begins with a % and a letter, which an escaped str never does.
    if isinstance(key, tuple):
        parts = [_one(part) for part in key]
        identity = b"%t" + b"".join(b"%d:%s" % (len(part), part) for part in parts)
    else:
        identity = _one(key)
    return (
        identity if len(identity) <= _LONG else b"%h" + hashlib.blake2b(identity, digest_size=16).hexdigest().encode()
    )


def _one(part: str | bytes | int) -> bytes:
    if isinstance(part, str):
        return _escape(part.encode("utf-8", "surrogatepass"), _SPECIAL)
    if isinstance(part, bytes):
        return b"%b" + _escape(part, _SPECIAL)
    return b"%i" + b"%d" % part


def _escape(text: bytes, special: bytes) -> bytes:
    if len(text.translate(None, special)) == len(text):  # nearly always
        return text
    return b"".join(b"%%%02X" % byte if byte in special else bytes((byte,)) for byte in text)


def encode(now_us: int | None, requests: Sequence[Request], wires: dict[int, Wire]) -> tuple[list[bytes], list[bytes]]:
    """Return the script's keys and arguments. Requests in a row that are alike become one run."""
    names: list[bytes] = []
    rules: dict[int, int] = {}  # by the id of the binding: its number
    table: list[bytes] = []
    runs: list[Any] = []
    last: Request | None = None  # the last request, if the next one may join its run
    count_at = 0  # where the number of requests of that run stands
    for request in requests:
        operation, demands, charge = request
        if last is not None and _alike(request, last):
            runs[count_at] += 1
        else:
            count_at = len(runs) + 1
            runs += operation.encode(), 1, len(demands)
            for binding, _, cost in demands:
                number = rules.get(id(binding))
                if number is None:
                    number = rules[id(binding)] = len(rules) + 1
                    table += wires[id(binding)].rule
                runs += number, min(cost, MAX_COST)
            if charge is not None:
                for taken_us, ends_us in zip(charge.at_us, charge.ends_us, strict=True):
                    runs += taken_us, ends_us
        last = request if charge is None else None
        for binding, key, _ in demands:
            names.append(key_name(wires[id(binding)], key))
    # All bytes: hiredis 3.5 ends the process when a signal handler raises while it turns an int into text.
    counted = [part if type(part) is bytes else b"%d" % part for part in runs]
    return names, [b"" if now_us is None else b"%d" % now_us, b"%d" % len(rules), *table, *counted]


def _alike(one: Request, other: Request) -> bool:
    if one.operation != other.operation or len(one.demands) != len(other.demands) or one.charge is not None:
        return False
    return all(
        mine.binding is theirs.binding and mine.cost == theirs.cost
        for mine, theirs in zip(one.demands, other.demands, strict=True)
    )


def decode(reply: Sequence[int], requests: Sequence[Request]) -> list[Outcome]:
    """Return the outcome of each request."""
    now = reply[0]
    at = 1
    outcomes = []
    for request in requests:
        steady = reply[at]
        at += 1
        answers: list[Answer] = []
        for _ in request.demands:
            allowed, remaining, retry_after, reset_after, delay = reply[at : at + _ANSWER]
            answers.append((allowed == 1, remaining, None if retry_after < 0 else retry_after, reset_after, delay))
            at += _ANSWER
        outcomes.append(Outcome(now, answers, False, steady))
    return outcomes
