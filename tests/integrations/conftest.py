import itertools

import pytest

from tests import servers
from tests.integrations.serving import COMMANDS, AsgiServer

_numbers = itertools.count()


def store(kind):
    return "memory://" if kind == "memory" else servers.shared(servers.newest()).url


@pytest.fixture(
    scope="package", params=[(server, kind) for server in COMMANDS for kind in ("memory", "Redis")], ids=" on ".join
)
def server(request):
    name, kind = request.param
    server = AsgiServer(name, "tests.integrations.app:app", store(kind))
    yield server
    server.stop()


@pytest.fixture
def client():
    """The header of a client that nobody has been before."""
    return {"x-client": f"client {next(_numbers)}"}
