"""What is sent to the script and what comes back: keys, arguments and answers."""

from __future__ import annotations

import binascii
from collections.abc import Collection, Hashable, Sequence
from typing import NamedTuple, get_args

from ratekeeper.clock import Clock, no_time
from ratekeeper.errors import InvalidRule
from ratekeeper.rates import show
from ratekeeper.stores.names import encoded, head_of, name_of
from ratekeeper.stores.protocol import Binding, Demand, Key, Operation, Outcome
from ratekeeper.stores.redis import script
from ratekeeper.stores.redis.redis_errors import no_decision

MAX_COST = 1 << 43  # above any limit and usage; a larger cost gets the same answer
_ANSWER = 5  # integers
SLOTS = 16_384  # in a cluster


_new = tuple.__new__


class EncodedRule(NamedTuple):
    """A binding, encoded for the script."""

    head: bytes  # of its keys, up to and including the brace that opens the hash tag
    values: bytes  # that describe the rule


def encode_rule(binding: Binding) -> EncodedRule:
    """Encode what is the same in all requests on a rule."""
    values = b"".join((_text(binding.rule.script), *map(_number, binding.rule.numbers)))
    return EncodedRule(head_of(binding), values)


def slot_of(key: Key) -> int:
    """Return the cluster slot of a key, which is the same for all rules: the key is the hash tag of its names."""
    return binascii.crc_hqx(encoded(key), 0) % SLOTS


def slot_of_name(name: bytes) -> int:
    """Return the cluster slot of a key's name in Redis."""
    return binascii.crc_hqx(name[name.index(b"{") + 1 : name.index(b"}")], 0) % SLOTS


def pattern_of(heads: Collection[bytes]) -> bytes:
    """Return a pattern of all names that begin with one of these heads; it may match others, too."""
    low, high = min(heads), max(heads)
    alike = next((at for at, (one, other) in enumerate(zip(low, high, strict=False)) if one != other), len(low))
    return b"".join(b"\\%c" % byte if byte in b"*?[]\\" else b"%c" % byte for byte in low[:alike]) + b"*"


def encode(
    now_us: int | None, requests: Sequence[Sequence[Demand]], rules: dict[int, EncodedRule]
) -> tuple[list[bytes], bytes]:
    """Return the script's keys and its argument. Consecutive equal requests become one run."""
    if now_us is None and len(requests) == 1 and len(requests[0]) == 1:
        binding, key, cost, operation, _, _ = requests[0][0]
        if operation == "hit":  # the usual call of a lone caller
            rule = rules[id(binding)]
            argument = rule.values + _number(min(cost, MAX_COST))
            return [name_of(rule.head, key)], argument
    return _encode_runs(now_us, requests, rules)


def _encode_runs(
    now_us: int | None, requests: Sequence[Sequence[Demand]], rules: dict[int, EncodedRule]
) -> tuple[list[bytes], bytes]:
    names: list[bytes] = []
    table: dict[int, int] = {}  # the rules' numbers, by the ids of their bindings
    parts: list[bytes] = []
    last: Hashable = None  # what the requests of the last run have in common
    last_key: Key | None = None  # if its requests have one demand each
    count = times = at = 0  # requests in the last run, repeats of each, and where these two go
    for demands in requests:
        kind: Hashable
        if len(demands) == 1:  # nearly always
            binding, key, cost, operation, binds, receipt = demands[0]
            kind = operation, id(binding), cost, binds, receipt
            if kind == last and type(key) is str is type(last_key) and key == last_key and count == 1:
                times += 1
                continue
            last_key = key
            names.append(name_of(rules[id(binding)].head, key))
        else:
            kinds: list[Hashable] = []
            for binding, key, cost, operation, binds, receipt in demands:
                kinds += operation, id(binding), cost, binds, receipt
                names.append(name_of(rules[id(binding)].head, key))
            kind = tuple(kinds)
        if kind == last and times == 1:
            count += 1
            continue
        if count:
            parts[at], parts[at + 1] = _number(count), _number(times)
        last, count, times, at = kind, 1, 1, len(parts)
        parts += _encode_run(demands, table)
    parts[at], parts[at + 1] = _number(count), _number(times)
    time = _FALSE if now_us is None else _number(now_us)
    length = b"\xdd" + (2 + _RULE * len(table) + len(parts)).to_bytes(4, "big")
    values = [rules[binding_id].values for binding_id in table]
    return names, b"".join((length, time, _number(len(table)), *values, *parts))


def _encode_run(demands: Sequence[Demand], table: dict[int, int]) -> list[bytes]:
    """Return what the requests of a run have in common; the first two entries are for their counts."""
    parts = [_ONE, _ONE, _number(len(demands))]
    for binding, _, cost, operation, binds, receipt in demands:
        parts += (
            _OPERATIONS[operation],
            _TRUE if binds else _FALSE,
            _number(table.setdefault(id(binding), len(table) + 1)),
            _number(min(cost, MAX_COST)),
        )
        if operation == "give_back" and receipt is not None:
            parts += _number(receipt.at_us), _number(receipt.ends_us)
    return parts


# The part of MessagePack that is needed: one argument instead of a dozen, and Lua reads it in one call.

_RULE = 5  # values that describe a rule
_FALSE, _TRUE = b"\xc2", b"\xc3"
_ONE = b"\x01"
_WIDTHS = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
_LARGEST_BYTE = 0x7F  # of a number without a width
_EXACT = 1 << 53
_FORMAT = b"\xff"


