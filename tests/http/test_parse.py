import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekeeper import FixedWindow, Limiter, TokenBucket
from ratekeeper.http import Headers, HeaderWriter, QuotaPolicy, ServerLimits, ServiceLimit, digest, parse_headers
from ratekeeper.testing import ManualClock

NOW = 1_700_000_000


@pytest.mark.parametrize("draft", [10, 7, 6, None])
def test_what_a_server_writes_its_client_reads(draft):
    limiter = Limiter({"user": TokenBucket(10, 4)}, clock=ManualClock(NOW))
    limiter.hit("ada", 10)
    written = HeaderWriter(limiter.rules, Headers(draft=draft)).fields(limiter.hit("ada", 6), now=NOW)
    limits = parse_headers(written, now=NOW)
    assert limits.retry_after == limits.wait == 2.0
    assert [(limit.remaining, limit.reset_after) for limit in limits.limits] == [(0, 2.0)]


def test_units_and_partition_keys_come_through():
    limiter = Limiter({"a": FixedWindow(10, 60), "b": FixedWindow(5, 10)}, clock=ManualClock(NOW))
    options = Headers(units={"a": "content-bytes"}, partition_key=digest)
    limits = parse_headers(HeaderWriter(limiter.rules, options).fields(limiter.hit("k"), key="k"), now=NOW)
    assert limits.policies == (
        QuotaPolicy("a", 10, 60, "content-bytes", digest("k")),
        QuotaPolicy("b", 5, 10, "requests", digest("k")),
    )
    assert limits.limits == (ServiceLimit("a", 9, 40.0, digest("k")), ServiceLimit("b", 4, 10.0, digest("k")))


def test_no_headers_say_nothing():
    assert parse_headers({}) == ServerLimits((), (), None)
    assert parse_headers({}).wait == 0.0


def test_an_exhausted_limit_is_waited_for_and_others_are_not():
    limits = parse_headers({"RateLimit": '"a";r=0;t=3, "b";r=5;t=3600, "c";r=0;t=7, "d";r=0'})
    assert limits.wait == 7.0


@pytest.mark.parametrize("reset", ["30", f"{NOW + 30}", f"{NOW + 30}000"])
def test_a_reset_is_a_time_to_wait_or_a_moment_in_seconds_or_milliseconds(reset):
    assert parse_headers({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": reset}, now=NOW).wait == 30.0


def test_retry_after_takes_precedence():
    assert parse_headers({"Retry-After": "2", "RateLimit": '"a";r=0;t=3600'}).wait == 2.0


def test_retry_after_may_be_a_date():
    headers = {"Date": "Sun, 06 Nov 1994 08:49:37 GMT", "Retry-After": "Sun, 06 Nov 1994 08:50:00 GMT"}
    assert parse_headers(headers).retry_after == 23.0


def test_a_date_in_the_past_is_no_wait():
    assert parse_headers({"Retry-After": "Sun, 06 Nov 1994 08:50:00 GMT"}).retry_after == 0.0


def test_lines_of_one_field_are_one_list():
    limits = parse_headers([("ratelimit", '"a";r=1'), ("RATELIMIT", '"b";r=2')])
    assert [limit.policy for limit in limits.limits] == ["a", "b"]


def test_a_reset_of_the_headers_that_everybody_made_up_is_a_moment_or_a_time():
    moment = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(NOW + 9)}
    assert parse_headers(moment, now=NOW).wait == 9.0
    assert parse_headers({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "9"}, now=NOW).wait == 9.0


@pytest.mark.parametrize(
    "field",
    [
        '"a";r=1,',
        '"a" r=1',
        '"a;r=1',
        "a;r=:?:",
        '"a";r=1;;',
        ";r=1",
        '"a";R=1',
        '"a";r=-1',
        '"a";r=1.5',
        '"a"',
        "x" * 9000,
    ],
)
def test_a_malformed_field_is_ignored(field):
    assert parse_headers({"RateLimit": field, "RateLimit-Policy": field}) == ServerLimits((), (), None)


@given(st.text(max_size=60))
def test_no_field_makes_the_parser_fail(text):
    names = ["RateLimit", "RateLimit-Policy", "Retry-After", "X-RateLimit-Remaining", "X-RateLimit-Reset", "Date"]
    assert parse_headers(dict.fromkeys(names, text)).wait >= 0


@given(st.text(alphabet='"ab;=r1t,: ?.\\-', max_size=30))
def test_no_field_of_its_own_letters_makes_the_parser_fail(text):
    assert parse_headers({"RateLimit": text, "RateLimit-Policy": text}).wait >= 0
