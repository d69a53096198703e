import itertools

import pytest

from tests import servers
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
