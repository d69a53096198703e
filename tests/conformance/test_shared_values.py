"""Values that processes share on a store: read, and replaced only by those who know what they replace."""

import asyncio
import functools
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from ratekeeper import Limiter, StoreUnavailable
from ratekeeper.stores import AsyncRedisStore, MemoryStore, RedisStore, SqliteStore
from ratekeeper.stores.protocol import SharedValues
from ratekeeper.testing import ManualClock
from tests import clusters, faces, servers

_names = itertools.count()
NOW = 1_700_000_000


class Sharing:
    """A store's shared values, with calls that wait."""

    def __init__(self, store, layer):
        self.store = store
        self.layer = layer

    def read(self, name, most=None):
        return _waited(self.layer.read_shared(name, most))

    def replace(self, name, before, content):
        return _waited(self.layer.replace_shared(name, before, content))


def _waited(coming):
    async def wait():
        return await coming

    return faces.loop.run_until_complete(wait()) if hasattr(coming, "__await__") else coming


@functools.cache
def sentinels():
    return clusters.Sentinels(servers.programs()[servers.newest()])


URLS = {
    "Redis": lambda: servers.shared(servers.newest()).url,
    "Cluster": lambda: clusters.shared_cluster(servers.newest()).url,
    "Sentinel": lambda: sentinels().url,
}


@pytest.fixture(
    params=["memory", "memory, asyncio", "SQLite", "SQLite, asyncio"]
    + [f"{name}{kind}" for name in URLS for kind in ("", ", asyncio")]
)
def sharing(request, tmp_path):
    name, _, kind = request.param.partition(", ")
    if name == "memory":
        store = MemoryStore()
    elif name == "SQLite":
        store = SqliteStore(tmp_path / "limits.db")
    else:
        store = (AsyncRedisStore if kind else RedisStore)(URLS[name]())
    sharing = Sharing(store, store.for_asyncio() if kind else store.for_threads())
    yield sharing
    _waited(sharing.layer.close())


@pytest.fixture
def name():
    return f"value {next(_names)}"


def test_every_store_has_shared_values(sharing):
    assert isinstance(sharing.layer, SharedValues)


def test_a_value_that_was_never_written_is_empty(sharing, name):
    assert sharing.read(name).content == b""
    assert sharing.read(name, 8).content == b""


def test_a_value_is_what_was_written_last(sharing, name):
    assert sharing.replace(name, b"", b"1 first \0\xff") is True
    assert sharing.replace(name, b"1 first", b"2 second") is True
    assert sharing.read(name).content == b"2 second"
    assert sharing.read(name, 3).content == b"2 s"


def test_only_who_knows_its_beginning_replaces_a_value(sharing, name):
    sharing.replace(name, b"", b"1 first")
    assert sharing.replace(name, b"", b"2") is False
    assert sharing.replace(name, b"2", b"2") is False
    assert sharing.replace(name, b"1 first and more", b"2") is False
    assert sharing.replace(f"{name}, another", b"1", b"2") is False
    assert sharing.read(name).content == b"1 first"
    assert sharing.read(f"{name}, another").content == b""


def test_a_large_value_is_kept_as_it_is(sharing, name):
    large = bytes(range(256)) * 8_192  # 2 MiB
    assert sharing.replace(name, b"", large)
    assert sharing.read(name).content == large
    assert sharing.read(name, 300).content == large[:300]


def test_of_those_who_replace_the_same_value_one_does(name, tmp_path):
    path = tmp_path / "limits.db"
    SqliteStore(path).replace_shared(name, b"", b"0 ")
    for url in (f"sqlite:///{path}", servers.shared(servers.newest()).url):
        kind = RedisStore if url.startswith("redis") else SqliteStore
        stores = [kind(url if kind is RedisStore else path) for _ in range(4)]
        if kind is RedisStore:
            stores[0].replace_shared(name, b"", b"0 ")
        start = threading.Barrier(4)

        def add(store, start=start):
            start.wait()
            done = 0
            while done < 25:
                before = store.read_shared(name).content
                done += store.replace_shared(name, before, b"%d " % (int(before) + 1))
            return done

        with ThreadPoolExecutor(4) as pool:
            assert sum(pool.map(add, stores)) == 100
        assert stores[0].read_shared(name).content == b"100 "


def test_the_time_is_the_stores(name):
    clock = ManualClock(NOW)
    for store in (MemoryStore(), RedisStore(servers.shared(servers.newest()).url)):
        limiter = Limiter("1/s", store, clock=clock, prefix=name)
        assert store.read_shared(name).now_us == NOW * 1_000_000
        del limiter
    seconds, microseconds = redis.from_url(servers.shared(servers.newest()).url).time()
    now_us = RedisStore(servers.shared(servers.newest()).url).read_shared(name).now_us
    assert 0 <= now_us - (seconds * 1_000_000 + microseconds) < 60_000_000


def test_a_lost_script_and_a_moved_slot_are_no_errors(name):
    cluster = clusters.shared_cluster(servers.newest())
    store = RedisStore(cluster.url)
    assert store.replace_shared(name, b"", b"1")
    for server in cluster.masters:
        clusters.client(server).script_flush()
    slot = clusters.client(cluster.masters[0]).execute_command("CLUSTER KEYSLOT", name)
    cluster.move(slot, next(server for server in cluster.masters if server is not cluster.holder(slot)))
    assert store.replace_shared(name, b"1", b"2")
    assert store.read_shared(name).content == b"2"
    store.close()


def test_a_store_that_is_away_says_so_and_is_asked_again_later(name):
    server = servers.RedisServer(servers.programs()[servers.newest()])

    async def main():
        store = AsyncRedisStore(server.url)
        assert await store.replace_shared(name, b"", b"1")
        server.stop()
        with pytest.raises(StoreUnavailable):
            await store.read_shared(name)
        with pytest.raises(StoreUnavailable):
            await store.replace_shared(name, b"1", b"2")
        server.start()
        assert (await store.read_shared(name)).content == b""
        await store.close()

    asyncio.run(main())
    server.stop()


def test_a_file_keeps_shared_values_beside_keys(tmp_path, name):
    store = SqliteStore(tmp_path / "limits.db")
    limiter = Limiter("fixed-window 5/day", store)
    store.replace_shared(name, b"", b"kept")
    limiter.hit("k", 2)
    limiter.reset_all()
    store.close()
    assert SqliteStore(tmp_path / "limits.db").read_shared(name).content == b"kept"
    assert limiter.peek("k").remaining == 5


def test_a_memory_store_that_is_closed_has_forgotten_shared_values(name):
    store = MemoryStore()
    store.replace_shared(name, b"", b"1")
    store.close()
    assert store.read_shared(name).content == b""
