"""Celery: real workers, two of them with pools of different kinds, on a real Redis."""

import pytest
import redis

from tests import servers
from tests.waiters import until
from tests.workers.environments import PATIENCE, Interpreter, Worker

MODULE = "tests.workers.celery_app"
POOLS = ("prefork", "threads")  # each worker has a pool of its own kind, and a queue of this name


@pytest.fixture(scope="module")
def broker():
    """A Redis that no other test uses."""
    server = servers.RedisServer(servers.programs()[servers.newest()])
    yield server.url
    server.stop()


@pytest.fixture(scope="module")
def celery(broker):
    """Evaluates expressions where tasks are sent."""
    worker = ("-m", "celery", "-A", MODULE, "worker", "--loglevel", "CRITICAL", "--without-mingle", "--without-gossip")
    workers = [
        Worker(
            "celery",
            *(*worker, "--concurrency", "2", "--pool", pool, "--hostname", pool, "--queues", f"celery,{pool}"),
            REDIS_URL=broker,
        )
        for pool in POOLS
    ]
    interpreter = Interpreter("celery", MODULE, REDIS_URL=broker)
    ping = "len(app.control.ping(timeout=0.2))"
    until(lambda: interpreter(ping) == len(POOLS), "all workers are ready", PATIENCE)
    yield interpreter
    interpreter.stop()
    for each in workers:
        each.stop()


@pytest.fixture
def happened(broker):
    with redis.Redis.from_url(broker, decode_responses=True) as client:
        yield lambda what: client.lrange(what, 0, -1)


def states(celery, ids):
    return celery(f"[app.AsyncResult(id).state for id in {ids}]")


def test_all_workers_together_keep_to_one_rate_and_are_free_for_other_tasks(celery, happened):
    sent = f"[deliver.apply_async((number,), queue={POOLS}[number % 2]).id for number in range(12)]"
    ids = celery(sent)
    until(lambda: sorted(states(celery, ids)) == ["RETRY"] * 7 + ["SUCCESS"] * 5, "all tasks are decided")
    assert celery("[ping.delay().get(timeout=120) for _ in range(8)]") == ["pong"] * 8
    assert len(set(happened("deliver ran"))) == len(happened("deliver ran")) == 5


def test_a_postponed_task_runs_once_and_spends_no_retry(celery, happened):
    sent = "[hasty.apply_async((number,), headers={'trace': f't{number}'}) for number in range(10)]"
    assert celery(f"[result.get(timeout=120) for result in {sent}]") == list(range(10))
    assert sorted(happened("hasty ran")) == sorted(f"{number} 0 t{number}" for number in range(10))
    assert happened(f"{MODULE}.hasty postponed") != []


def test_a_task_that_retries_by_itself_has_all_its_retries(celery, happened):
    celery("[stubborn.delay(number).id for number in range(8)]")
    until(lambda: len(happened("stubborn ran")) >= 16, "all have run and been retried")
    assert sorted(happened("stubborn ran")) == sorted(f"{number} {retry}" for number in range(8) for retry in (0, 1))


def test_a_chord_waits_for_its_postponed_tasks(celery):
    assert sorted(celery("chord(hasty.s(number) for number in range(4))(gather.s()).get(timeout=120)")) == list(
        range(4)
    )


def test_key_and_cost_are_computed_from_the_arguments(celery, happened):
    ids = celery("[costly.delay(*each).id for each in [('ada', 3), ('ada', 3), ('bob', 5), ('bob', 1)]]")
    until(lambda: sorted(states(celery, ids)) == ["RETRY"] * 2 + ["SUCCESS"] * 2, "all tasks are decided")


def test_a_task_that_never_fits_fails_and_its_result_says_why(celery):
    assert celery("error_of(costly.delay('ada', 6))") == [
        "ratekeeper.errors.RateLimited",
        "rate limit 'fixed-window 5/400d' exceeded; the cost can never fit into 5",
        "this error was made from its text, as from JSON; the decision is on the original",
    ]


def test_a_task_that_is_called_directly_or_eagerly_raises_for_nobody_can_postpone_it(celery):
    assert celery("[twice(), twice.apply().get()]") == ["a name of its own"] * 2
    expected = "rate limit 'fixed-window 2/400d' exceeded; try again in "
    assert [celery(f"error_of({each})")[1][: len(expected)] for each in ("twice", "twice.apply()")] == [expected] * 2


def test_mistakes_are_found_where_the_task_is_declared(celery):
    declare = "error_of(lambda: limited('10/s', URL)({}))[1]"
    assert celery(declare.format("ping")) == "write @limited(...) below @app.task, not above it"
    assert "coroutine must not be a coroutine function" in celery(declare.format("coroutine"))


def test_a_task_whose_turn_is_far_away_comes_back_before_the_broker_delivers_it_again(celery):
    ids = celery("[costly.delay('eve', 5).id for _ in range(3)]")
    until(lambda: sorted(states(celery, ids)) == ["RETRY"] * 2 + ["SUCCESS"], "all tasks are decided")
    entries = "[each for worker in app.control.inspect().scheduled().values() for each in worker]"
    left = f"[datetime.fromisoformat(each['eta']).timestamp() - time.time() for each in {entries}]"
    assert celery(f"max({left})") <= 500


def test_until_its_turn_has_come_a_task_does_not_ask_again(celery, happened):
    asked = happened("deliver asked")
    ids = celery("[deliver.apply_async((0,), headers={'ratekeeper-turn': time.time() + 3600}).id]")
    until(lambda: states(celery, ids) == ["RETRY"], "it was sent again")
    assert happened("deliver asked") == asked
