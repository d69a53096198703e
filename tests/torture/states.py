"""Drills on the states of a server: restarted empty, full, loading, busy, a replica, or with another password."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import redis

from ratekeeper import FixedWindow, Limiter
from ratekeeper.stores import RedisStore
from tests import servers
from tests.servers import RedisServer, free_port, newest, programs
from tests.torture.crowds import (
    PATIENCE,
    both,
    check,
    check_on_error,
    figure,
    logged,
    until,
    until_away,
    until_back,
    until_stood_in,
)


def restart_empty(restarts: int = 5, limit: int = 1_000) -> str:
    """A server that forgets everything: each time, exactly one more limit is admitted on a key."""
    server = _server()
    admitted = stood_in = 0
    with (
        logged(),
        Limiter(FixedWindow(limit, "365d"), server.url, on_error="closed", deadline=5) as closed,
        Limiter(FixedWindow(limit, "365d"), RedisStore(server.url, remember_denials=False), deadline=5) as local,
    ):
        try:
            for restart in range(restarts + 1):
                if restart:
                    server.stop()
                    for _ in range(2 * limit):  # only this process admits meanwhile
                        assert not closed.hit("one"), "on_error='closed' admitted"
                        stood_in += local.hit("one").allowed
                    server.start()
                    _until_decided(closed)
                    _until_decided(local)
                for limiter in (closed, local):
                    decisions = [limiter.hit("one") for _ in range(limit)]
                    admitted += sum(decision.allowed for decision in decisions)
                    assert not any(decision.degraded for decision in decisions), "degraded while Redis was there"
        finally:
            server.stop()
    assert admitted == limit * (restarts + 1), f"{restarts} restarts: {admitted:,} admitted, {limit:,} are the limit"
    assert stood_in == limit, f"while Redis was away, {stood_in:,} were admitted of {limit:,}"
    return f"{restarts} restarts: {admitted:,} admitted by Redis, {limit:,} for each; {stood_in:,} while it was away"


def _until_decided(limiter: Limiter) -> None:
    until(lambda: not limiter.peek("one").degraded, "back on Redis")


@contextmanager
def _full(server: RedisServer, _: float) -> Iterator[None]:
    with redis.Redis(port=server.port) as client:
        client.config_set("maxmemory", 1)
        yield
        client.config_set("maxmemory", 0)


@contextmanager
def _busy(server: RedisServer, _: float) -> Iterator[None]:
    def loop() -> None:
        with redis.Redis(port=server.port) as client, suppress(redis.RedisError):  # killed in the end
            client.eval("while true do end", 0)

    looping = threading.Thread(target=loop)
    looping.start()
    yield
    assert server.ask(b"PING\r\n").startswith(b"-BUSY"), "the server was not busy"
    server.ask(b"SCRIPT KILL\r\n")
    looping.join()


@contextmanager
def _replica(server: RedisServer, _: float) -> Iterator[None]:
    with redis.Redis(port=server.port) as client:
        client.replicaof("127.0.0.1", str(free_port()))
        yield
        client.replicaof("NO", "ONE")


@contextmanager
def _other_password(server: RedisServer, _: float) -> Iterator[None]:
    with redis.Redis(port=server.port, password="old", single_connection_client=True) as client:
        client.config_set("requirepass", "new")
        client.client_kill_filter(_type="normal", skipme=True)
        yield
        client.config_set("requirepass", "old")


def _drill(
    title: str, state: Callable[[RedisServer, float], object], *options: str, password: str = ""
) -> Callable[[int, int, float], str]:
    def drill(threads: int = 50, tasks: int = 500, seconds: float = 3.0) -> str:
        server = RedisServer(programs()[newest()], *options)
        url = server.url.replace("//", f"//:{password}@") if password else server.url
        try:
            with logged() as lines, both(url, threads, tasks) as crowds:
                with state(server, seconds):  # type: ignore[attr-defined]
                    until_away(crowds)
                    check_on_error(url)
                    time.sleep(seconds)
                    until_stood_in(crowds)
                back = until_back(crowds)
        finally:
            server.stop()
        check(crowds, lines)
        return figure(crowds, back)

    drill.__doc__ = f"A server that {title}: every call is answered by on_error, and Redis decides again soon after."
    return drill


full = _drill("is out of memory", _full)
busy = _drill("is busy with a script that does not end", _busy, "--lua-time-limit", "50")
readonly = _drill("has become a replica", _replica)
password = _drill("has another password now", _other_password, "--requirepass", "old", password="old")
loading = _drill("loads its data", lambda server, seconds: servers.loading(server, seconds + PATIENCE))


def _server() -> RedisServer:
    return RedisServer(programs()[newest()])


DRILLS = {
    "restart_empty": restart_empty,
    "full": full,
    "loading": loading,
    "busy": busy,
    "readonly": readonly,
    "password": password,
}
