"""What keys are called in files and on servers."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ratekeeper import FixedWindow, SlidingWindowLog, TokenBucket
from ratekeeper.stores.names import head_of, name_of
from ratekeeper.stores.protocol import Binding

RULE = FixedWindow(10, 60)
HEAD = head_of(Binding("user", RULE, ("ratekeeper", RULE.algorithm, "user")))

texts = st.text(st.characters(codec=None), min_size=1, max_size=150)
parts = texts | st.binary(min_size=1, max_size=150) | st.integers(-(2**40), 2**40)
keys = parts | st.lists(parts, min_size=1, max_size=4).map(tuple)


def test_a_name_has_the_prefix_the_algorithm_the_rule_and_the_key_as_its_hash_tag():
    assert name_of(HEAD, "user:42") == b"ratekeeper:fw:user:{user:42}"


def test_a_rule_that_is_named_by_its_text_does_not_name_its_algorithm_twice():
    binding = Binding(RULE.text, RULE, ("ratekeeper", RULE.algorithm, RULE.text))
    assert name_of(head_of(binding), "user:42") == b"ratekeeper:fw::10/minute:{user:42}"


@pytest.mark.parametrize(
    ("key", "written"),
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
def test_a_key_is_written_so_that_it_can_be_read(key, written):
    assert name_of(HEAD, key) == b"ratekeeper:fw:user:{" + written + b"}"


def test_a_long_key_is_stored_hashed():
    name = name_of(HEAD, "x" * 1000)
    assert name.startswith(b"ratekeeper:fw:user:{%h")
    assert len(name) < 60


@given(keys, keys)
def test_no_two_keys_share_a_name(one, other):
    same = (type(one), one) == (type(other), other)
    assert (name_of(HEAD, one) == name_of(HEAD, other)) == same


# What a prefix and a name may be made of so that one space looks like another: the parts of stored names.
pieces = st.sampled_from(
    [*":%{}* \n", "", "a", "::", "%3A", "fw", "fw:", ":fw", "sl", "10/minute", "fixed-window ", "sliding-window-log "]
)
made = st.lists(pieces, max_size=6).map("".join)
names = (texts | made).filter(bool)
rules = st.sampled_from([RULE, SlidingWindowLog(10, 60), TokenBucket(5, 10)])
spaces = st.builds(lambda prefix, rule, name: Binding(name, rule, (prefix, rule.algorithm, name)), made, rules, names)


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
    assert (head_of(one) == head_of(other)) == (one.space == other.space)


@pytest.mark.parametrize("prefix", ["ratekeeper", "ratekeeper:/login", "a b", "é", "user:*:?[x]", ":", ""])
def test_a_name_begins_with_the_plain_prefix(prefix):
    binding = Binding("user:", RULE, (prefix, RULE.algorithm, "user:"))
    assert name_of(head_of(binding), "k") == prefix.encode() + b":fw:user%3A:{k}"


@given(keys, texts)
def test_nothing_in_a_key_or_a_name_changes_the_hash_tag(key, name):
    stored = name_of(head_of(Binding(name, RULE, (name, RULE.algorithm, name))), key)
    assert (stored.count(b"{"), stored.count(b"}"), stored[-1:]) == (1, 1, b"}")
