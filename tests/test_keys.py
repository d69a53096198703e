import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekeeper import InvalidRule, keys

PARTS = st.one_of(st.text(max_size=40), st.binary(max_size=40), st.integers(-(2**64), 2**64))


@pytest.mark.parametrize(
    "key",
    [
        "a",
        "user:42",
        b"\x00",
        0,
        -1,
        ("user", 42, b"x"),
        ("", "a"),
        (0,),
        " ",
        "{tag}",
        "line\nbreak",
        "nul\x00inside",
        "\udcff",  # a lone surrogate, as os.fsdecode makes them
        "日本語",
    ],
    ids=repr,
)
def test_a_str_bytes_int_or_tuple_of_these_is_a_key_as_it_is(key):
    assert keys.check(key) == key


@pytest.mark.parametrize("key", ["", b"", (), ("",), ("", b"")], ids=repr)
def test_an_empty_key_is_refused(key):
    with pytest.raises(InvalidRule, match="key must not be empty"):
        keys.check(key)


@pytest.mark.parametrize(
    "key", [None, True, False, 1.0, ["a"], {"a"}, bytearray(b"a"), object, ("a", None), ("a", True), ("a", ("b",))]
)
def test_any_other_type_is_refused(key):
    with pytest.raises(TypeError, match="key must be a str, bytes or int, or a tuple of these, not "):
        keys.check(key)


def test_the_error_names_the_part_that_is_wrong():
    with pytest.raises(TypeError, match=r"not 2\.5$"):
        keys.check(("user", 2.5))


@pytest.mark.parametrize(
    "key",
    [
        "a" * 1024,
        "é" * 512,
        "日" * 341,
        "😀" * 256,
        "\udcff" * 341,
        b"a" * 1024,
        ("a" * 512, b"a" * 512),
        ("a" * 1023, 1),
        2 ** (8 * 1023),
        -(2 ** (8 * 1023)),
    ],
    ids=lambda key: type(key).__name__,
)
def test_a_key_of_1024_bytes_is_accepted(key):
    assert keys.check(key) == key


@pytest.mark.parametrize(
    ("key", "size"),
    [
        ("a" * 1025, 1025),
        ("é" * 513, 1026),
        ("日" * 342, 1026),
        ("😀" * 257, 1028),
        ("\udcff" * 342, 1026),
        (b"a" * 1025, 1025),
        (("a" * 512, b"a" * 513), 1025),
        (("a" * 1023, 256), 1025),
        (2 ** (8 * 1024), 1025),
        ("a" * 2**20, 2**20),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_longer_key_is_refused_with_its_size(key, size):
    with pytest.raises(InvalidRule, match=f"key must have at most 1024 bytes, not {size}: .*; hash longer keys first"):
        keys.check(key)


def test_an_error_about_a_long_key_is_short():
    with pytest.raises(InvalidRule) as caught:
        keys.check("a" * 2**20)
    assert len(str(caught.value)) < 250


def test_an_int_with_more_digits_than_python_prints_is_refused_as_too_long():
    with pytest.raises(InvalidRule, match="at most 1024 bytes"):
        keys.check(10**5000)


@given(PARTS | st.lists(PARTS, max_size=5).map(tuple))
def test_every_short_key_that_is_not_empty_is_accepted(key):
    if key in ("", b"") or (isinstance(key, tuple) and all(part in ("", b"") for part in key)):
        with pytest.raises(InvalidRule):
            keys.check(key)
    else:
        assert keys.check(key) == key


@pytest.mark.parametrize(
    "key_of", [lambda number: number, lambda number: ("user", number)], ids=["alone", "in a tuple"]
)
def test_numbers_that_python_hashes_alike_are_hashed_apart(key_of):
    modulus = sys.hash_info.modulus
    alike = [key_of(number * modulus + 5) for number in range(1_000)]
    assert len(set(map(hash, alike))) == 1
    assert len({hash(keys.check(key)) for key in alike}) > 990


@given(st.integers(-(2**200), 2**200))
def test_a_number_is_the_same_key_each_time(number):
    assert {keys.check(number): "found"}[keys.check(int(number))] == "found"
