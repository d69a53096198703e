"""Ways to reach Redis: TLS, a unix socket, a password, a database, an existing client or pool."""

import asyncio
import contextlib
import re
import socket
import ssl
import subprocess
import tempfile
import threading
import time

import pytest
import redis
import redis.asyncio
import trustme

from ratekeeper import Limiter, StoreUnavailable
from ratekeeper.stores import AsyncRedisStore, RedisStore
from tests import clusters, inside, servers
from tests.answering import Answering
from tests.faces import FACES, loop
from tests.proxy import Proxy

STRICT = {"on_error": "raise", "deadline": 30}
STORES = {"Limiter": RedisStore, "AsyncLimiter": AsyncRedisStore}
CLIENTS = {"Limiter": redis, "AsyncLimiter": redis.asyncio}


@pytest.fixture(params=FACES)
def face(request):
    return request.param


@contextlib.contextmanager
def limiter_on(face, store, rules="fixed-window 3/year"):
    if not isinstance(store, str):
        store = STORES[face](store)
    limiter = FACES[face](rules, store, **STRICT)
    try:
        yield limiter
    finally:
        limiter.close()
        close(face, limiter.store)


def close(face, store):
    if face == "AsyncLimiter":
        loop.run_until_complete(store.close())
        loop.run_until_complete(asyncio.sleep(0.01))  # a transport whose handshake failed closes in a later turn
    else:
        store.close()


def decisions(face, store):
    with limiter_on(face, store) as limiter:
        return [limiter.hit("k").allowed for _ in range(4)]


EXACTLY_THREE = [True, True, True, False]


@contextlib.contextmanager
def running(*options, program=None):
    server = servers.RedisServer(program or servers.programs()[servers.newest()], *options)
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def certified(tmp_path_factory):
    """The options of a server with a certificate, and the file of the authority that vouches for it."""
    directory = tmp_path_factory.mktemp("tls")
    files = {name: str(directory / f"{name}.pem") for name in ("authority", "certificate", "key")}
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(files["authority"])
    certificate.cert_chain_pems[0].write_to_path(files["certificate"])
    certificate.private_key_pem.write_to_path(files["key"])
    options = {
        "tls-auth-clients": "no",
        "tls-ca-cert-file": files["authority"],
        "tls-cert-file": files["certificate"],
        "tls-key-file": files["key"],
    }
    return options, files["authority"]


def as_arguments(options):
    return [part for name, value in options.items() for part in (f"--{name}", value)]


def tls_server(**options):
    """Start the first server here that was built with TLS, which not every one is."""
    for program in servers.found().values():
        with contextlib.suppress(AssertionError):
            return servers.RedisServer(program, *as_arguments(options), port=clusters.cluster_port())
    raise AssertionError("no redis-server here was built with TLS; those of Debian and Homebrew are")


@pytest.fixture(scope="module")
def speaks_tls(certified):
    """A server with a certificate, the port where it speaks TLS, and the file of the authority that vouches for it."""
    options, authority = certified
    port = servers.free_port()
    server = tls_server(**options, **{"tls-port": str(port)})
    yield server, port, authority
    server.stop()


@pytest.fixture
def tls(speaks_tls):
    """The port where an empty server speaks TLS, and the file of the authority that vouches for it."""
    server, port, authority = speaks_tls
    with redis.Redis(port=server.port) as client:
        client.flushall()
    return port, authority


@pytest.mark.parametrize("scheme", ["rediss", "valkeys"])
def test_tls(face, tls, scheme):
    port, authority = tls
    assert decisions(face, f"{scheme}://127.0.0.1:{port}?ssl_ca_certs={authority}") == EXACTLY_THREE


def test_certificates_are_read_once_and_where_nobody_waits_for_them(face, tls, monkeypatch):
    port, authority = tls
    read, make = [], ssl.create_default_context

    def create_default_context(*arguments, **options):
        read.append(threading.current_thread())
        return make(*arguments, **options)

    monkeypatch.setattr(ssl, "create_default_context", create_default_context)
    with limiter_on(face, f"rediss://127.0.0.1:{port}?ssl_ca_certs={authority}") as limiter:
        for remaining in (2, 1, 0):
            assert limiter.hit("k").remaining == remaining
            close(face, limiter.store)
    assert len(read) == 1
    assert read[0] is not threading.current_thread()


