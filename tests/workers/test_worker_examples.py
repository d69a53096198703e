"""The examples for task queues, each run as a user runs it."""

import json

import pytest

from tests import servers
from tests.integrations.outgoing.origin import Origin
from tests.waiters import until
from tests.workers.environments import PATIENCE, Worker


@pytest.mark.parametrize(
    ("name", "worker", "sender"),
    [
        ("celery", ("celery", "--app", "examples.celery_app", "worker", "--pool", "solo"), "examples.celery_app"),
        ("arq", ("arq", "examples.arq_worker.WorkerSettings"), "examples.arq_worker"),
    ],
)
def test_an_example_delivers_everything_once(name, worker, sender):
    server = servers.RedisServer(servers.programs()[servers.newest()])
    origin = Origin()
    Worker(name, "-m", sender, f"{origin.url}/hook", "25", REDIS_URL=server.url).end()
    running = Worker(name, "-m", *worker, REDIS_URL=server.url)
    until(lambda: len(origin.arrivals) >= 25, "everything is delivered", PATIENCE)
    running.stop()
    assert sorted(json.loads(arrival.body)["number"] for arrival in origin.arrivals) == list(range(25))
    origin.stop()
    server.stop()
