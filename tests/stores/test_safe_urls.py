"""Nothing that is shown of a store's URL is a secret."""

import asyncio
import subprocess
import sys
import traceback

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratekeeper import AsyncLimiter, InvalidRule, Limiter, StoreUnavailable
from ratekeeper.stores import from_url
from ratekeeper.stores.safe_urls import safe
from tests import servers

SECRET = "s3cret"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://localhost:6379/0", "redis://localhost:6379/0"),
        ("async+rediss://[::1]:6379", "async+rediss://[::1]:6379"),
        ("redis+cluster://a:1,b,[::1]:2", "redis+cluster://a:1,b,[::1]:2"),
        ("redis+sentinel://a:1,b/main/3", "redis+sentinel://a:1,b/main/3"),
        ("unix:///run/redis.sock", "unix:///run/redis.sock"),
        ("sqlite:///var/lib/limits 1.db", "sqlite:///var/lib/limits 1.db"),
        ("memory://", "memory://"),
        ("redis://ada:s3cret@host/0?password=s3cret", "redis://***@host/0"),
        ("redis://s3cret@host", "redis://***@host"),
        ("redis://:s3cret@h#s3cret", "redis://***@h"),
        ("unix://s3cret@/run/redis.sock?password=s3cret", "unix://***@/run/redis.sock"),
        ("redis://u:s3cret", "redis://***"),
        ("redis://u:s3cret/0", "redis://***"),
        ("redis://u:s3cret/x@h", "redis://***"),
        ("redis://u:s3cret?x@h", "redis://***"),
        ("redis://localhost/0?password=s3cret@x", "redis://***"),
        ("redis://localhost/s3cret", "redis://***"),
        ("redis://localhost,s3cret", "redis://***"),
        ("redus://u:s3cret@h", "redus://***@h"),
        ("sqlite://u:s3cret@h/limits.db", "sqlite://***@h/limits.db"),
        ("sqlite://u:s3cret", "sqlite://***"),
        ("redis:/u:s3cret@h", "***"),
        ("u:s3cret", "***"),
        ("u:s3cret://h", "***"),
        ("", ""),
        ("memory", "memory"),
        ("redis:", "redis:"),
        ("://", "://"),
    ],
)
def test_of_a_url_only_what_is_surely_no_secret_is_shown(url, shown):
    assert safe(url) == shown


schemes = st.sampled_from(
    ["redis", "rediss", "valkey", "valkeys", "unix", "memory", "redus", "async+redis"]
    + [f"{name}+{several}" for name in ("redis", "rediss", "valkey") for several in ("cluster", "sentinel")]
)
# (the path of an SQLite file is no secret, whatever it looks like)
around = st.text(st.sampled_from(":/?#@%[]{},;=& \\\"'~.-_9aé\n"), max_size=4)
secrets = st.tuples(around, st.just(SECRET), around).map("".join)


def not_like_an_address(secret):
    """What comes after an @, or in a list, cannot be told from an address."""
    return not set("@,/") & set(secret)


urls = st.one_of(
    st.builds("{}://{}@host".format, schemes, secrets),
    st.builds("{}://u:{}@host:1/0?x=1".format, schemes, secrets),
    st.builds("{}://:{}@host,other/main?x=1".format, schemes, secrets),
    st.builds("{}://u:{}".format, schemes, secrets.filter(not_like_an_address)),
    st.builds("{}://host:1/0?password={}&x=1".format, schemes, secrets),
    st.builds("{}://host?x=1&sentinel_password={}".format, schemes, secrets),
    st.builds("{}://host#{}".format, schemes, secrets.filter(lambda secret: "@" not in secret)),
    st.builds("{}:/u:{}@host".format, schemes, secrets),
    st.builds("{}:u:{}@host".format, schemes, secrets),
    st.builds("u:{}@host".format, secrets),
    secrets,
)


@settings(max_examples=1500)
@given(urls, st.booleans())
def test_no_secret_is_shown_whatever_the_url_looks_like(url, for_asyncio):
    assert SECRET not in safe(url)
    try:
        store = from_url(url, for_asyncio=for_asyncio)
    except (InvalidRule, StoreUnavailable) as error:
        shown = f"{error!r} {error} {''.join(traceback.format_exception(error))}"
    else:
        shown = f"{store!r} {store}"
    assert SECRET not in shown


@pytest.mark.parametrize(
    "store", [b"redis://u:s3cret@h", ("redis://u:s3cret@h",), {"url": "s3cret"}, bytearray(b"s3cret")]
)
def test_what_is_no_url_is_not_shown_either(store):
    with pytest.raises(TypeError) as raised:
        Limiter("1/s", store)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("login", ["s3cret@", "u:s3cret@", ":s3cret@"])
def test_neither_the_log_nor_an_error_shows_a_secret(caplog, login):
    url = f"redis://{login}127.0.0.1:{servers.free_port()}/0?password=s3cret"
    limiter = Limiter("1/s", url)
    assert limiter.hit("k").degraded
    strict = Limiter("1/s", url, on_error="raise")
    with pytest.raises(StoreUnavailable) as raised:
        strict.hit("k")
    shown = f"{limiter!r} {limiter.store!r} {''.join(traceback.format_exception(raised.value))} {caplog.text}"
    assert SECRET not in shown
    assert "redis://***@127.0.0.1" in caplog.text


def test_neither_does_an_async_limiter(caplog):
    async def scenario():
        async with AsyncLimiter("1/s", f"redis://s3cret@127.0.0.1:{servers.free_port()}") as limiter:
            assert (await limiter.hit("k")).degraded
            return repr(limiter)

    assert SECRET not in asyncio.run(scenario()) + caplog.text


@pytest.mark.parametrize("url", ["redis://s3cret@127.0.0.1:1", "redis://u:s3cret", "s3cret://x", "u:s3cret@h"])
@pytest.mark.parametrize("command", [["hit", "1/s", "k"], ["serve", "--port", "0"]])
def test_neither_does_the_command_line(url, command):
    ended = subprocess.run(
        [sys.executable, "-m", "ratekeeper.cli", *command, "--store", url, *(["--help"] if "@127" in url else [])],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.stdout + ended.stderr
    assert SECRET not in ended.stdout + ended.stderr
