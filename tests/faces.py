"""One interface for both limiters, so that a case is written once and runs on each."""

import asyncio
import atexit
import functools
import inspect

from ratekeeper import AsyncLimiter, Limiter

loop = asyncio.new_event_loop()  # one for all calls: a new one for each would take most of the time
atexit.register(loop.close)


class Awaited:
    """An AsyncLimiter that is called like a Limiter: every call is awaited here."""

    def __init__(self, *args, **kwargs):
        self.limiter = AsyncLimiter(*args, **kwargs)

    def __getattr__(self, name):
        found = getattr(self.limiter, name)
        if not inspect.iscoroutinefunction(found):
            return found

        @functools.wraps(found)
        def call(*args, **kwargs):
            return loop.run_until_complete(found(*args, **kwargs))

        return call


FACES = {"Limiter": Limiter, "AsyncLimiter": Awaited}
