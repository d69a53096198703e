"""Bad input: the error names the argument and the value, and nothing is consumed."""

import math
from fractions import Fraction

import pytest

from ratekeeper import FixedWindow, InvalidRule, TokenBucket
from ratekeeper.testing import ManualClock
from tests.faces import FACES

TAKE_A_KEY = ["hit", "peek", "charge", "refund", "reset", "inspect", "wait"]
TAKE_A_COST = ["hit", "peek", "charge", "refund", "wait"]
KIB = 1024
HUGE = 10**5000  # more digits than str() writes

KEYS_OF_A_WRONG_TYPE = [
    None,
    True,
    False,
    1.0,
    math.nan,
    math.inf,
    Fraction(1, 2),
    [],
    ["a"],
    {"a"},
    bytearray(b"a"),
    object,
    (None,),
    ("a", 1.5),
    ("a", True),
    ("a", ("b",)),
    (("a",),),
    (["a"],),
]
KEYS_OF_A_WRONG_VALUE = {
    "empty str": ("", "key must not be empty: ''"),
    "empty bytes": (b"", "key must not be empty: b''"),
    "empty tuple": ((), "key must not be empty: ()"),
    "tuple of nothing": (("",), "key must not be empty: ('',)"),
    "tuple of nothings": (("", b""), "key must not be empty: ('', b'')"),
    "str of 1 KiB + 1": ("a" * (KIB + 1), "key must have at most 1024 bytes, not 1025: 'aaaa"),
    "bytes of 1 KiB + 1": (b"a" * (KIB + 1), "key must have at most 1024 bytes, not 1025: b'aaaa"),
    "str of 1 MiB": ("a" * KIB * KIB, "key must have at most 1024 bytes, not 1048576: 'aaaa"),
    "bytes of 1 MiB": (b"a" * KIB * KIB, "key must have at most 1024 bytes, not 1048576: b'aaaa"),
    "two bytes a character": ("é" * 513, "key must have at most 1024 bytes, not 1026: 'éééé"),
    "four bytes a character": ("🦀" * 257, "key must have at most 1024 bytes, not 1028: '🦀"),
    "lone surrogates": ("\ud800" * 342, "key must have at most 1024 bytes, not 1026: '\\ud800"),
    "tuple of 1 KiB + 1": (("a" * KIB, b"b"), "key must have at most 1024 bytes, not 1025: ('aaaa"),
    "17 parts": (("a",) * 17, "key must have at most 16 parts, not 17: ('a', 'a', "),
    "21,000 empty parts": (("",) * 21_000, "key must have at most 16 parts, not 21000: ('', '', "),
    "17 parts of which one is no part": ((None,) * 17, "key must have at most 16 parts, not 17: (None, "),
    "ints of 1 KiB + 1 together": ((2**63,) * 15 + (1 << 7_112,), "key must have at most 1024 bytes, not 1025: (92233"),
    "str, bytes and int of 1 KiB + 1 together": (
        ("é" * 256, b"b" * 512, 1),
        "key must have at most 1024 bytes, not 1025",
    ),
    "int of 1 MiB": (1 << 8 * KIB * KIB, "key must have at most 1024 bytes, not 1048577: "),
    "int that str() refuses": (HUGE, "key must have at most 1024 bytes, not 2077: "),
}
GOOD_KEYS = {
    "str of 1 KiB": "a" * KIB,
    "bytes of 1 KiB": b"a" * KIB,
    "tuple of 1 KiB": ("a" * (KIB - 1), b"b"),
    "two bytes a character": "é" * 512,
    "four bytes a character": "🦀" * 256,
    "braces": "{user}:{42}",
    "newlines": "a\r\nb\n",
    "NUL": "a\0b",
    "only NUL": "\0",
    "spaces": "  ",
    "a lone surrogate": "\udcff",
    "lone surrogates": "\ud800" * 341,
    "bytes that are no text": b"\xff\x00\xfe",
    "zero": 0,
    "a negative int": -1,
    "a huge int": 10**40,
    "a tuple with an empty part": ("a", ""),
    "a tuple of all": ("a", b"a", 1),
    "16 parts": ("a", b"b", 1, "") * 4,
}
COSTS_OF_A_WRONG_TYPE = [None, True, False, 1.0, 0.5, math.nan, math.inf, -math.inf, Fraction(1), "1", b"1", (), [1]]
COSTS_OF_A_WRONG_VALUE = [0, -1, -(10**40)]


@pytest.fixture(params=FACES.values(), ids=FACES)
def face(request):
    return request.param


@pytest.fixture
def limiter(face):
    """A limiter that has admitted 3 of 10 on the key "k"."""
    limiter = face({"api": TokenBucket(10, 1)}, clock=ManualClock())
    limiter.hit("k", 3)
    return limiter


