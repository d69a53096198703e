"""How keys are named on Redis, and how a call is written."""

import io
import math

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ratekeeper import FixedWindow, SlidingWindowLog, StoreUnavailable, TokenBucket
from ratekeeper.stores.protocol import Binding, Demand, Receipt
from ratekeeper.stores.redis import script, wire

RULE = FixedWindow(10, 60)
BINDING = Binding("user", RULE, ("ratekeeper", RULE.algorithm, "user"))
WIRE = wire.encode_rule(BINDING)

texts = st.text(st.characters(codec=None), min_size=1, max_size=150)
parts = texts | st.binary(min_size=1, max_size=150) | st.integers(-(2**40), 2**40)
keys = parts | st.lists(parts, min_size=1, max_size=4).map(tuple)


def test_a_key_carries_the_prefix_the_algorithm_the_rule_and_the_identity_as_its_hash_tag():
    assert wire.key_name(WIRE, "user:42") == b"ratekeeper:fw:user:{user:42}"


def test_a_rule_that_is_named_by_its_text_does_not_name_its_algorithm_twice():
    binding = Binding(RULE.text, RULE, ("ratekeeper", RULE.algorithm, RULE.text))
    assert wire.key_name(wire.encode_rule(binding), "user:42") == b"ratekeeper:fw::10/minute:{user:42}"


@pytest.mark.parametrize(
    ("key", "identity"),
    [
        ("a}b{c", b"a%7Db%7Bc"),
        ("100%", b"100%25"),
        ("a\nb\0", b"a%0Ab%00"),
        ("é", "é".encode()),
        ("\ud800", b"\xed\xa0\x80"),
        (42, b"%i42"),
        (-1, b"%i-1"),
        (b"42", b"%b42"),
        (("a/b", "c"), b"%t3:a/b1:c"),
        (("a", "b/c"), b"%t1:a3:b/c"),
        (("a",), b"%t1:a"),
    ],
)
def test_an_identity_is_written_so_that_it_can_be_read(key, identity):
    assert wire.key_name(WIRE, key) == b"ratekeeper:fw:user:{" + identity + b"}"


def test_a_long_identity_is_stored_hashed():
    name = wire.key_name(WIRE, "x" * 1000)
    assert name.startswith(b"ratekeeper:fw:user:{%h")
    assert len(name) < 60


@given(keys, keys)
def test_no_two_identities_share_a_name(one, other):
    same = (type(one), one) == (type(other), other)
    assert (wire.key_name(WIRE, one) == wire.key_name(WIRE, other)) == same


# What a prefix and a name may be made of so that one space looks like another: the parts of stored names.
pieces = st.sampled_from(
    [*":%{}* \n", "", "a", "::", "%3A", "fw", "fw:", ":fw", "sl", "10/minute", "fixed-window ", "sliding-window-log "]
)
made = st.lists(pieces, max_size=6).map("".join)
names = (texts | made).filter(bool)
rules = st.sampled_from([RULE, SlidingWindowLog(10, 60), TokenBucket(5, 10)])
spaces = st.builds(lambda prefix, rule, name: Binding(name, rule, (prefix, rule.algorithm, name)), made, rules, names)


def head(binding):
    return wire.encode_rule(binding).head


@settings(max_examples=1000)
@given(spaces, spaces)
@example(  # one prefix ends as the other's algorithm begins
    Binding("fw", RULE, ("a", RULE.algorithm, "fw")), Binding("b", RULE, ("a:fw", RULE.algorithm, "b"))
)
@example(
    Binding("fixed-window b", RULE, ("a", RULE.algorithm, "fixed-window b")),
    Binding("b", RULE, ("a:fw", RULE.algorithm, "b")),
)
def test_no_two_spaces_share_a_name(one, other):
    assert (head(one) == head(other)) == (one.space == other.space)


@pytest.mark.parametrize("prefix", ["ratekeeper", "ratekeeper:/login", "a b", "é", "user:*:?[x]", ":", ""])
def test_a_name_begins_with_the_plain_prefix(prefix):
    binding = Binding("user:", RULE, (prefix, RULE.algorithm, "user:"))
    assert wire.key_name(wire.encode_rule(binding), "k") == prefix.encode() + b":fw:user%3A:{k}"


@given(keys, texts)
def test_nothing_in_a_key_or_a_name_changes_the_hash_tag(key, name):
    stored = wire.key_name(wire.encode_rule(Binding(name, RULE, (name, RULE.algorithm, name))), key)
    assert (stored.count(b"{"), stored.count(b"}"), stored[-1:]) == (1, 1, b"}")


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
    assert msgpack.unpackb(wire._number(number)) == number  # private: what it does with numbers that no rule has


@pytest.mark.parametrize("number", [-1, -128, -129, 2**64])
def test_a_number_that_the_script_could_not_read_is_refused(number):
    with pytest.raises(OverflowError):
        wire._number(number)


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
