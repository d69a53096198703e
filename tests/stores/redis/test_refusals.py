"""Whatever a server answers instead of a decision is counted each time and logged once, with what to do about it."""

import re
import shutil
import socket
import threading
from contextlib import suppress

import pytest
import redis

from ratekeeper import FixedWindow, Limiter, SlidingWindowLog
from tests import clusters, inside, servers
from tests.answering import Answering
from tests.faces import FACES


@pytest.fixture(params=FACES)
def face(request):
    return request.param


@pytest.fixture
def own():
    """A server of the test's own, which it may break."""
    server = servers.RedisServer(servers.programs()[servers.newest()], "--lua-time-limit", "10")
    yield server
    server.stop()


def client(server, **options):
    return redis.Redis(port=server.port, single_connection_client=True, **options)


def degraded(face, caplog, url, rule="fixed-window 100/day"):
    """Hit three times; return what is logged, which must be one line."""
    limiter = FACES[face](rule, url, deadline=5)
    try:
        assert [limiter.hit("k").degraded for _ in range(3)] == [True] * 3
        assert limiter.notices.counts["degraded"] == 3
    finally:
        limiter.close()
    (line,) = (record.getMessage() for record in caplog.records if record.getMessage().startswith("degraded: "))
    return line


def test_a_replica(face, own, caplog):
    with client(own) as admin:
        admin.replicaof("127.0.0.1", servers.free_port())
    assert "the server is a replica, which cannot write; use its master" in degraded(face, caplog, own.url)


def test_a_replica_that_has_lost_its_master(face, own, caplog):
    with client(own) as admin:
        admin.config_set("replica-serve-stale-data", "no")
        admin.replicaof("127.0.0.1", servers.free_port())
        line = degraded(face, caplog, own.url)
    assert "the server is a replica that has lost its master; use the master" in line


def test_a_server_that_is_full(face, own, caplog):
    with client(own) as admin:
        admin.config_set("maxmemory", 1)
    assert "Redis is full (maxmemory); raise it, or free memory" in degraded(face, caplog, own.url)


def test_a_server_that_loads(face, own, caplog):
    with servers.loading(own):
        assert "Redis is still loading its data; decisions resume afterwards" in degraded(face, caplog, own.url)


def _said(server):
    with suppress(OSError):
        return server.ask(b"PING\r\n").split()[0]


def test_a_server_that_is_busy(face, own, caplog):
    def loop():
        with client(own) as busy, suppress(redis.RedisError):  # killed in the end
            busy.eval("while true do end", 0)

    looping = threading.Thread(target=loop)
    looping.start()
    clusters.until(lambda: _said(own) == b"-BUSY", "the server is busy")
    try:
        assert "Redis is busy with a script; see SCRIPT KILL" in degraded(face, caplog, own.url)
    finally:
        own.ask(b"SCRIPT KILL\r\n")
        looping.join()


def test_a_server_that_cannot_save(face, own, caplog):
    with client(own) as admin:
        admin.config_set("save", "3600 1")
        shutil.rmtree(admin.config_get("dir")["dir"])
        admin.bgsave()
        clusters.until(lambda: admin.info("persistence")["rdb_last_bgsave_status"] == "err", "it could not save")
    assert "Redis cannot save its data and refuses writes; see its log" in degraded(face, caplog, own.url)


def test_a_server_with_too_few_replicas(face, own, caplog):
    with client(own) as admin:
        admin.config_set("min-replicas-to-write", 1)
    line = degraded(face, caplog, own.url)
    assert "Redis has too few replicas and refuses writes; see min-replicas-to-write" in line


FULL = ("maxmemory", 1, 0)
TOO_FEW_REPLICAS = ("min-replicas-to-write", 1, 0)


