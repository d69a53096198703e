import itertools

import pytest

from tests.integrations.processes import GRANIAN, STORES, UVICORN, Process

_numbers = itertools.count()


@pytest.fixture(
    scope="package",
    params=[(command, store) for command in (UVICORN, GRANIAN) for store in STORES],
    ids=lambda param: f"{param[0][0]} on {param[1]}",
)
def server(request):
    command, store = request.param
    with Process("-m", *command, "tests.integrations.app:app", store=store) as server:
        server.name = command[0]
        yield server


@pytest.fixture
def client():
    """The header of a client that no other test has been."""
    return {"x-client": f"client {next(_numbers)}"}
