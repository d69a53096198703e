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


@pytest.mark.parametrize("prefix", ["RateLimit", "X-RateLimit", "X-Rate-Limit"])
@pytest.mark.parametrize(
    "reset",
    [
        *("30", "30.0", f"{NOW + 30}", f"{NOW + 30}000"),
        *("30s", "0m30s", "0h0m30.0s", "30000ms", "29s1000ms"),
        *("2023-11-14T22:13:50Z", "2023-11-14t22:13:50.0z", "2023-11-14T23:13:50+01:00"),
    ],
)
def test_a_reset_is_a_time_to_wait_or_a_moment(prefix, reset):
    assert parse_headers({f"{prefix}-Remaining": "0", f"{prefix}-Reset": reset}, now=NOW).wait == 30.0


@pytest.mark.parametrize(
    "reset",
    ["", "soon", "6m 0s", "s", "-6s", "1e3s", "6m0s!", "2023-11-14", "2023-11-14T22:13:50", "2023-13-14T22:13:50Z"],
)
def test_a_reset_that_cannot_be_read_is_ignored(reset):
    limits = parse_headers({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": reset}, now=NOW)
    assert limits.limits == (ServiceLimit("default", 0, None),)
    assert limits.wait == 0.0


def test_a_moment_that_is_over_is_no_wait():
    headers = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "2023-11-14T22:13:19Z"}
    assert parse_headers(headers, now=NOW).wait == 0.0


def test_the_headers_of_openai_are_read():
    headers = {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-limit-tokens": "150000",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-remaining-tokens": "149984",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-reset-tokens": "6ms",
    }
    limits = parse_headers(headers)
    assert limits.limits == (
        ServiceLimit("requests", 59, 1.0, next_after=1.0),
        ServiceLimit("tokens", 149_984, 0.006, next_after=0.006 / 16),
    )
    assert limits.wait == 0.0


def test_the_headers_of_anthropic_are_read():
    headers = {
        "date": "Tue, 14 Nov 2023 22:13:20 GMT",
        "anthropic-ratelimit-requests-limit": "50",
        "anthropic-ratelimit-requests-remaining": "49",
        "anthropic-ratelimit-requests-reset": "2023-11-14T22:13:21Z",
        "anthropic-ratelimit-input-tokens-limit": "30000",
        "anthropic-ratelimit-input-tokens-remaining": "15000",
        "anthropic-ratelimit-input-tokens-reset": "2023-11-14T22:13:50Z",
        "anthropic-priority-input-tokens-limit": "10000",  # used up, requests go on at the other limits
        "anthropic-priority-input-tokens-remaining": "0",
        "anthropic-priority-input-tokens-reset": "2023-11-14T22:13:50Z",
    }
    limits = parse_headers(headers)
    assert limits.limits == (
        ServiceLimit("requests", 49, 1.0, next_after=1.0),
        ServiceLimit("input-tokens", 15_000, 30.0, next_after=30 / 15_000),
    )
    assert limits.wait == 0.0


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        # a limit of 10 that is used up and full again after 6 minutes admits one request every 36 seconds
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0s"}, 360),
        (
            {
                "x-ratelimit-limit-requests": "10",
                "x-ratelimit-remaining-requests": "0",
                "x-ratelimit-reset-requests": "6m0s",
            },
            36,
        ),
        (
            {
                "anthropic-ratelimit-requests-limit": "10",
                "anthropic-ratelimit-requests-remaining": "0",
                "anthropic-ratelimit-requests-reset": "2023-11-14T22:19:20Z",
            },
            36,
        ),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-limit-requests": "10"}, 0),
    ],
)
def test_a_limit_with_a_name_is_waited_for_until_it_admits_one_more(headers, wait):
    assert parse_headers(headers, now=NOW).wait == wait


def test_milliseconds_are_more_exact_than_seconds():
    assert parse_headers({"retry-after": "2", "retry-after-ms": "1250"}).retry_after == 1.25
    assert parse_headers({"retry-after": "2", "retry-after-ms": "soon"}).retry_after == 2.0


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
    names = ["RateLimit", "RateLimit-Policy", "Retry-After", "Retry-After-Ms", "X-RateLimit-Remaining", "Date"]
    assert parse_headers(dict.fromkeys(names, text)).wait >= 0


@given(st.text(max_size=60) | st.from_regex(r"([0-9.]+(h|ms|m|s|x))+") | st.from_regex(r"[0-9]{4}-.*T.*Z"))
def test_no_reset_makes_the_parser_fail(text):
    for remaining in ("X-RateLimit-Remaining", "X-RateLimit-Remaining-A", "Anthropic-RateLimit-A-Remaining"):
        headers = {remaining: "0", remaining.replace("Remaining", "Reset"): text}
        assert parse_headers(headers, now=NOW).wait >= 0


@given(st.text(alphabet='"ab;=r1t,: ?.\\-', max_size=30))
def test_no_field_of_its_own_letters_makes_the_parser_fail(text):
    assert parse_headers({"RateLimit": text, "RateLimit-Policy": text}).wait >= 0