@pytest.fixture
def layered(face):
    """A limiter of two rules that has admitted 3 of 10 and 3 of 5 on the key "k"."""
    limiter = face({"user": TokenBucket(10, 1), "tenant": FixedWindow(5, 60)}, clock=ManualClock())
    limiter.hit("k", 3)
    return limiter


def is_as_it_was(limiter):
    standing = limiter.peek("k")
    left = {name: layer.remaining for name, layer in standing.layers.items()} or {"api": standing.remaining}
    return (left, limiter.store.size) in (({"api": 7}, 1), ({"user": 7, "tenant": 2}, 2))


@pytest.mark.parametrize("method", TAKE_A_KEY)
@pytest.mark.parametrize("key", KEYS_OF_A_WRONG_TYPE, ids=repr)
def test_a_key_of_a_wrong_type_is_a_type_error(limiter, method, key):
    with pytest.raises(TypeError, match=r"^key must be a str, bytes or int, or a tuple of these, not ") as raised:
        getattr(limiter, method)(key)
    part = next((part for part in key if not isinstance(part, str)), key) if isinstance(key, tuple) else key
    assert str(raised.value).endswith(repr(part))
    assert is_as_it_was(limiter)


@pytest.mark.parametrize("method", TAKE_A_KEY)
@pytest.mark.parametrize(("key", "text"), KEYS_OF_A_WRONG_VALUE.values(), ids=KEYS_OF_A_WRONG_VALUE)
def test_a_key_that_is_empty_or_too_long_is_refused(limiter, method, key, text):
    with pytest.raises(InvalidRule) as raised:
        getattr(limiter, method)(key)
    assert str(raised.value).startswith(text)
    assert is_as_it_was(limiter)


def test_the_error_for_a_long_key_stays_short(limiter):
    with pytest.raises(InvalidRule) as raised:
        limiter.hit("a" * KIB * KIB)
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize("key", GOOD_KEYS.values(), ids=GOOD_KEYS)
def test_an_unusual_key_is_a_key_like_any_other(limiter, key):
    assert limiter.hit(key, 4).remaining == 6
    assert limiter.charge(key).remaining == 5
    assert limiter.wait(key).remaining == 4
    assert limiter.refund(key, 2).remaining == 6
    assert limiter.inspect(key)["api"].state["tokens"] == 6.0
    limiter.reset(key)
    assert limiter.peek(key).remaining == 10


def test_a_str_bytes_an_int_and_a_tuple_are_four_identities(limiter):
    assert [limiter.hit(key, 4).remaining for key in ("1", b"1", 1, ("1",))] == [6, 6, 6, 6]
    assert limiter.store.size == 5


def test_tuples_that_read_alike_are_different_keys(limiter):
    keys = [("a", "b"), ("ab",), ("a,b",), "a,b", ("a", b"b"), ("a:b",), "('a', 'b')"]
    assert [limiter.hit(key, 4).remaining for key in keys] == [6] * len(keys)


@pytest.mark.parametrize("method", TAKE_A_COST)
@pytest.mark.parametrize("cost", COSTS_OF_A_WRONG_TYPE, ids=repr)
def test_a_cost_of_a_wrong_type_is_a_type_error(limiter, method, cost):
    with pytest.raises(TypeError) as raised:
        getattr(limiter, method)("k", cost)
    assert str(raised.value) == f"cost must be an int of at least 1, not {cost!r}"
    assert is_as_it_was(limiter)


@pytest.mark.parametrize("method", TAKE_A_COST)
@pytest.mark.parametrize("cost", COSTS_OF_A_WRONG_VALUE, ids=repr)
def test_a_cost_below_one_is_refused(limiter, method, cost):
    with pytest.raises(InvalidRule) as raised:
        getattr(limiter, method)("k", cost)
    assert str(raised.value) == f"cost must be an int of at least 1, not {cost}"
    assert is_as_it_was(limiter)


@pytest.mark.parametrize("method", TAKE_A_COST)
def test_a_cost_with_more_digits_than_str_writes_is_refused_like_any_other(limiter, method):
    with pytest.raises(InvalidRule, match=r"^cost must be an int of at least 1, not "):
        getattr(limiter, method)("k", -HUGE)
    assert is_as_it_was(limiter)


@pytest.mark.parametrize("cost", [10**12, 10**40, HUGE], ids=["10^12", "10^40", "10^5000"])
def test_a_huge_cost_never_fits_and_consumes_nothing(limiter, cost):
    assert limiter.hit("k", cost).retry_after == math.inf
    assert limiter.peek("k", cost).retry_after == math.inf
    assert is_as_it_was(limiter)


@pytest.mark.parametrize("cost", [10**40, HUGE], ids=["10^40", "10^5000"])
def test_a_huge_charge_can_be_refunded_whole(limiter, cost):
    assert limiter.charge("k", cost).allowed is False
    assert limiter.refund("k", cost).remaining == 10


