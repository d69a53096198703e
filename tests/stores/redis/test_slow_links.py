"""A connection is set up beside decisions: however long that takes, it is there for those that come later.

The link takes 200 ms there and back, of the 500 ms that a decision has; with a login and a database that takes longer.
"""

import asyncio
import os
import signal
import socket
import threading
from contextlib import contextmanager, suppress

import pytest
import redis

from ratekeeper import AsyncLimiter, FixedWindow, Limiter
from tests import clusters, inside, servers
from tests.answering import welcomed
from tests.proxy import Proxy
from tests.waiters import until, untraced

RULE = FixedWindow(10**9, 86_400)
SLOW = 0.1  # seconds in each direction


class InALoop:
    """An AsyncLimiter in an event loop that always runs, called from this thread."""

    def __init__(self, *arguments, **options):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.limiter = AsyncLimiter(*arguments, **options)
        self.store, self.notices = self.limiter.store, self.limiter.notices

    def hit(self, key):
        return self._do(self.limiter.hit(key))

    def hits(self, keys):
        async def all_at_once():
            return await asyncio.gather(*map(self.limiter.hit, keys))

        return self._do(all_at_once())

    def close(self):
        self._do(self.limiter.close())
        self._do(asyncio.sleep(0))  # tasks that were cancelled end
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, call):
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(30)


class InThreads(Limiter):
    def hits(self, keys):
        decisions = []
        threads = [threading.Thread(target=lambda key=key: decisions.append(self.hit(key))) for key in keys]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return decisions


@pytest.fixture(params=[InThreads, InALoop], ids=["Limiter", "AsyncLimiter"])
def face(request):
    return request.param


@pytest.fixture(scope="module")
def secured():
    """A server that asks for a password."""
    server = servers.RedisServer(servers.programs()[servers.newest()], "--requirepass", "secret")
    yield server
    server.stop()


@pytest.fixture
def admin(secured):
    """A client of that server, which is empty and knows no script."""
    with redis.Redis(port=secured.port, password="secret") as admin:
        admin.flushall()
        admin.script_flush()
        yield admin
        until(lambda: admin.info("clients")["connected_clients"] == 1, "all connections are closed")


@contextmanager
def limiter_on(face, url, **options):
    limiter = face(RULE, url, **{"deadline": 0.5, **options})
    try:
        yield limiter
    finally:
        limiter.close()


def login(proxy):
    """Return the URL to log in behind a proxy, to a database of one's own: two exchanges."""
    return proxy.url.replace("//", "//:secret@").replace("/0", "/1")


def until_decided(limiter, key="k"):
    until(lambda: not limiter.hit(key).degraded, "Redis decides")


def test_a_set_up_that_takes_longer_than_a_decision_may_is_for_those_that_come_later(face, secured, admin):
    with Proxy(secured.port, delay=SLOW) as proxy, limiter_on(face, login(proxy)) as limiter:
        assert limiter.hit("k").degraded
        until_decided(limiter)
        assert not any(limiter.hit("k").degraded for _ in range(2))
        assert proxy.connections == 1


def test_a_server_that_comes_back_behind_a_slow_link_is_used_again(face, secured, admin):
    with Proxy(secured.port, delay=SLOW) as proxy, limiter_on(face, login(proxy)) as limiter:
        until_decided(limiter)
        proxy.refuse()
        until(lambda: limiter.hit("k").degraded and limiter.store.is_away, "it is away")
        proxy.mode = "pass"
        until_decided(limiter)


def test_a_server_that_does_not_know_the_script_decides_in_one_exchange(face, secured, admin):
    with redis.Redis(port=secured.port, password="secret") as watcher, watcher.monitor() as monitor:
        with Proxy(secured.port, delay=SLOW) as proxy, limiter_on(face, login(proxy)) as limiter:
            until_decided(limiter)
        admin.echo("the end")
        commands = list(iter(lambda: monitor.next_command()["command"], "ECHO the end"))
    on_the_key = {command.partition(" ")[0] for command in commands if command.startswith("EVAL") and "{k}" in command}
    assert on_the_key == {"EVALSHA"}  # a refusal, and then EVAL, would be two exchanges


def test_a_storm_of_callers_makes_no_more_connections_than_are_used_at_a_time(face, secured, admin):
    with Proxy(secured.port, delay=SLOW) as proxy, limiter_on(face, login(proxy)) as limiter:
        for _ in range(3):
            inside.second_passed(limiter.store)
            limiter.hits([f"k{number}" for number in range(60)])
        assert proxy.connections <= 4
        until_decided(limiter)


def test_a_connection_that_is_set_up_after_its_store_was_closed_is_closed(face, secured, admin):
    with Proxy(secured.port, delay=SLOW) as proxy:
        with limiter_on(face, login(proxy), deadline=0.1) as limiter:
            assert limiter.hit("k").degraded
            until(lambda: proxy.connections == 1, "a connection is under way")
        until(lambda: proxy.open_connections == 0, "the connection is closed")


def test_the_master_that_sentinels_behind_slow_links_name_decides(face, secured, tmp_path):
    sentinels = clusters.Sentinels(servers.programs()[servers.newest()])
    with (
        Proxy(sentinels.ports[0], delay=SLOW) as proxy,
        limiter_on(face, f"redis+sentinel://127.0.0.1:{proxy.port}/{sentinels.name}/1") as limiter,
    ):
        until_decided(limiter)
        assert not any(limiter.hit("k").degraded for _ in range(5))
    sentinels.stop()


def test_a_cluster_behind_slow_links_decides(face):
    cluster = clusters.shared_cluster(servers.newest())
    proxies = {server.port: Proxy(server.port, delay=SLOW) for server in cluster.servers}
    url = "redis+cluster://" + ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies.values())
    with limiter_on(face, url) as limiter:
        inside.behind(limiter.store, lambda address: (address[0], proxies[address[1]].port))
        for key in ("a", "b"):
            until_decided(limiter, key)
        assert not any(limiter.hit(key).degraded for key in ("a", "b"))
    for proxy in proxies.values():
        proxy.stop()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_a_child_that_is_forked_during_a_set_up_makes_a_connection_of_its_own(secured, admin):
    with Proxy(secured.port, delay=SLOW) as proxy, limiter_on(InThreads, login(proxy)) as limiter:
        assert limiter.hit("k").degraded
        with untraced():
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    signal.alarm(20)
                    while limiter.hit("of the child").degraded:
                        pass
                    limiter.close()
                    status = 0
                finally:
                    os._exit(status)
            until_decided(limiter)
            assert os.waitpid(child, 0)[1] == 0
        assert not limiter.hit("k").degraded


def test_a_server_that_closes_each_new_connection_is_not_asked_without_end(face):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        connections = 0

        def welcome():
            nonlocal connections
            with suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    connections += 1
                    with connection:
                        welcomed(connection)

        thread = threading.Thread(target=welcome)
        thread.start()
        with limiter_on(face, f"redis://127.0.0.1:{listening.getsockname()[1]}", deadline=5) as limiter:
            assert limiter.hit("k").degraded
            assert limiter.store.is_away
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
        assert connections <= 10
