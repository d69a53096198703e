"""The functions and settings that real workers of arq run. They tell on Redis what has happened."""

import asyncio
import os

from arq import Retry, create_pool, func
from arq.connections import RedisSettings
from arq.jobs import Job

from ratekeeper import AsyncLimiter, FixedWindow, RatekeeperError
from ratekeeper.integrations.arq import limited

URL = os.environ["REDIS_URL"]
FIVE = FixedWindow(5, "400 days")  # a window that does not end while the tests run


def limiter(name):
    return AsyncLimiter(FIVE, URL, prefix=name, on_error="raise", deadline=10)


async def ping(ctx):
    return "pong"


@limited(limiter("deliver"))
async def deliver(ctx, number):
    await ctx["redis"].rpush("deliver ran", number)


@limited("sliding-window-log 2/400ms", URL)
async def hasty(ctx, number):
    await ctx["redis"].rpush("hasty ran", f"{number} {ctx['job_try']}")
    return number


@limited("sliding-window-log 2/50ms", URL)
async def stubborn(ctx, number):
    await ctx["redis"].rpush("stubborn ran", f"{number} {ctx['job_try']}")
    raise Retry


@limited(limiter("costly"), key=lambda ctx, customer, cost: customer, cost=lambda ctx, customer, cost: cost)
async def costly(ctx, customer, cost):
    return "done"


class WorkerSettings:
    functions = [ping, deliver, func(hasty, max_tries=1), func(stubborn, max_tries=2), costly]  # noqa: RUF012 - as arq has it
    redis_settings = RedisSettings.from_dsn(URL)
    poll_delay = 0.05
    max_jobs = 2


def run(use):
    """Return what a coroutine function returns that uses a connection to the queue."""

    async def main():
        pool = await create_pool(WorkerSettings.redis_settings)
        try:
            return await use(pool)
        finally:
            await pool.aclose()

    return asyncio.run(main())


def enqueue(name, *jobs):
    """Enqueue a job for each list of arguments, and return their ids."""

    async def use(pool):
        return [(await pool.enqueue_job(name, *arguments)).job_id for arguments in jobs]

    return run(use)


def statuses(ids):
    """Return the status of each job."""

    async def use(pool):
        return [(await Job(each, pool).status()).value for each in ids]

    return run(use)


def results(ids):
    """Return the result of each job, or its error: the type, the text, and how much its decision says is left."""

    async def use(pool):
        return [await one(Job(each, pool)) for each in ids]

    async def one(job):
        try:
            return await job.result(timeout=120, poll_delay=0.05)
        except RatekeeperError as error:
            return [type(error).__name__, str(error), error.decision.remaining]
        except Exception as error:  # noqa: BLE001 - it is what the test asks for
            return [type(error).__name__, str(error)]

    return run(use)


def called_directly(function, *arguments):
    """Return the results of calls outside of a worker, or their errors."""

    async def main():
        try:
            return await function({}, *arguments)
        except RatekeeperError as error:
            return str(error)

    return asyncio.run(main())


def declared(function):
    """Return the error of a limited function that is declared with a mistake."""
    try:
        limited(FIVE, URL)(function)
    except TypeError as error:
        return str(error)
