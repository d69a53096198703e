"""Jobs of arq that keep to one rate, however many workers there are.

    arq examples.arq_worker.WorkerSettings
    python -m examples.arq_worker https://example.com/hook 100

A job over the limit is deferred until its turn has come, and the worker runs another one. Needs ratekeeper[arq,redis].
"""

import asyncio
import json
import os
import sys
import urllib.request

from arq import create_pool
from arq.connections import RedisSettings

from ratekeeper.integrations.arq import limited

REDIS = os.environ.get("REDIS_URL", "redis://localhost")


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10):
        pass


@limited("token-bucket 10/s burst 20", store=REDIS)
async def deliver(ctx, url, body):
    await asyncio.to_thread(post, url, body)


class WorkerSettings:
    functions = [deliver]  # noqa: RUF012 - as arq has it
    redis_settings = RedisSettings.from_dsn(REDIS)


async def main(url, count):
    queue = await create_pool(WorkerSettings.redis_settings)
    for number in range(int(count)):
        await queue.enqueue_job("deliver", url, {"number": number})
    await queue.aclose()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
