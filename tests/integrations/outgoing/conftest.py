from __future__ import annotations

import itertools

import pytest

from ratekeeper import queues
from ratekeeper.testing import ManualClock
from tests import servers
from tests.integrations.outgoing.faces import FACES, awaited
from tests.integrations.outgoing.origin import Origin
from tests.waiters import until

START = 1_700_000_040  # the start of a minute
_numbers = itertools.count()


@pytest.fixture(params=FACES.values(), ids=FACES)
def face(request):
    return request.param


@pytest.fixture(params=["memory", "Redis"])
def store(request):
    return "memory://" if request.param == "memory" else servers.shared(servers.newest()).url


@pytest.fixture
def clock():
    return ManualClock(start=START)


@pytest.fixture
def origin(clock):
    origin = Origin(lambda: clock() / 1e9 - START)
    yield origin
    origin.stop()


@pytest.fixture
def limiter(face, clock):
    """Make limiters on the test's clock, with keys of their own."""
    made = []

    def make(rules, store="memory://", **options):
        options = {"clock": clock, "prefix": f"outgoing {next(_numbers)}", "on_error": "raise", "deadline": 5} | options
        made.append(face.limiter_class(rules, store, **options))
        return made[-1]

    yield make
    for each in made:
        closing = each.close()
        if closing is not None:
            awaited(closing)


@pytest.fixture
def client(face):
    """Make clients of a library."""
    made = []

    def make(*args, **options):
        made.append(face(*args, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


class Sleepers:
    """The requests that sleep until they may be sent."""

    def __init__(self):
        self.asleep = set()

    def until(self, number):
        until(lambda: len(self.asleep) == number, f"{number} sleepers")


@pytest.fixture
def sleepers(monkeypatch):
    sleepers = Sleepers()

    class Waiter(queues.Waiter):
        def sleep(self, seconds):
            sleepers.asleep.add(self)
            try:
                super().sleep(seconds)
            finally:
                sleepers.asleep.discard(self)

    class AsyncWaiter(queues.AsyncWaiter):
        async def sleep(self, seconds):
            sleepers.asleep.add(self)
            try:
                await super().sleep(seconds)
            finally:
                sleepers.asleep.discard(self)

    monkeypatch.setattr("ratekeeper.queues.Waiter", Waiter)
    monkeypatch.setattr("ratekeeper.queues.AsyncWaiter", AsyncWaiter)
    return sleepers