def test_a_handshake_that_stalls_costs_a_caller_its_deadline(face):
    with Proxy(0, mode="freeze") as proxy:
        limiter = FACES[face]("1/s", f"rediss://127.0.0.1:{proxy.port}", deadline=0.2)
        begun = time.monotonic()
        assert limiter.hit("k").degraded
        assert time.monotonic() - begun < 2  # ten times the deadline tells a hang
        limiter.close()


def test_an_untrusted_server_is_refused_though_the_certificates_were_read_before(face, tls):
    port, _ = tls
    with limiter_on(face, f"rediss://127.0.0.1:{port}") as limiter:
        for _ in range(2):
            inside.second_passed(limiter.store)
            with pytest.raises(StoreUnavailable) as raised:
                limiter.hit("k")
            assert isinstance(raised.value.__cause__.__context__, ssl.SSLCertVerificationError)


def test_a_client_that_speaks_tls(face, tls):
    port, authority = tls
    client = CLIENTS[face].Redis(port=port, host="127.0.0.1", ssl=True, ssl_ca_certs=authority)
    assert decisions(face, client) == EXACTLY_THREE


def test_a_server_whose_certificate_is_not_trusted_is_not_asked(face, tls):
    port, _ = tls
    with limiter_on(face, f"rediss://127.0.0.1:{port}") as limiter, pytest.raises(StoreUnavailable) as raised:
        limiter.hit("k")
    assert isinstance(raised.value.__cause__.__context__, ssl.SSLCertVerificationError)


def test_a_cluster_that_speaks_tls_and_asks_for_a_password(face, certified):
    options, authority = certified
    port = clusters.cluster_port()
    secured = {"tls-port": str(port), "tls-cluster": "yes", "cluster-enabled": "yes", "requirepass": "secret"}
    server = tls_server(**options, **secured)
    with redis.Redis(port=server.port, password="secret") as client:
        client.execute_command("CLUSTER ADDSLOTS", *range(clusters.SLOTS))
        clusters.until(lambda: client.cluster("INFO")["cluster_state"] == "ok", "the cluster is well")
    url = f"rediss+cluster://:secret@127.0.0.1:{port}?ssl_ca_certs={authority}"
    assert decisions(face, url) == EXACTLY_THREE
    with limiter_on(face, url.replace("secret", "wrong")) as limiter, pytest.raises(StoreUnavailable):
        limiter.hit("k")
    server.stop()


def test_sentinels_that_speak_tls_and_ask_for_a_password_of_their_own(face, certified, tmp_path):
    options, authority = certified
    port, sentinel_port = servers.free_port(), servers.free_port()
    master = tls_server(**options, **{"tls-port": str(port), "requirepass": "secret"})
    lines = [
        *(f"{name} {value}" for name, value in options.items()),
        *("port 0", f"tls-port {sentinel_port}", "tls-replication yes", "bind 127.0.0.1", f"dir {tmp_path}"),
        *("requirepass other", f"sentinel monitor main 127.0.0.1 {port} 1", "sentinel auth-pass main secret"),
    ]
    (tmp_path / "sentinel.conf").write_text("\n".join(lines))
    with subprocess.Popen(
        [master.program, tmp_path / "sentinel.conf", "--sentinel"], stdout=subprocess.DEVNULL
    ) as sentinel:
        url = (
            f"rediss+sentinel://:secret@127.0.0.1:{sentinel_port}/main?ssl_ca_certs={authority}&sentinel_password=other"
        )
        clusters.until(lambda: _listens(sentinel_port), "the sentinel listens")
        assert decisions(face, url) == EXACTLY_THREE
        with limiter_on(face, url.replace("other", "wrong")) as limiter, pytest.raises(StoreUnavailable):
            limiter.hit("k")
        sentinel.kill()
    master.stop()


