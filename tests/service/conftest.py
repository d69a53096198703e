import itertools

import pytest

from ratekeeper.stores import AsyncRedisStore, MemoryStore, SqliteStore
from tests import clusters, servers
from tests.service.operating import forget
from tests.service.serving import InProcess, Served

_numbers = itertools.count()


@pytest.fixture(scope="package", params=["in process", "memory", "Redis"])
def service(request):
    """The service, without a server around it, and served on each kind of store."""
    if request.param == "in process":
        service = InProcess(playground=False)
    else:
        store = "memory://" if request.param == "memory" else servers.shared(servers.newest()).url
        service = Served(store, "--deadline", "10")  # on a busy machine, too, Redis decides
    yield service
    service.stop()


@pytest.fixture(scope="package")
def served():
    """The service in memory, as a process."""
    served = Served()
    yield served
    served.stop()


@pytest.fixture
def key():
    """A key that has not been used."""
    return f"key {next(_numbers)}"


@pytest.fixture(params=["memory", "SQLite", "Redis", "Cluster"])
def stores(request, tmp_path):
    """A function that returns a store; all of them share what they keep."""
    if request.param == "memory":
        shared = MemoryStore()
        yield lambda: shared
    elif request.param == "SQLite":
        yield lambda: SqliteStore(tmp_path / "limits.db")
    else:
        is_cluster = request.param == "Cluster"
        server = (clusters.shared_cluster if is_cluster else servers.shared)(servers.newest())
        forget(server)
        yield lambda: AsyncRedisStore(server.url)
        forget(server)


@pytest.fixture
def server():
    server = servers.RedisServer(servers.programs()[servers.newest()])
    yield server
    server.stop()