@pytest.mark.parametrize("method", TAKE_A_KEY)
def test_a_mapping_of_keys_with_an_unknown_rule_is_refused_by_name(layered, method):
    with pytest.raises(InvalidRule) as raised:
        getattr(layered, method)({"user": "k", "tenant": "k", "planet": "k"})
    assert str(raised.value) == (
        "key {'user': 'k', 'tenant': 'k', 'planet': 'k'} names an unknown rule 'planet'; the rules are 'user', 'tenant'"
    )
    assert is_as_it_was(layered)


@pytest.mark.parametrize("method", TAKE_A_KEY)
@pytest.mark.parametrize(("key", "missing"), [({}, "user"), ({"user": "k"}, "tenant"), ({"tenant": "k"}, "user")])
def test_a_mapping_of_keys_that_leaves_a_rule_out_is_refused_by_name(layered, method, key, missing):
    with pytest.raises(InvalidRule) as raised:
        getattr(layered, method)(key)
    assert str(raised.value) == f"key {key} lacks rule '{missing}'; a mapping of keys must name every rule"
    assert is_as_it_was(layered)


@pytest.mark.parametrize("method", TAKE_A_KEY)
@pytest.mark.parametrize("key", [None, 1.5, {"a": "b"}, ["k"], True], ids=repr)
def test_a_bad_key_inside_of_a_mapping_is_a_type_error(layered, method, key):
    with pytest.raises(TypeError, match=r"^key must be a str, bytes or int, or a tuple of these, not "):
        getattr(layered, method)({"user": "k", "tenant": key})
    assert is_as_it_was(layered)


@pytest.mark.parametrize("method", TAKE_A_KEY)
def test_an_empty_key_inside_of_a_mapping_is_refused(layered, method):
    with pytest.raises(InvalidRule, match=r"^key must not be empty"):
        getattr(layered, method)({"user": "k", "tenant": ""})
    assert is_as_it_was(layered)


@pytest.mark.parametrize("method", TAKE_A_COST)
@pytest.mark.parametrize("name", ["planet", "", 1, None], ids=repr)
def test_a_mapping_of_costs_with_an_unknown_rule_is_refused_by_name(layered, method, name):
    with pytest.raises(InvalidRule) as raised:
        getattr(layered, method)("k", {"user": 1, name: 1})
    assert str(raised.value) == (
        f"cost {{'user': 1, {name!r}: 1}} names an unknown rule {name!r}; the rules are 'user', 'tenant'"
    )
    assert is_as_it_was(layered)


@pytest.mark.parametrize("method", TAKE_A_COST)
@pytest.mark.parametrize("cost", [None, True, 1.0, math.nan, "1", {"a": 1}], ids=repr)
def test_a_bad_cost_inside_of_a_mapping_is_a_type_error(layered, method, cost):
    with pytest.raises(TypeError) as raised:
        getattr(layered, method)("k", {"user": cost})
    assert str(raised.value) == f"cost must be an int of at least 1, not {cost!r}"
    assert is_as_it_was(layered)


@pytest.mark.parametrize("method", TAKE_A_COST)
def test_a_negative_cost_inside_of_a_mapping_is_refused(layered, method):
    with pytest.raises(InvalidRule, match=r"^cost must be an int of at least 1, not -1$"):
        getattr(layered, method)("k", {"user": -1})
    assert is_as_it_was(layered)


@pytest.mark.parametrize("method", TAKE_A_COST)
def test_costs_that_leave_every_rule_out_are_refused(limiter, method):
    with pytest.raises(InvalidRule, match=r"^cost \{'api': 0\} leaves every rule out$"):
        getattr(limiter, method)("k", {"api": 0})
    assert is_as_it_was(limiter)


@pytest.mark.parametrize("timeout", ["1", b"1", True, False, [1], 1j, Fraction(1, 2)], ids=repr)
def test_a_timeout_of_a_wrong_type_is_a_type_error(limiter, timeout):
    with pytest.raises(TypeError) as raised:
        limiter.wait("k", timeout=timeout)
    assert str(raised.value) == f"timeout must be a number of seconds or None, not {timeout!r}"
    assert is_as_it_was(limiter)


@pytest.mark.parametrize("timeout", [-1, -0.001, -math.inf, math.nan, -(10**40)], ids=repr)
def test_a_timeout_below_zero_is_refused(limiter, timeout):
    with pytest.raises(InvalidRule) as raised:
        limiter.wait("k", timeout=timeout)
    assert str(raised.value) == f"timeout must be at least 0 seconds, not {timeout!r}"
    assert is_as_it_was(limiter)


@pytest.mark.parametrize(
    "timeout",
    [math.inf, 1e18, 10**40, 1e300, 10**400, HUGE],
    ids=["inf", "1e18", "10^40", "1e300", "10^400", "10^5000"],
)
def test_a_huge_timeout_is_as_long_as_it_takes(limiter, timeout):
    assert limiter.wait("k", timeout=timeout).remaining == 6


def test_a_timeout_of_0_admits_what_need_not_wait(limiter):
    assert limiter.wait("k", timeout=0).remaining == 6
