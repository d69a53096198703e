"""Celery tasks that keep to one rate, however many workers there are.

    celery --app examples.celery_app worker
    python -m examples.celery_app https://example.com/hook 100

Celery's own rate_limit counts in each worker separately. Here all workers share one budget in Redis. A task over the
limit is sent again, to run when its turn has come. Needs ratekeeper[celery,redis] and celery[redis].
"""

import json
import os
import sys
import urllib.request

from celery import Celery

from ratekeeper.integrations.celery import limited

REDIS = os.environ.get("REDIS_URL", "redis://localhost")
app = Celery("examples", broker=REDIS)
app.conf.broker_connection_retry_on_startup = True


@app.task(autoretry_for=(OSError,), retry_backoff=True, max_retries=5)  # these are for deliveries that fail
@limited("token-bucket 10/s burst 20", store=REDIS)
def deliver(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10):
        pass


if __name__ == "__main__":
    from examples.celery_app import deliver  # under this name, workers know the task

    for number in range(int(sys.argv[2])):
        deliver.delay(sys.argv[1], {"number": number})