class _Numbers(dict[int, bytes]):
    """Encoded numbers. Small ones, which are nearly all, are precomputed; a lookup is faster than any call."""

    def __missing__(self, value: int) -> bytes:
        return b"\xcf" + value.to_bytes(8, "big")


_number = _Numbers({value: bytes((value,)) for value in range(128)}).__getitem__


def _text(value: str) -> bytes:
    return bytes((0xA0 | len(value),)) + value.encode()


NOTHING = b"\xdd\x00\x00\x00\x02" + _FALSE + _number(0)  # no rules and no requests: the script tells the time
_OPERATIONS = {operation: _text(operation) for operation in get_args(Operation)}


def numbers_in(value: bytes) -> tuple[int, ...]:
    """Return the numbers of a state that the script has stored; raise ValueError if it cannot have stored this."""
    if value[:1] != _FORMAT:
        raise ValueError("not ours")
    numbers = []
    at = 1
    while at < len(value):
        width = _WIDTHS.get(value[at], 0)
        at += 1
        end = at + width
        number = int.from_bytes(value[at:end], "big") if width else value[at - 1]
        if end > len(value) or number > (_EXACT if width else _LARGEST_BYTE):
            raise ValueError("not a number that the script writes")
        numbers.append(number)
        at = end
    return tuple(numbers)


def decode(reply: Sequence[int], requests: Sequence[Sequence[Demand]]) -> list[Outcome]:
    """Return the outcome of each request; raise StoreUnavailable if the reply is not from the script."""
    try:
        if len(requests) == 1 and len(reply) == 2 + _ANSWER:  # one demand: the usual call of a lone caller
            now, steady, allowed, remaining, retry, reset_after, delay = reply
            answer = (allowed == 1, remaining, None if retry < 0 else retry, reset_after, delay)
            return [_new(Outcome, (now, [answer], False, steady, ()))]  # in a third of the usual time
        return _decode_many(reply, requests)
    except (TypeError, ValueError, IndexError) as error:
        raise no_decision(reply) from error


def _decode_many(reply: Sequence[int], requests: Sequence[Sequence[Demand]]) -> list[Outcome]:
    now = reply[0]
    if len(reply) == 1 + (1 + _ANSWER) * len(requests):  # one demand each, nearly always
        rest = iter(reply[1:])
        return [
            _new(
                Outcome,
                (now, [(allowed == 1, remaining, None if retry < 0 else retry, reset_after, delay)], False, steady, ()),
            )
            for steady, allowed, remaining, retry, reset_after, delay in zip(*[rest] * (1 + _ANSWER), strict=True)
        ]
    outcomes = []
    at = 1
    for demands in requests:
        steady = reply[at]
        at += 1
        answers = []
        for _ in demands:
            allowed, remaining, retry, reset_after, delay = reply[at : at + _ANSWER]
            answers.append((allowed == 1, remaining, None if retry < 0 else retry, reset_after, delay))
            at += _ANSWER
        outcomes.append(_new(Outcome, (now, answers, False, steady, ())))
    return outcomes


class Codec:
    """Encodes a store's requests as commands."""

    def __init__(self) -> None:
        self.clock: Clock | None = None
        self._rules: dict[int, EncodedRule] = {}
        self._bindings: dict[int, Binding] = {}  # keeps the bindings alive, whose ids are used

    def bind(self, binding: Binding, clock: Clock | None) -> None:
        """Prepare for a limiter's rule and its clock. All limiters of one store share one clock."""
        if self._rules and clock != self.clock:
            raise InvalidRule(
                f"clock {show(clock)} differs from this store's, {show(self.clock)}; use one clock per store"
            )
        self.clock = clock
        self._bindings[id(binding)] = binding
        self._rules[id(binding)] = encode_rule(binding)

    def unbind(self, bindings: Sequence[Binding]) -> None:
        """Forget a limiter's rules."""
        for binding in bindings:
            self._bindings.pop(id(binding), None)
            self._rules.pop(id(binding), None)

    def __len__(self) -> int:
        return len(self._rules) + len(self._bindings)

    def command(self, requests: Sequence[Sequence[Demand]]) -> tuple[bytes, ...]:
        """Return the command that decides these requests."""
        now_us = None if self.clock is None else self.now_us()
        try:
            names, argument = encode(now_us, requests, self._rules)
        except KeyError:  # a limiter went away with a request in flight
            rules = {id(each.binding): encode_rule(each.binding) for one in requests for each in one}
            names, argument = encode(now_us, requests, rules)
        return (*script.CALL, b"%d" % len(names), *names, argument)

    def now_us(self) -> int | None:
        """Return the injected clock's time in microseconds; None if the server's own time counts."""
        if self.clock is None:
            return None
        now_ns = self.clock()
        if not isinstance(now_ns, int):
            raise no_time(now_ns)
        now = now_ns // 1000
        if now < 0:
            raise InvalidRule(f"clock shows {now} us, which is before 1970; Redis stores need a later time")
        return now

    def name(self, demand: Demand) -> bytes:
        """Return the name of a demand's key in Redis."""
        rule = self._rules.get(id(demand.binding)) or encode_rule(demand.binding)  # the limiter may be gone
        return name_of(rule.head, demand.key)
