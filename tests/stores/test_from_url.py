import pytest

from ratekeeper import InvalidRule
from ratekeeper.stores import MemoryStore, RedisStore, from_url
from ratekeeper.stores.redis import urls
from ratekeeper.stores.redis.urls import NodeAddress
from tests import inside


@pytest.mark.parametrize("url", ["memory://", "async+memory://"])
def test_memory_is_a_store_of_its_own(url):
    assert isinstance(from_url(url), MemoryStore)
    assert from_url(url) is not from_url(url)


@pytest.mark.parametrize("url", ["", "memory", "memory:", "ftp://x", "://", "redus://localhost"])
def test_an_unknown_scheme_is_refused_with_the_url(url):
    with pytest.raises(InvalidRule) as caught:
        from_url(url)
    assert f"store {url!r} has an unknown scheme; use " in str(caught.value)


def test_memory_takes_nothing_behind_it():
    with pytest.raises(InvalidRule, match=r"store 'memory://x' must be just 'memory://'; .*MemoryStore\(max_keys"):
        from_url("memory://x")


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("redis://h?foo=bar", "cannot be read"),
        ("redis://h/abc", "cannot be read"),
        ("redis://h:port", "cannot be read"),
        ("redis://.host", "cannot be read"),
        ("redis://:p\udcff@h", "cannot be read"),
        ("unix:///path?client_name=\udcff", "cannot be read"),
        ("redis+sentinel://h/\udcff", "cannot be read"),
        ("rediss://h?ssl_cert_reqs=perhaps", "cannot be read"),
        ("redis://h?connection_class=x", "'connection_class' in its query"),
        ("redis://h?parser_class=x", "'parser_class' in its query"),
        ("redis+cluster://h/3", "a cluster has only database 0"),
        ("redis+cluster://h/abc", "cannot be read"),
        ("redis+cluster://h:0,i", "cannot be read"),
        ("redis+sentinel://h", "does not name the master"),
        ("redis+sentinel://h/m?sentinel_pasword=x", "cannot be read"),
        ("redis+sentinel://h/m/abc", "cannot be read"),
        ("redis://h,i", "cannot be read"),
        ("redis://u:12/x@h", "cannot be read"),  # whose password has a / in it, and would be left out
        ("redis+cluster://u:12/x@h", "cannot be read"),
    ],
)
@pytest.mark.parametrize("for_asyncio", [False, True])
def test_a_url_that_cannot_be_used_is_refused_at_once(url, complaint, for_asyncio):
    with pytest.raises(InvalidRule, match=complaint):
        from_url(url, for_asyncio=for_asyncio)


@pytest.mark.parametrize(
    "url",
    [
        "redis+cluster://host?password=s3cret&foo=1",
        "redis+cluster://host:1?password=s3cret&foo=1",
        "redis+sentinel://u:s3cret@host/m?foo=1",
        "redis+sentinel://host/m?sentinel_password=s3cret&foo=1",
        "redis:/:s3cret@h",
        ":s3cret@h:6379",
        "memory://:s3cret@h",
        "rediss://:s3cret@h?ssl_cert_reqs=perhaps",
    ],
)
def test_no_complaint_shows_a_password(url):
    with pytest.raises(InvalidRule) as caught:
        from_url(url)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "addresses"),
    [
        ("redis+cluster://a,b:7001", [("a", 6379), ("b", 7001)]),
        ("redis+cluster://[::1]:7000,[::2]", [("::1", 7000), ("::2", 6379)]),
        ("rediss+cluster://u:p@a?ssl_cert_reqs=none", [("a", 6379)]),
        ("redis+sentinel://a,b:1/m/2?sentinel_password=x", [("a", 26379), ("b", 1)]),
        ("valkey+cluster://a/0", [("a", 6379)]),
    ],
)
def test_addresses_are_read_from_a_url(url, addresses):
    assert [tuple(address[:2]) for address in urls.read(url).addresses] == addresses
    from_url(url)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://h:1/0?password=p@ss/w", None),
        ("redis+cluster://h:1?password=p@ss/w", NodeAddress("h", 1)),
        ("redis+sentinel://h:1/m?sentinel_password=p@ss/w", NodeAddress("h", 1, is_sentinel=True)),
    ],
)
def test_a_password_in_the_query_may_have_what_ends_one_in_front_of_the_host(url, address):
    _, arguments = inside.servers(from_url(url)).topology.connection(address)
    assert (arguments["host"], arguments["port"], arguments["password"]) == ("h", 1, "p@ss/w")


@pytest.mark.parametrize("url", ["redis+clutser://h", "unix+cluster:///tmp/socket"])
def test_a_store_of_an_unknown_scheme_is_refused(url):
    with pytest.raises(InvalidRule, match="has an unknown scheme"):
        RedisStore(url)
