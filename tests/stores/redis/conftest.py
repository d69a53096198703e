import pytest
import redis

from tests import servers


@pytest.fixture(scope="module")
def server():
    """A server of its own for each module of tests."""
    server = servers.RedisServer(servers.programs()[servers.newest()])
    yield server
    server.stop()


@pytest.fixture
def client(server):
    """A plain client on that server, which it empties."""
    with redis.Redis(port=server.port) as client:
        client.flushall()
        yield client
