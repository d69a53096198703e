"""Two identities never share a key, and every key is one that a store takes."""

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ratekeeper import keys
from ratekeeper.policies.attributes import as_texts
from ratekeeper.policies.templates import KeyTemplate
from ratekeeper.stores.names import encoded

NASTY = st.one_of(st.text(max_size=6), st.sampled_from(["anonymous", "a/b", "/", "", "1", "{user}", "\0", "x" * 2000]))
ATTRIBUTES = st.dictionaries(st.sampled_from(["user", "tenant"]), NASTY)
TEMPLATES = ["{user|}", "{user|anonymous}", "{tenant|a}/{user|1}", "v1 {user|anonymous}", "{user|a}{tenant|a}"]


@pytest.mark.parametrize("template", TEMPLATES)
@given(first=ATTRIBUTES, second=ATTRIBUTES)
@example(first={}, second={"user": "anonymous"})
@example(first={}, second={"user": ""})
@example(first={"tenant": "a/b", "user": "c"}, second={"tenant": "a", "user": "b/c"})
def test_two_requests_share_a_key_only_if_they_are_the_same_to_its_template(template, first, second):
    read = KeyTemplate.read(template)
    used = {part.attribute for part in read.parts if part.attribute}
    same = all(first.get(name) == second.get(name) for name in used)
    one, other = (read.key(as_texts(each)) for each in (first, second))
    assert keys.check(one) == one
    assert (one == other) is same
    assert (encoded(one) == encoded(other)) is same


def test_what_a_key_looks_like():
    request = {"user": "42", "tenant": "acme"}
    assert KeyTemplate.read("{user}").key(request) == "42"
    assert KeyTemplate.read("{tenant}/{user}").key(request) == ("acme", "42")
    assert KeyTemplate.read("all").key(request) == "all"
    assert KeyTemplate.read("-").key(request) == "-"
    assert KeyTemplate.read("v2:{user}").key(request) == ("v2:", "42")
    assert KeyTemplate.read("{nobody|anonymous}").key(request) == ("anonymous", 1)
    assert KeyTemplate.read("{user}{nobody|}").key(request) == ("42", "", 2)


def test_long_values_are_hashed_and_stay_apart():
    template = KeyTemplate.read("{user}")
    lengths = [255, 256, 257, 1000, 1008, 1009, 1024, 1025, 100_000]
    values = [template.key({"user": "x" * length}) for length in lengths]
    assert len(set(values)) == len(values)
    assert all(keys.check(value) for value in values)
    pairs = [(a, b) for a, b in itertools.product(["x" * 2000, "x" * 2001], repeat=2)]
    assert len({KeyTemplate.read("{a}{b}").key({"a": a, "b": b}) for a, b in pairs}) == 4


def test_large_integers_are_bounded():
    assert as_texts({"user": 10**400}) == {"user": f"{10**400}"}
    with pytest.raises(ValueError, match="at most 2048 bits"):
        as_texts({"user": -(10**700)})


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("", "must not be empty"),
        ("{user", "unmatched"),
        ("user}", "unmatched"),
        ("{{user}}", "unmatched"),
        ("{}", "names no attribute"),
        ("{ user }", "names no attribute"),
        ("{a}" * 16, "has 16 parts; at most 15"),
        ("x" * 1025, "1025 characters"),
    ],
)
def test_a_bad_template_is_refused(template, said):
    with pytest.raises(ValueError, match=said):
        KeyTemplate.read(template)
