import http_sf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekeeper import (
    FixedWindow,
    InvalidRule,
    LeakyBucket,
    Limiter,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
)
from ratekeeper.http import Headers, HeaderWriter, digest
from ratekeeper.testing import ManualClock

RULES = [
    FixedWindow(7, 60),
    SlidingWindowLog(7, "1.5s"),
    SlidingWindowCounter(7, "90s"),
    TokenBucket(7, 0.7),
    LeakyBucket(7, 3),
]
NOW = 1_700_000_023  # 17 s before the next full minute


def told(limiter, decision, options=None, key=None, now=NOW):
    return dict(HeaderWriter(limiter.rules, options or Headers()).fields(decision, key, now))


def a_limiter(given=None, now=NOW):
    return Limiter(given or {"user": FixedWindow(100, 60)}, clock=ManualClock(now))


def test_an_admitted_request_is_told_how_it_stands():
    limiter = a_limiter()
    assert told(limiter, limiter.hit("ada", 58)) == {
        "X-RateLimit-Limit": "100",
        "X-RateLimit-Remaining": "42",
        "X-RateLimit-Reset": "1700000040",
        "RateLimit-Policy": '"user";q=100;w=60',
        "RateLimit": '"user";r=42;t=17',
    }


def test_a_denied_request_is_told_when_to_come_back():
    limiter = a_limiter({"user": TokenBucket(10, 4)})
    limiter.hit("ada", 10)
    assert told(limiter, limiter.hit("ada", 5)) == {
        "X-RateLimit-Limit": "10",
        "X-RateLimit-Remaining": "0",
        "X-RateLimit-Reset": "1700000025",  # 1.25 s, rounded up
        "RateLimit-Policy": '"user";q=10;w=3',  # 2.5 s to fill
        "RateLimit": '"user";r=0;t=2',
        "Retry-After": "2",
    }


@pytest.mark.parametrize("kind", [FixedWindow, SlidingWindowLog, SlidingWindowCounter])
def test_the_window_of_a_policy_is_the_rule_s_own(kind):
    limiter = a_limiter({"user": kind(10, 60)})
    assert told(limiter, limiter.hit("ada"))["RateLimit-Policy"] == '"user";q=10;w=60'


def test_a_cost_that_can_never_fit_is_told_no_time():
    limiter = a_limiter({"user": FixedWindow(10, 60)})
    limiter.hit("ada", 3)
    assert told(limiter, limiter.hit("ada", 11), Headers(legacy=False)) == {
        "RateLimit-Policy": '"user";q=10;w=60',
        "RateLimit": '"user";r=7',
    }


def test_several_rules_give_several_items():
    limiter = a_limiter({"burst": TokenBucket(5, 1), "daily": FixedWindow(1000, 86400)})
    assert told(limiter, limiter.hit("ada", 2), Headers(legacy=False)) == {
        "RateLimit-Policy": '"burst";q=5;w=5, "daily";q=1000;w=86400',
        "RateLimit": '"burst";r=3;t=2, "daily";r=998;t=6377',
    }


def test_in_a_denial_only_the_rules_that_were_exceeded_state_a_time():
    limiter = a_limiter({"burst": TokenBucket(5, 1), "daily": FixedWindow(1000, 86400)})
    limiter.hit("ada", 5)
    assert told(limiter, limiter.hit("ada"), Headers(legacy=False)) == {
        "RateLimit-Policy": '"burst";q=5;w=5, "daily";q=1000;w=86400',
        "RateLimit": '"burst";r=0;t=1, "daily";r=995',
        "Retry-After": "1",
    }


def test_a_rule_may_have_a_quota_unit():
    limiter = a_limiter({"bytes": FixedWindow(65535, 60)})
    headers = told(limiter, limiter.hit("ada"), Headers(units={"bytes": "content-bytes"}))
    assert headers["RateLimit-Policy"] == '"bytes";q=65535;qu="content-bytes";w=60'


def test_a_partition_key_is_shown_in_both_fields():
    limiter = a_limiter()
    headers = told(limiter, limiter.hit("ada"), Headers(partition_key=str.encode), key="ada")
    assert headers["RateLimit-Policy"] == '"user";q=100;w=60;pk=:YWRh:'
    assert headers["RateLimit"] == '"user";r=99;t=17;pk=:YWRh:'


def test_each_rule_has_the_partition_key_of_its_own_key():
    limiter = a_limiter({"user": FixedWindow(10, 60), "all": FixedWindow(100, 60)})
    key = {"user": "ada", "all": "a"}
    headers = told(limiter, limiter.hit(key), Headers(partition_key=str.encode), key=key)
    assert headers["RateLimit"] == '"user";r=9;t=17;pk=:YWRh:, "all";r=99;t=17;pk=:YQ==:'


def test_a_digest_stands_for_a_key_without_giving_it_away():
    assert len(digest("ada")) == 12
    assert digest("ada") == digest("ada") != digest(b"ada")


