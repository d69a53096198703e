"""A client's address: no spoof changes the key, and one client keeps one key."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekeeper import InvalidRule
from ratekeeper.http import by_address
from tests.http.requests import a_request

PROXIES = ["10.0.0.0/8", "2001:db8:ffff::/48"]
GARBAGE = [
    "",
    " ",
    "unknown",
    "_hidden",
    "1.2.3",
    "1.2.3.4.5",
    "256.1.1.1",
    "::g",
    "[::1",
    "1.2.3.4:x",
    "é",
    "\x00",
    '"',
    "a" * 5000,
]


def key_of(peer="192.0.2.1", headers=(), **options):
    return by_address(**options)(a_request(peer=peer, headers=headers))


def forwarded_for(value, **options):
    return key_of("10.0.0.1", [("X-Forwarded-For", value)], trusted_proxies=PROXIES, **options)


def forwarded(value, **options):
    return key_of("10.0.0.1", [("Forwarded", value)], trusted_proxies=PROXIES, header="forwarded", **options)


def test_the_peer_is_the_client():
    assert key_of("192.0.2.1") == "address:192.0.2.1"


def test_what_an_untrusted_peer_states_is_not_heard():
    headers = [("X-Forwarded-For", "198.51.100.1"), ("Forwarded", "for=198.51.100.1")]
    assert key_of(headers=headers) == "address:192.0.2.1"
    assert key_of(headers=headers, trusted_proxies=PROXIES) == "address:192.0.2.1"
    assert key_of(headers=headers, trusted_proxies=PROXIES, header="forwarded") == "address:192.0.2.1"


def test_a_trusted_peer_is_heard():
    assert forwarded_for("198.51.100.1") == "address:198.51.100.1"


def test_the_header_is_read_from_the_right_past_the_proxies():
    assert forwarded_for("203.0.113.9, 198.51.100.1, 10.0.0.2, 10.0.0.3") == "address:198.51.100.1"


def test_if_all_are_proxies_the_farthest_is_the_client():
    assert forwarded_for("10.0.0.3, 10.0.0.2") == "address:10.0.0.3"


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_in_the_clients_place_falls_back_to_the_peer(garbage):
    assert forwarded_for(f"198.51.100.1, {garbage}") == "address:10.0.0.1"


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_in_front_of_the_client_changes_nothing(garbage):
    assert forwarded_for(f"{garbage}, 198.51.100.1") == "address:198.51.100.1"
    assert forwarded(f"{garbage}, for=198.51.100.1") == "address:198.51.100.1"


def test_a_header_in_several_lines_falls_back_to_the_peer():
    headers = [("X-Forwarded-For", "203.0.113.9"), ("X-Forwarded-For", "198.51.100.1")]
    assert key_of("10.0.0.1", headers, trusted_proxies=PROXIES) == "address:10.0.0.1"
    assert key_of("10.0.0.1", headers, trusted_hops=1) == "address:10.0.0.1"


def test_lines_are_joined_for_a_proxy_that_adds_its_own():
    headers = [("X-Forwarded-For", "203.0.113.9"), ("X-Forwarded-For", "198.51.100.1")]
    assert key_of("10.0.0.1", headers, trusted_proxies=PROXIES, join_lines=True) == "address:198.51.100.1"


@pytest.mark.parametrize(
    ("hops", "expected"), [(0, "192.0.2.1"), (1, "10.0.0.2"), (2, "198.51.100.1"), (4, "192.0.2.1")]
)
def test_proxies_can_be_counted(hops, expected):
    headers = [("X-Forwarded-For", "203.0.113.9, 198.51.100.1, 10.0.0.2")]
    assert key_of(headers=headers, trusted_hops=hops) == f"address:{expected}"


def test_a_unix_socket_has_no_address():
    assert key_of(None) is None
    assert key_of(None, [("X-Forwarded-For", "198.51.100.1")], trusted_proxies=PROXIES) is None


def test_a_unix_socket_can_be_trusted():
    headers = [("X-Forwarded-For", "198.51.100.1, 10.0.0.2")]
    assert key_of(None, headers, trusted_proxies=["unix", *PROXIES]) == "address:198.51.100.1"
    assert key_of(None, headers, trusted_hops=2) == "address:198.51.100.1"


def test_a_peer_that_is_no_address_keeps_its_name():
    assert key_of("testclient") == "address:testclient"


def test_the_other_header_is_not_read():
    headers = [("Forwarded", "for=203.0.113.9"), ("X-Forwarded-For", "198.51.100.1")]
    assert key_of("10.0.0.1", headers, trusted_proxies=PROXIES) == "address:198.51.100.1"
    assert key_of("10.0.0.1", headers, trusted_proxies=PROXIES, header="forwarded") == "address:203.0.113.9"


@pytest.mark.parametrize(
    ("value", "expected"),
    {
        "for=198.51.100.1": "198.51.100.1",
        "For=198.51.100.1;proto=https;by=203.0.113.43": "198.51.100.1",
        'for="198.51.100.1:4711"': "198.51.100.1",
        'for="[2001:db8:cafe::17]:4711"': "2001:db8:cafe::/64",
        'for="[2001:db8:cafe::17]"': "2001:db8:cafe::/64",
        "for=203.0.113.9, for=198.51.100.1, for=10.0.0.2": "198.51.100.1",
        'for=198.51.100.1;host="a, for=203.0.113.9"': "198.51.100.1",
        'for=198.51.100.1;host="a\\", for=203.0.113.9"': "198.51.100.1",
        "proto=https;for=198.51.100.1": "198.51.100.1",
        "for=198.51.100.1;for=203.0.113.9": "10.0.0.1",
        "for=unknown": "10.0.0.1",
        "for=_secret": "10.0.0.1",
        "proto=https": "10.0.0.1",
        "for=": "10.0.0.1",
        "for": "10.0.0.1",
        'for="198.51.100.1': "10.0.0.1",
        "198.51.100.1": "10.0.0.1",
    }.items(),
)
def test_forwarded_is_read_as_rfc_7239_says(value, expected):
    assert forwarded(value) == f"address:{expected}"


ONE_CLIENT = [
    *("2001:db8::1", "2001:0DB8:0:0::1", "2001:db8::ffff", "[2001:db8::1]", "[2001:db8::1]:80", "2001:db8:0:0:1:2:3:4"),
    "2001:db8::1%eth0",
]


@pytest.mark.parametrize("text", ONE_CLIENT)
def test_all_of_an_ipv6_network_is_one_client(text):
    assert forwarded_for(text) == "address:2001:db8::/64"
    assert key_of(text) == "address:2001:db8::/64"


@pytest.mark.parametrize(
    "text", ["1.2.3.4", "1.2.3.4:80", "::ffff:1.2.3.4", "::FFFF:102:304", "[::ffff:1.2.3.4]:80", " 1.2.3.4\t"]
)
def test_all_forms_of_an_ipv4_address_are_one_client(text):
    assert forwarded_for(text) == key_of(text) == "address:1.2.3.4"


def test_a_mapped_peer_is_found_among_the_proxies():
    headers = [("X-Forwarded-For", "198.51.100.1")]
    assert key_of("::ffff:10.0.0.1", headers, trusted_proxies=PROXIES) == "address:198.51.100.1"


@pytest.mark.parametrize(
    ("prefix", "expected"), [(48, "2001:db8:1::/48"), (56, "2001:db8:1:200::/56"), (128, "2001:db8:1:2ff::1")]
)
def test_the_prefix_can_be_chosen(prefix, expected):
    assert key_of("2001:db8:1:2ff::1", ipv6_prefix=prefix) == f"address:{expected}"


addresses = st.ip_addresses().filter(lambda each: not any(each in ipaddress.ip_network(net) for net in PROXIES))
noise = st.one_of(st.sampled_from(GARBAGE), st.text(max_size=20), st.ip_addresses().map(str))


def spellings(address):
    if address.version == 4:
        return [str(address), f"{address}:4711", f"::ffff:{address}", f"[::ffff:{address}]:1"]
    return [str(address), address.exploded, str(address).upper(), f"[{address}]", f"[{address}]:4711"]


@given(
    addresses,
    st.lists(noise, max_size=4),
    st.lists(st.sampled_from(["10.1.2.3", "10.9.9.9:80"]), max_size=3),
    st.data(),
)
def test_whatever_a_client_puts_in_front_its_key_is_its_address(address, spoof, proxies, data):
    expected = key_of(str(address))
    spelled = data.draw(st.sampled_from(spellings(address)))
    assert forwarded_for(", ".join([*spoof, spelled, *proxies])) == expected
    assert key_of("10.0.0.1", {"X-Forwarded-For": ",".join([*spoof, spelled])}, trusted_hops=1) == expected
    elements = [f'for="{each}"' for each in (spelled, *proxies)]
    assert forwarded(", ".join([*spoof, *elements])) == expected


@given(addresses, st.text(max_size=40), st.sampled_from(["x-forwarded-for", "forwarded"]))
def test_a_client_that_comes_without_a_proxy_cannot_say_who_it_is(address, spoof, header):
    headers = [(header, spoof)]
    assert key_of(str(address), headers, trusted_proxies=PROXIES, header=header) == key_of(str(address))


@given(addresses, addresses)
def test_two_networks_are_two_clients(one, other):
    same = one == other or (
        one.version == other.version == 6
        and int(one) >> 64 == int(other) >> 64
        and not (one.ipv4_mapped or other.ipv4_mapped)
    )
    if not same:
        same = getattr(one, "ipv4_mapped", None) == other or getattr(other, "ipv4_mapped", None) == one
    assert (key_of(str(one)) == key_of(str(other))) == same


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"trusted_proxies": ["10.0.0.1/8"]}, InvalidRule, r"trusted_proxies\[0\]: 10.0.0.1/8 has host bits set"),
        ({"trusted_proxies": ["10.0.0.0/8", "nginx"]}, InvalidRule, r"trusted_proxies\[1\]: 'nginx' does not appear"),
        ({"trusted_proxies": [None]}, InvalidRule, r"trusted_proxies\[0\]"),
        ({"trusted_proxies": "10.0.0.0/8"}, TypeError, "trusted_proxies must be a list"),
        ({"trusted_proxies": 1}, TypeError, "trusted_proxies must be a list"),
        ({"trusted_hops": -1}, InvalidRule, "trusted_hops must be at least 0, not -1"),
        ({"trusted_hops": True}, TypeError, "trusted_hops must be an int, not True"),
        ({"trusted_hops": 1, "trusted_proxies": ["10.0.0.0/8"]}, InvalidRule, "cannot be combined"),
        ({"header": "x-real-ip"}, InvalidRule, "header must be 'x-forwarded-for' or 'forwarded', not 'x-real-ip'"),
        ({"ipv6_prefix": 0}, InvalidRule, "ipv6_prefix must be from 1 to 128, not 0"),
        ({"ipv6_prefix": "64"}, TypeError, "ipv6_prefix must be an int, not '64'"),
    ],
)
def test_a_malformed_list_of_proxies_is_refused_at_once(options, error, message):
    with pytest.raises(error, match=message):
        by_address(**options)
