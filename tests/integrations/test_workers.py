"""The worker processes of one server count together in a file, with no server beside them."""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.integrations.processes import GUNICORN, UVICORN, Process
from tests.waiters import until

WORKERS = 3
SERVERS = {  # whose connections stay open however busy the machine is
    "gunicorn": (*GUNICORN, "--keep-alive", "600", "tests.integrations.workers_app:wsgi_app"),
    "uvicorn": (
        *UVICORN,
        "--timeout-keep-alive",
        "600",
        "--timeout-worker-healthcheck",  # otherwise a worker that is busy for 5 s is replaced
        "600",
        "--lifespan",
        "off",
        "tests.integrations.workers_app:asgi_app",
    ),
}


@pytest.fixture(params=SERVERS.values(), ids=SERVERS)
def serve(request, tmp_path):
    """A function that starts the server on the same file each time."""
    command = ("-m", *request.param, "--workers", str(WORKERS))
    return lambda: Process(*command, RATEKEEPER_STORE=f"sqlite:///{tmp_path}/limits.db")


@contextlib.contextmanager
def connected_to_each_worker(server):
    """Give a client for each worker, whose connection stays open: all of its requests reach the same one."""
    with contextlib.ExitStack() as stack:
        clients = {}

        def all_are_found():
            client = stack.enter_context(httpx.Client(base_url=server.url, verify=False, timeout=60))
            clients.setdefault(client.get("/healthz").headers["x-process"], client)
            return len(clients) == WORKERS

        until(all_are_found, f"{WORKERS} workers")
        yield clients


def ask(worker, client, times):
    answers = [client.get("/") for _ in range(times)]
    assert {answer.headers["x-process"] for answer in answers} == {worker}
    return [answer.status_code for answer in answers]


def test_all_workers_together_admit_the_limit_also_after_a_restart(serve):
    with (
        serve() as server,
        connected_to_each_worker(server) as clients,
        ThreadPoolExecutor(WORKERS) as threads,
    ):
        asked = [threads.submit(ask, worker, client, 50) for worker, client in clients.items()]
        assert [each.result() for each in asked] == [[200] * 50] * WORKERS
    with (
        serve() as server,
        connected_to_each_worker(server) as clients,
        ThreadPoolExecutor(WORKERS) as threads,
    ):
        asked = [threads.submit(ask, worker, client, 30) for worker, client in clients.items()]
        statuses = [status for each in asked for status in each.result()]
        assert (statuses.count(200), statuses.count(429)) == (200 - 50 * WORKERS, 30 * WORKERS - 50)
