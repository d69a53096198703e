"""How a call is encoded for Redis."""

import io
import math

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekeeper import FixedWindow, StoreUnavailable, TokenBucket
from ratekeeper.stores.protocol import Binding, Demand, Receipt
from ratekeeper.stores.redis import script, wire

RULE = FixedWindow(10, 60)
BINDING = Binding("user", RULE, ("ratekeeper", RULE.algorithm, "user"))
WIRE = wire.encode_rule(BINDING)


def test_requests_in_a_row_that_are_alike_become_one_run():
    bucket = TokenBucket(5, 10)
    other = Binding("b", bucket, ("ratekeeper", bucket.algorithm, "b"))
    wires = {id(binding): wire.encode_rule(binding) for binding in (BINDING, other)}
    hits = [[Demand(BINDING, str(number), 1)] for number in range(3)]
    hot = [[Demand(BINDING, "hot", 2)]] * 5
    both = [Demand(BINDING, "0", 2, "peek", binds=False), Demand(other, "0", 10**30, "peek")]
    back = [Demand(BINDING, "0", 1, "give_back", receipt=Receipt(7, 9))]
    names, argument = wire.encode(123, [*hits, *hot, hits[0], both, back, back], wires)
    assert msgpack.unpackb(argument) == [
        *(123, 2, "fixed_window", 10, 60_000_000, 0, 0, "bucket", 5, 1, 100_000, 0),
        *(3, 1, 1, "hit", True, 1, 1),
        *(1, 5, 1, "hit", True, 1, 2),
        *(1, 1, 1, "hit", True, 1, 1),
        *(1, 1, 2, "peek", False, 1, 2, "peek", True, 2, wire.MAX_COST),
        *(1, 2, 1, "give_back", True, 1, 1, 7, 9),
    ]
    tags = [name.rpartition(b"{")[2] for name in names]
    assert tags == [b"0}", b"1}", b"2}", b"hot}", b"0}", b"0}", b"0}", b"0}"]


def test_without_a_clock_the_server_tells_the_time():
    _, argument = wire.encode(None, [[Demand(BINDING, "k", 1, "peek")]], {id(BINDING): WIRE})
    assert msgpack.unpackb(argument)[0] is False


@pytest.mark.parametrize("number", [0, 127, 128, 2**53, 2**64 - 1])
def test_a_number_reads_back_the_same(number):
    packed = wire._number(number)  # noqa: SLF001 - also for numbers that no rule has
    assert msgpack.unpackb(packed) == number


@pytest.mark.parametrize("number", [-1, -128, -129, 2**64])
def test_a_number_that_the_script_could_not_read_is_refused(number):
    with pytest.raises(OverflowError):
        wire._number(number)  # noqa: SLF001 - as above


def test_a_lone_hit_is_the_rule_and_the_cost():
    names, argument = wire.encode(None, [[Demand(BINDING, "k", 7)]], {id(BINDING): WIRE})
    assert (len(names), list(msgpack.Unpacker(io.BytesIO(argument)))) == (1, ["fixed_window", 10, 60_000_000, 0, 0, 7])


@given(st.lists(st.integers(0, 2**53)))
def test_a_state_is_read_as_the_script_packs_it(numbers):
    assert wire.numbers_in(b"\xff" + b"".join(map(msgpack.packb, numbers))) == tuple(numbers)


def test_the_script_is_constant_and_has_the_bounds_of_the_rules():
    from ratekeeper import rates

    assert f"MAX_USAGE = 2 ^ {int(math.log2(rates.MAX_USAGE))}\n" in script.TEXT
    assert f"MAX_DRAIN_US = 2 ^ {int(math.log2(rates.MAX_DRAIN_US))}\n" in script.TEXT
    assert rates.MAX_LIMIT < wire.MAX_COST > rates.MAX_USAGE


def test_an_answer_to_one_request_is_none_to_several():
    request = [Demand(BINDING, "k", 1)]
    with pytest.raises(StoreUnavailable, match="not a decision"):
        wire.decode([0] * 7, [request] * 4)