def test_version_7_of_the_draft_can_be_chosen():
    limiter = a_limiter()
    assert told(limiter, limiter.hit("ada", 58), Headers(legacy=False, draft=7)) == {
        "RateLimit-Policy": "100;w=60",
        "RateLimit": "limit=100, remaining=42, reset=17",
    }


def test_version_6_of_the_draft_can_be_chosen():
    limiter = a_limiter()
    assert told(limiter, limiter.hit("ada", 58), Headers(legacy=False, draft=6)) == {
        "RateLimit-Limit": "100",
        "RateLimit-Remaining": "42",
        "RateLimit-Reset": "17",
        "RateLimit-Policy": "100;w=60",
    }


ALL = [
    Headers(),
    Headers(legacy=False),
    Headers(draft=7),
    Headers(draft=6),
    Headers(partition_key=digest),
    Headers.off(),
]


@pytest.mark.parametrize("options", ALL)
@pytest.mark.parametrize("names", [["user"], ["user", "tenant"], ['say "hi" \\ ü']])
def test_the_headers_in_bytes_are_the_same(options, names):
    limiter = a_limiter({name: TokenBucket(10, 4) for name in names})
    writer = HeaderWriter(limiter.rules, options)
    for cost in (3, 6, 2, 11):
        decision = limiter.hit("ada", cost)
        expected = [(name.lower().encode(), value.encode()) for name, value in writer.fields(decision, "ada", NOW)]
        assert writer.encoded(decision, "ada", NOW) == expected


def test_all_can_be_off():
    limiter = a_limiter()
    assert told(limiter, limiter.hit("ada", 101), Headers.off()) == {}


def test_only_retry_after_can_be_on():
    limiter = a_limiter()
    limiter.hit("ada", 100)
    assert told(limiter, limiter.hit("ada"), Headers(legacy=False, draft=None)) == {"Retry-After": "17"}


@pytest.mark.parametrize("draft", [11, 0, "10"])
def test_an_unknown_version_is_refused(draft):
    with pytest.raises(InvalidRule, match="draft must be 10, 7, 6 or None, not"):
        Headers(draft=draft)


def test_a_partition_key_must_be_a_function():
    with pytest.raises(TypeError, match="units must be a mapping of rule names to units"):
        Headers(units={"a": 5})
    with pytest.raises(TypeError, match="partition_key must be a callable or None, not 'ada'"):
        Headers(partition_key="ada")


def test_any_name_of_a_rule_makes_a_field_that_an_independent_parser_reads():
    limiter = a_limiter({'say "hi" \\ ünïcode\n': FixedWindow(1, 60), "b": FixedWindow(2, 60)})
    headers = told(limiter, limiter.hit("ada"))
    assert http_sf.parse(headers["RateLimit"].encode(), tltype="list") == [
        ('say "hi" \\ \\xfcn\\xefcode\\n', {"r": 0, "t": 17}),
        ("b", {"r": 1, "t": 17}),
    ]


@given(
    st.dictionaries(st.text(min_size=1, max_size=20), st.sampled_from(RULES), min_size=1, max_size=3),
    st.lists(st.integers(1, 40), min_size=1, max_size=5),
)
def test_an_independent_parser_reads_every_field(given_rules, costs):
    limiter = Limiter(given_rules, clock=ManualClock())
    for cost in costs:
        headers = told(limiter, limiter.hit("k", cost), Headers(partition_key=digest), key="k")
        policies = http_sf.parse(headers["RateLimit-Policy"].encode(), tltype="list")
        standing = http_sf.parse(headers["RateLimit"].encode(), tltype="list")
        assert [parameters["q"] for _, parameters in policies] == [rule.limit for rule in limiter.rules.values()]
        assert [name for name, _ in policies] == [name for name, _ in standing]
        assert {parameters["pk"] for _, parameters in policies + standing} == {digest("k")}


@given(st.lists(st.tuples(st.integers(0, 3_000_000), st.integers(1, 7)), min_size=3, max_size=20))
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.text)
def test_the_wait_that_retry_after_states_is_always_enough(rule, traffic):
    clock = ManualClock()
    limiter = Limiter({"r": rule, "coarse": FixedWindow(40, 30)}, clock=clock)
    for microseconds, cost in traffic:
        clock.advance(microseconds / 1e6)
        decision = limiter.hit("k", cost)
        if not decision.allowed:
            headers = told(limiter, decision, now=clock() / 1e9)
            items = http_sf.parse(headers["RateLimit"].encode(), tltype="list")
            wait = int(headers["Retry-After"])
            assert wait == max(parameters.get("t", 0) for _, parameters in items)
            assert int(headers["X-RateLimit-Reset"]) >= clock() / 1e9 + decision.retry_after
            assert wait - 1 < decision.retry_after <= wait
            clock.advance(wait)
            assert limiter.hit("k", cost).allowed


def test_without_a_time_the_reset_counts_from_now():
    limiter = Limiter({"user": FixedWindow(1, "400 days")})
    headers = dict(HeaderWriter(limiter.rules, Headers()).fields(limiter.hit("ada")))
    assert int(headers["X-RateLimit-Reset"]) % (400 * 86_400) in (0, 1)  # the end of a window, rounded up
