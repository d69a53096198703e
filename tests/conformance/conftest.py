import pytest

from tests.conformance import kit


@pytest.fixture(scope="session", autouse=True)
def _event_loop():
    yield
    kit.close_loop()


@pytest.fixture(scope="session", params=kit.DRIVERS, ids=lambda driver: driver.name.replace(" ", "-"))
def driver(request):
    """Return each driver in turn."""
    return request.param
