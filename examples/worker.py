"""A worker like Celery's, whose tasks keep to one rate across all workers.

    python examples/worker.py redis://localhost --limit "10/s burst 20"

Celery's own rate_limit counts in each worker separately. Here all workers share one budget in Redis: a worker waits if
the wait is short, and postpones a job that would have to wait longer, so that it can do another one.
Jobs are JSON in the list "jobs": {"task": "deliver", "url": ..., "body": ...}. Needs ratekeeper[requests,redis].
"""

import argparse
import json
import time

import redis
import requests

from ratekeeper import RateLimited
from ratekeeper.integrations.requests import LimitedAdapter

QUEUE, LATER = "jobs", "jobs:later"  # a list, and a sorted set ordered by the time when a job is due
TASKS = {}


def task(function):
    TASKS[function.__name__] = function
    return function


@task
def deliver(session, url, body):
    session.post(url, json=body, timeout=10).raise_for_status()


def next_job(broker, patience):
    for job in broker.zrangebyscore(LATER, 0, time.time(), start=0, num=10):
        if broker.zrem(LATER, job):  # no other worker was faster
            broker.rpush(QUEUE, job)
    taken = broker.blpop(QUEUE, timeout=patience)
    return None if taken is None else taken[1]


def work(broker, session, *, until_idle):
    while True:
        job = next_job(broker, patience=0.1 if until_idle else 1)
        if job is None:
            if until_idle:
                return
            continue
        arguments = json.loads(job)
        try:
            TASKS[arguments.pop("task")](session, **arguments)
        except RateLimited as refused:
            broker.zadd(LATER, {job: time.time() + refused.decision.retry_after})
        except requests.RequestException as error:
            print(f"{job.decode()} failed: {error}", flush=True)
        else:
            print(f"{job.decode()} done", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("redis")
    parser.add_argument("--limit", default="10/s")
    parser.add_argument(
        "--patience",
        type=float,
        default=1,
        help="the longest wait in seconds; a job that would wait longer is postponed",
    )
    parser.add_argument("--until-idle", action="store_true", help="exit when there are no jobs left")
    options = parser.parse_args()

    with requests.Session() as session, redis.Redis.from_url(options.redis) as broker:
        adapter = LimitedAdapter(options.limit, options.redis, timeout=options.patience)
        session.mount("http://", adapter)
        session.mount("https://", adapter)
        work(broker, session, until_idle=options.until_idle)


if __name__ == "__main__":
    main()
