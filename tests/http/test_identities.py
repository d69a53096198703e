"""Key functions: no two clients share a key, and no client gets a second key by writing the same value differently."""

import ipaddress

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from ratekeeper import keys
from ratekeeper.http import by_address, by_api_key, by_header, by_path, by_user, combine, first_of
from ratekeeper.http.client_keys import together
from tests.http.requests import a_request

TEXTS = st.text(max_size=6) | st.sampled_from(["together:", "together:1,", "together:,1", "a", "x" * 300, "\ud800"])
PARTS = TEXTS | st.binary(max_size=4) | st.integers() | st.sampled_from([b"together:", 2**2000])
KEYS = PARTS | st.lists(PARTS, max_size=3).map(tuple)


@given(st.lists(KEYS, min_size=1, max_size=4), st.lists(KEYS, min_size=1, max_size=4))
@example(["a", ("b",)], [("a",), "b"])
@example([1, "a", 1, "b"], ["a", ("b",)])
@example([(), "a"], ["a", ()])
@example(["a", "b"], [("a", "b")])
@example(["together:1,1", "a", "b"], [("a",), ("b",)])
@example(["x" * 300] * 5, [("x" * 300,), *["x" * 300] * 4])
def test_different_sequences_of_keys_give_different_keys(one, other):
    assume(one != other)
    assert together(one) != together(other)


@given(st.lists(KEYS, min_size=1, max_size=9))
@example(["x" * 1000, "y" * 1000])
@example([("a",) * 16, "b"])
def test_a_combination_of_valid_keys_is_valid(parts):
    for part in parts:
        assume(part not in ("", b"") and (not isinstance(part, tuple) or any(each not in ("", b"") for each in part)))
    assume(
        all(
            abs(each) < 2**64
            for part in parts
            for each in (part if isinstance(part, tuple) else (part,))
            if isinstance(each, int)
        )
    )
    assert keys.check(together(parts)) == together(parts)


def test_what_is_no_key_is_refused_in_a_combination():
    for wrong in (1.5, None, True, ("a", 1.5)):
        with pytest.raises(TypeError, match="key must be"):
            keys.check(together(["a", wrong]))


KINDS = {
    "user": lambda text: by_user()(a_request(user=text)),
    "header": lambda text: by_header("x-tenant")(a_request(headers={"x-tenant": text})),
    "another header": lambda text: by_header("x-tenant2")(a_request(headers={"x-tenant2": text})),
    "API key": lambda text: by_api_key()(a_request(headers={"x-api-key": text})),
    "address": lambda text: by_address()(a_request(peer=text)),
    "path": lambda text: by_path()(a_request(path=f"/{text}")),
}
VALUES = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF), min_size=1, max_size=5) | st.sampled_from(
    ["x" * 200, "x" * 201, "é" * 100, "é" * 101, "sha256:" + "0" * 64, "::1", "1.2.3.4", "2001:db8::/64", "user:ada"]
)


@given(st.sampled_from(list(KINDS)), VALUES, st.sampled_from(list(KINDS)), VALUES)
@example("address", "2001:db8::/64", "address", "2001:db8::1")
def test_values_of_different_kinds_and_different_values_do_not_meet(kind, value, other_kind, other):
    if kind == other_kind:
        assume(value.strip() != other.strip())
        assume(kind != "path" or not set(value + other) & set("/\\."))  # several spellings of one path
        if kind == "address":
            assume(not (is_address(value) and is_address(other)))
    assert KINDS[kind](value) != KINDS[other_kind](other)


def is_address(text):
    try:
        return bool(ipaddress.ip_address(text))
    except ValueError:
        return False


@given(VALUES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_key_is_short_enough_to_be_combined(kind, value):
    for long in (value, value * 50, value * 5000):
        key = KINDS[kind](long)
        assert key is None or len(key.encode()) <= 300


@pytest.mark.parametrize("padding", ["", " ", "\t", " \t "])
def test_blanks_around_a_header_are_no_second_identity(padding):
    for key in (by_header("x-tenant"), by_api_key("x-tenant")):
        assert key(a_request(headers={"x-tenant": f"{padding}acme{padding}"})) == key(
            a_request(headers={"x-tenant": "acme"})
        )


def test_a_header_in_two_lines_is_no_key():
    for key in (by_header("x-tenant"), by_api_key("x-tenant")):
        assert key(a_request(headers=[("x-tenant", "acme"), ("x-tenant", "acme")])) is None


@given(
    st.ip_addresses(v=4),
    st.sampled_from(["{}", "::ffff:{}", "::FFFF:{}", "{}:80", "{}:65535", " {} ", "[::ffff:{}]:80"]),
)
def test_an_ipv4_client_has_one_key_however_its_address_is_written(address, spelling):
    assert by_address()(a_request(peer=spelling.format(address))) == f"address:{address}"


@given(
    st.ip_addresses(v=6).filter(lambda address: address.ipv4_mapped is None),
    st.sampled_from(["compressed", "exploded", "upper"]),
    st.sampled_from(["{}", "[{}]", "[{}]:443", "{}%eth0", "[{}%1]:80", " {}"]),
)
def test_an_ipv6_client_has_one_key_however_its_address_is_written(address, form, spelling):
    text = {"compressed": address.compressed, "exploded": address.exploded, "upper": address.exploded.upper()}[form]
    network = ipaddress.ip_network((int(address), 64), strict=False)
    assert by_address()(a_request(peer=spelling.format(text))) == f"address:{network}"


@given(st.ip_addresses(), st.ip_addresses())
@example(ipaddress.ip_address("0.0.0.0"), ipaddress.ip_address("::ffff:0:0"))  # one address, written in two ways
@example(ipaddress.ip_address("0.0.0.1"), ipaddress.ip_address("::1"))
def test_two_networks_do_not_meet(one, other):
    def network(address):
        if address.version == 4:
            return address
        return address.ipv4_mapped or int(address) >> 64

    assume(network(one) != network(other))
    assert by_address()(a_request(peer=str(one))) != by_address()(a_request(peer=str(other)))


GARBAGE = st.text(max_size=30) | st.text("0123456789abcdef.:[]%/ ", max_size=40) | st.just("9" * 100_000)


@given(GARBAGE)
@pytest.mark.parametrize("header", ["x-forwarded-for", "forwarded"])
def test_no_header_gives_a_client_another_identity_unless_a_proxy_is_trusted(header, text):
    key = by_address(header=header)
    assert key(a_request(headers={header: text})) == "address:192.0.2.1"
    behind = by_address(["10.0.0.0/8"], header=header)
    assert behind(a_request(headers={header: text})) == "address:192.0.2.1"
    # The proxy adds the address that it sees: what the client wrote before it changes nothing.
    seen = "198.51.100.7" if header == "x-forwarded-for" else "for=198.51.100.7"
    request = a_request(peer="10.0.0.1", headers={header: f"{text}, {seen}"})
    assert behind(request) == "address:198.51.100.7"


@given(GARBAGE)
def test_a_peer_that_is_no_address_has_a_key_of_bounded_size(text):
    assert len(by_address()(a_request(peer=text or "x"))) <= 100


def test_combinations_and_choices_of_long_values_have_keys():
    request = a_request(user="ü" * 3000, path="/" + "é" * 3000, headers={"x-tenant": "ô" * 3000})
    both = combine(by_user(), by_path(), by_header("x-tenant"), by_address())
    assert keys.check(both(request)) == both(request)
    assert keys.check(combine(both, both, both, both, both)(request))
    assert first_of(by_api_key(), by_user())(request) == by_user()(request)
