"""arq: two real workers on a real Redis."""

import pytest
import redis

from tests import servers
from tests.waiters import until
from tests.workers.environments import PATIENCE, Interpreter, Worker

MODULE = "tests.workers.arq_app"


@pytest.fixture(scope="module")
def queue():
    """A Redis that no other test uses."""
    server = servers.RedisServer(servers.programs()[servers.newest()])
    yield server.url
    server.stop()


@pytest.fixture(scope="module")
def arq(queue):
    """Evaluates expressions where jobs are enqueued."""
    workers = [Worker("arq", "-m", "arq", f"{MODULE}.WorkerSettings", REDIS_URL=queue) for _ in range(2)]
    interpreter = Interpreter("arq", MODULE, REDIS_URL=queue)
    yield interpreter
    interpreter.stop()
    for each in workers:
        each.stop()


@pytest.fixture
def client(queue):
    with redis.Redis.from_url(queue, decode_responses=True) as client:
        yield client


def test_all_workers_together_keep_to_one_rate_and_are_free_for_other_jobs(arq, client):
    ids = arq("enqueue('deliver', *([number] for number in range(12)))")
    until(
        lambda: sorted(arq(f"statuses({ids})")) == ["complete"] * 5 + ["deferred"] * 7, "all jobs are decided", PATIENCE
    )
    assert arq("results(enqueue('ping', *[[]] * 8))") == ["pong"] * 8
    assert len(set(client.lrange("deliver ran", 0, -1))) == client.llen("deliver ran") == 5


def test_postponed_jobs_get_turns_one_after_another_at_the_rate_of_the_rule(arq, client):
    ids = arq("enqueue('costly', *[['eve', 1]] * 9)")
    until(lambda: arq(f"statuses({ids})").count("deferred") == 4, "all jobs are decided", PATIENCE)
    turns = sorted(filter(None, (client.zscore("arq:queue", each) for each in ids)))
    day = 86_400_000
    assert [round((turn - turns[0]) / day) for turn in turns] == [0, 80, 160, 240]  # 5 in 400 days


def test_a_postponed_job_runs_once_and_spends_no_try(arq, client):
    ids = arq("enqueue('hasty', *([number] for number in range(10)))")
    assert arq(f"results({ids})") == list(range(10))
    assert sorted(client.lrange("hasty ran", 0, -1)) == [f"{number} 1" for number in range(10)]


def test_a_job_that_retries_by_itself_has_all_its_tries(arq, client):
    ids = arq("enqueue('stubborn', *([number] for number in range(8)))")
    assert arq(f"results({ids})") == [["JobExecutionFailed", "max 2 retries exceeded"]] * 8
    assert sorted(client.lrange("stubborn ran", 0, -1)) == [
        f"{number} {attempt}" for number in range(8) for attempt in (1, 2)
    ]


def test_key_and_cost_are_computed_from_the_arguments(arq):
    ids = arq("enqueue('costly', ['ada', 3], ['ada', 3], ['bob', 5], ['bob', 1])")
    until(
        lambda: sorted(arq(f"statuses({ids})")) == ["complete"] * 2 + ["deferred"] * 2, "all jobs are decided", PATIENCE
    )


def test_a_job_that_never_fits_fails_and_its_result_has_the_decision(arq):
    text = "rate limit 'fixed-window 5/400d' exceeded; the cost can never fit into 5"
    assert arq("results(enqueue('costly', ['zoe', 6]))") == [["RateLimited", text, 5]]


def test_a_function_that_is_called_outside_of_a_worker_raises(arq):
    assert arq("[called_directly(costly, 'kim', 4) for _ in range(2)]")[0] == "done"
    assert "'fixed-window 5/400d' exceeded; try again in " in arq("called_directly(costly, 'kim', 4)")


def test_a_function_that_is_no_coroutine_function_is_refused(arq):
    assert "must be a coroutine function" in arq("declared(print)")
