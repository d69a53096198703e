"""What can be checked before anything is sent, and the parts that need no server."""

import pytest
import requests

from ratekeeper import AsyncLimiter, InvalidRule, Limiter
from ratekeeper.http.backoff import MAX_SECONDS, Backoff
from ratekeeper.http.outgoing import by_host
from ratekeeper.integrations import httpx2
from ratekeeper.integrations.httpx import AsyncLimitedTransport, LimitedTransport
from ratekeeper.integrations.requests import LimitedAdapter
from ratekeeper.testing import ManualClock
from tests import inside

MAKERS = [
    LimitedTransport,
    AsyncLimitedTransport,
    httpx2.LimitedTransport,
    httpx2.AsyncLimitedTransport,
    LimitedAdapter,
]


async def a_coroutine_function(request):
    return "key"


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"key": "host"}, TypeError, "key must be a callable"),
        ({"key": lambda: "k"}, TypeError, "key must take one argument"),
        ({"key": a_coroutine_function}, TypeError, "key is a coroutine function"),
        ({"cost": 0}, InvalidRule, "cost must be an int of at least 1, not 0"),
        ({"cost": "many"}, TypeError, "cost must be an int of at least 1, not 'many'"),
        ({"cost": {"tokens": 1}}, InvalidRule, "names an unknown rule 'tokens'"),
        ({"cost": lambda: 1}, TypeError, "cost must take one argument"),
        ({"settle": 5}, TypeError, "settle must be a plain function of the answer, not 5"),
        ({"settle": a_coroutine_function}, TypeError, "settle must be a plain function"),
        ({"timeout": -1}, InvalidRule, "timeout must be at least 0 seconds, not -1"),
        ({"timeout": "5s"}, TypeError, "timeout must be a number of seconds or None, not '5s'"),
        ({"retries": -1}, InvalidRule, "retries must be at least 0, not -1"),
        ({"retries": True}, TypeError, "retries must be an int, not True"),
        ({"retry_methods": "POST"}, TypeError, "retry_methods must be a list such as"),
        ({"store": "mysql://"}, InvalidRule, "mysql"),
        ({"headroom": 5}, InvalidRule, "headroom must be from 0 to 0.5, a share of the limit, not 5"),
        ({"headroom": 0.6}, InvalidRule, "headroom must be from 0 to 0.5, a share of the limit, not 0.6"),
    ],
)
def test_what_cannot_work_is_refused_at_once(make, options, error, says):
    with pytest.raises(error, match=says):
        make("10/s", **options)


def test_a_limiter_must_be_of_the_clients_kind():
    with pytest.raises(TypeError, match="limit must be rules or of type Limiter here"):
        LimitedTransport(AsyncLimiter("1/s"))
    with pytest.raises(TypeError, match="limit must be rules or of type AsyncLimiter here"):
        AsyncLimitedTransport(Limiter("1/s"))


def test_a_limiter_has_its_store_already():
    with pytest.raises(InvalidRule, match="store cannot be combined with a limiter, which already has one"):
        LimitedAdapter(Limiter("1/s"), "redis://localhost")


def test_the_rules_of_a_limiter_have_their_headroom_already():
    with pytest.raises(InvalidRule, match=r"write Limiter\(with_headroom\(rules, 0.05\), ...\)"):
        LimitedTransport(Limiter("10/s"), headroom=0.05)


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("https://api.example.com/v1?q=1", "host:api.example.com"),
        ("https://API.Example.com:443/v1", "host:api.example.com"),
        ("http://api.example.com.:80", "host:api.example.com"),
        ("http://api.example.com:443/", "host:api.example.com:443"),
        ("https://user:secret@api.example.com/", "host:api.example.com"),
        ("http://[2001:db8::1]:8080/", "host:2001:db8::1:8080"),
        ("https://bücher.example/", "host:xn--bcher-kva.example"),
    ],
)
def test_one_host_is_one_key(url, key):
    assert by_host(requests.Request("GET", url).prepare()) == key


def test_no_host_is_no_key():
    request = requests.PreparedRequest()
    request.url = "file:///etc/hosts"
    assert by_host(request) is None


@pytest.fixture
def clock():
    return ManualClock(1000)


def seconds_held(backoff, key, clock):
    return max(0, (backoff.until(key) - clock()) / 1e9)


def test_of_two_backoffs_the_longer_one_stays(clock):
    backoff = Backoff(clock)
    backoff.back_off("k", 5)
    backoff.back_off("k", 3)
    assert seconds_held(backoff, "k", clock) == 5
    backoff.back_off("k", 8)
    assert seconds_held(backoff, "k", clock) == 8


def test_a_backoff_is_forgotten_when_it_is_over(clock):
    backoff = Backoff(clock)
    backoff.back_off("k", 5)
    clock.advance(5)
    assert backoff.until("k") <= clock()
    assert inside.backoffs(backoff) == {}


def test_a_server_cannot_hold_a_key_back_for_ever(clock):
    backoff = Backoff(clock)
    backoff.back_off("k", 10**14)
    assert seconds_held(backoff, "k", clock) == MAX_SECONDS == 86_400


def test_the_number_of_keys_that_are_held_back_is_bounded(clock):
    backoff = Backoff(clock, max_keys=10)
    for number in range(100):
        backoff.back_off(number, 100 - number)
        assert len(inside.backoffs(backoff)) <= 10
    assert seconds_held(backoff, 0, clock) == 100  # those that end first are dropped first


def test_what_is_over_makes_room_first(clock):
    backoff = Backoff(clock, max_keys=3)
    backoff.back_off("short", 1)
    backoff.back_off(("tuple", 1), 100)
    backoff.back_off(b"bytes", 50)
    clock.advance(1)
    backoff.back_off("new", 10)
    assert set(inside.backoffs(backoff)) == {("tuple", 1), b"bytes", "new"}
