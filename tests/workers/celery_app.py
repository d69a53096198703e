"""The Celery application that real workers run. It is told on Redis what has happened."""

import os
import time  # noqa: F401 - the tests' expressions use all names here
from datetime import datetime  # noqa: F401 - as above

import redis
from celery import Celery, chord, current_task  # noqa: F401 - as above
from celery.signals import task_retry

from ratekeeper import FixedWindow, Limiter
from ratekeeper.integrations.celery import limited

URL = os.environ["REDIS_URL"]
FIVE = FixedWindow(5, "400 days")  # a window that does not end while the tests run
happened = redis.Redis.from_url(URL, decode_responses=True)
app = Celery("workers", broker=URL, backend=URL)
app.conf.broker_connection_retry_on_startup = True
app.conf.broker_transport_options = {"visibility_timeout": 1000}  # then the broker delivers a held message again


def limiter(name, rules=FIVE):
    def note(*_):
        happened.rpush(f"{name} asked", 1)

    return Limiter(rules, URL, prefix=name, on_error="raise", deadline=10, on_decision=note)


@task_retry.connect
def note_retry(request, **_):
    happened.rpush(f"{request.task} postponed", request.id)


def note_run(name, *values):
    happened.rpush(f"{name} ran", " ".join(map(str, values)))


@app.task
def ping():
    return "pong"


@app.task
@limited(limiter("deliver"))
def deliver(number):
    note_run("deliver", number)


@app.task(max_retries=0, acks_late=True)
@limited("sliding-window-log 2/400ms", URL)
def hasty(number):
    note_run("hasty", number, current_task.request.retries, (current_task.request.headers or {}).get("trace"))
    return number


@app.task(bind=True, max_retries=1)
@limited("sliding-window-log 2/50ms", URL)
def stubborn(self, number):
    note_run("stubborn", number, self.request.retries)
    raise self.retry(countdown=0, exc=ValueError(f"{number} failed"))


@app.task
@limited(limiter("costly"), key=lambda customer, cost: customer, cost=lambda customer, cost: cost)
def costly(customer, cost):
    return "done"


@app.task
def gather(numbers):
    return numbers


@app.task(name="a name of its own")
@limited(limiter("twice", "fixed-window 2/400 days"))
def twice():
    return current_task.name


async def coroutine(): ...


def error_of(result):
    """The error that a result or a call ends with: its type, its text, and what it says of its decision."""
    try:
        result.get(timeout=120) if hasattr(result, "get") else result()
    except Exception as error:  # noqa: BLE001 - it is what the test asks for
        try:
            decision = error.decision
        except AttributeError as no_decision:
            decision = no_decision
        return [f"{type(error).__module__}.{type(error).__qualname__}", str(error), str(decision)]
    return None