def _listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_unix_socket(face):
    with tempfile.TemporaryDirectory() as directory, running("--unixsocket", f"{directory}/redis") as server:
        assert decisions(face, f"unix://{directory}/redis") == EXACTLY_THREE
        with redis.Redis(port=server.port) as client:
            assert client.dbsize() == 1


def test_a_password(face):
    with running("--requirepass", "se/cr:et") as server:
        assert decisions(face, f"redis://:se%2Fcr%3Aet@127.0.0.1:{server.port}") == EXACTLY_THREE


@pytest.mark.parametrize("credentials", [":wrong@", "nobody:secret@"])
def test_a_wrong_password_is_an_error_that_does_not_show_it(face, credentials):
    with (
        running("--requirepass", "secret") as server,
        limiter_on(face, f"redis://{credentials}127.0.0.1:{server.port}") as limiter,
        pytest.raises(StoreUnavailable, match="AuthenticationError") as raised,
    ):
        limiter.hit("k")
    assert not re.search("secret|:wrong", str(raised.value))


def test_a_missing_password_is_asked_for(face):
    with (
        running("--requirepass", "secret") as server,
        limiter_on(face, server.url) as limiter,
        pytest.raises(StoreUnavailable, match="Authentication required"),
    ):
        limiter.hit("k")


def test_a_database_of_its_own(face, server, client):
    assert decisions(face, f"redis://127.0.0.1:{server.port}/3") == EXACTLY_THREE
    assert set(client.info("keyspace")) == {"db3"}


def test_an_existing_client_is_followed_in_all_but_what_decides_how_a_decision_is_sent(face):
    with running("--requirepass", "secret") as server:
        existing = CLIENTS[face].Redis(
            port=server.port, password="secret", db=2, decode_responses=True, protocol=3, health_check_interval=1
        )
        assert decisions(face, existing) == EXACTLY_THREE
        with redis.Redis(port=server.port, password="secret") as client:
            assert set(client.info("keyspace")) == {"db2"}


def test_a_server_that_needs_no_login_is_sent_nothing_but_the_script_s_calls_and_a_question(face):
    with Answering(b"-ERR no\r\n") as server, limiter_on(face, server.url) as limiter:
        with pytest.raises(StoreUnavailable):
            limiter.hit("k")
        assert server.commands == ["EVALSHA", "EVALSHA", "INFO"]  # no CLIENT SETINFO, whatever the release of redis-py


def test_a_client_that_tells_of_its_library_and_its_name_is_followed_in_the_latter(face):
    with Answering(b"+OK\r\n") as server:
        existing = CLIENTS[face].Redis.from_url(server.url, client_name="shop", username="ada", password="secret", db=1)
        with limiter_on(face, existing) as limiter, pytest.raises(StoreUnavailable):
            limiter.hit("k")
        assert server.commands == ["AUTH", "CLIENT", "SELECT", "EVALSHA", "EVALSHA", "INFO"]


@pytest.mark.parametrize("kind", ["ConnectionPool", "BlockingConnectionPool"])
def test_an_existing_pool(face, server, client, kind):
    pool = getattr(CLIENTS[face], kind).from_url(server.url, max_connections=1)
    assert decisions(face, pool) == EXACTLY_THREE


@pytest.mark.parametrize("version", ["4.6.0", "3.5.3"])
def test_a_client_that_is_too_old_is_refused_with_what_to_do(monkeypatch, version):
    monkeypatch.setattr(redis, "__version__", version)
    complaint = (
        f"needs redis 5.0 or newer, and {version} is installed; install it with: pip install 'ratekeeper.redis.'"
    )
    with pytest.raises(StoreUnavailable, match=complaint):
        Limiter("1/s", "redis://localhost")


def test_an_existing_client_on_a_unix_socket(face):
    with tempfile.TemporaryDirectory() as directory, running("--unixsocket", f"{directory}/redis"):
        client = CLIENTS[face].Redis(unix_socket_path=f"{directory}/redis")
        assert decisions(face, client) == EXACTLY_THREE