@pytest.mark.parametrize(("setting", "refuses", "accepts"), [FULL, TOO_FEW_REPLICAS], ids=["full", "too few replicas"])
def test_an_answer_without_a_write_does_not_tell_that_a_server_accepts_writes_again(
    face, own, setting, refuses, accepts
):
    limiter = FACES[face](FixedWindow(3, 86_400), own.url, deadline=5)
    limiter.hit("spent", 3)
    with client(own) as admin:
        admin.config_set(setting, refuses)
        assert limiter.hit("k").degraded
        answers = []
        for number in range(5):
            for call, key in ((limiter.peek, "spent"), (limiter.hit, f"{number}"), (limiter.hit, "spent")):
                inside.second_passed(limiter.store)
                answers.append(call(key).degraded)
        assert (answers, limiter.store.breaker.openings) == ([True] * 15, 1)
        admin.config_set(setting, accepts)
        inside.second_passed(limiter.store)
        peeked = limiter.peek("spent")
        assert (peeked.degraded, peeked.remaining) == (False, 0)
        assert admin.keys() == [b"ratekeeper:fw::3/day:{spent}"]
    limiter.close()


@pytest.mark.parametrize("credentials", ["", ":wrong@", "nobody:secret@"])
def test_a_login_that_is_refused(face, own, caplog, credentials):
    with client(own) as admin:
        admin.config_set("requirepass", "secret")
    line = degraded(face, caplog, own.url.replace("//", f"//{credentials}"))
    assert "Redis refuses the login; check user and password" in line
    assert not re.search("secret|wrong", line)


@pytest.mark.parametrize("rule", [FixedWindow(100, 86_400), SlidingWindowLog(100, 86_400)])
@pytest.mark.parametrize("kind", ["text", "number", "hash"])
def test_a_key_that_is_not_ours(face, own, caplog, rule, kind):
    with Limiter(rule, own.url, on_error="raise", deadline=5) as limiter, client(own) as admin:
        limiter.hit("k")
        (name,) = (seen.name for seen in limiter.inspect("k").values())
        admin.delete(name)
        {"text": admin.set, "number": admin.set, "hash": lambda *_: admin.hset(name, "a", 1)}[kind](
            name, {"text": "what is this?", "number": "\x07"}.get(kind)
        )
    said = degraded(face, caplog, own.url, rule)
    assert f"a key of rule {rule.text!r} cannot be read; reset it, or use another prefix" in said


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (b"-SURPRISE what nobody has heard of\r\n", "Redis answered with an error"),
        (b"-ERR user_script:7: attempt to call a nil value script: 1, on @user_script:7.\r\n", "Redis answered with"),
        (b"-LOADING Redis is loading the dataset in memory\r\n", "Redis is still loading its data"),
        (b"-CLUSTERDOWN Hash slot not served\r\n", "the cluster does not serve this slot; check CLUSTER INFO"),
        (b"-TRYAGAIN Multiple keys request\r\n", "the slot is being moved between nodes"),
        (b"-MOVED 1 127.0.0.1:1\r\n", "the server is a node of a cluster; use redis+cluster://"),
        (b"-NOSCRIPT No matching script\r\n", "Redis has lost the script; check what flushes scripts"),
        (b"+OK\r\n", "Redis sent a reply that is not a decision"),
    ],
)
def test_any_other_answer(face, caplog, reply, reason):
    with Answering(reply) as server:
        line = degraded(face, caplog, server.url)
    assert reason in line


def test_a_server_that_is_not_there(face, caplog):
    line = degraded(face, caplog, f"redis://127.0.0.1:{servers.free_port()}")
    assert "Redis cannot be reached; check the address, the network and the server" in line


def test_a_server_that_does_not_answer(face, caplog):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        limiter = FACES[face]("1/s", f"redis://127.0.0.1:{listening.getsockname()[1]}", deadline=0.2)
        assert limiter.hit("k").degraded
        limiter.close()
    assert "Redis did not answer in time; check its load and the network, or raise the deadline" in caplog.text


def test_another_reason_is_another_line(face, own, caplog):
    limiter = FACES[face]("fixed-window 100/day", own.url, deadline=5)
    with client(own) as admin:
        admin.config_set("maxmemory", 1)
        assert limiter.hit("k").degraded
        admin.config_set("maxmemory", 0)
        admin.replicaof("127.0.0.1", servers.free_port())
        inside.second_passed(limiter.store)
        assert limiter.hit("k").degraded
    limiter.close()
    reasons = [record.getMessage().split(";")[0] for record in caplog.records if "degraded" in record.getMessage()]
    assert reasons == ["degraded: Redis is full (maxmemory)", "degraded: the server is a replica, which cannot write"]
