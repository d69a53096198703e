"""Helpers for tests of waiting callers: threads that report, a store that records, and waiting for a condition."""

import asyncio
import sys
import threading
import time
from contextlib import contextmanager

from ratekeeper import queues
from ratekeeper.stores import MemoryStore
from tests import inside

PATIENCE = 30  # seconds until a test gives up; nothing takes that long unless it is broken


def until(condition, what, patience=PATIENCE):
    """Wait until other threads have made the condition true."""
    give_up = time.monotonic() + patience
    while not condition():
        if time.monotonic() > give_up:
            raise AssertionError(f"never came: {what}")
        time.sleep(0.0002)


async def until_async(condition, what):
    """Let tasks, and other threads, run until the condition is true."""
    give_up = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > give_up:
            raise AssertionError(f"never came: {what}")
        await asyncio.sleep(0)


class RecordingWaiter(queues.Waiter):
    """A waiter that records whether it is asleep, and how often it has gone to sleep."""

    asleep = False
    sleeps = 0

    def sleep(self, seconds):
        self.sleeps += 1
        self.asleep = True
        try:
            super().sleep(seconds)
        finally:
            self.asleep = False


def in_queue(limiter, kind="turn"):
    """How many callers sleep until it is their turn, or with kind="departure" until they depart.

    A task in a queue is asleep whenever other code runs; for a thread, only a RecordingWaiter can tell.
    """
    return sum(getattr(waiter, "asleep", True) for waiter in waiters(limiter, kind))


def waiters(limiter, kind="turn"):
    """The callers in the queues, in the order of arrival."""
    waiting = inside.queues(limiter)
    with waiting.lock:
        found = [queue for name, queue in waiting.by_name.items() if name[0] == kind]
        places = [held() for queue in found for held in list(queue.places.values())]
        return [place.waiter for place in places if place is not None]


@contextmanager
def untraced():
    """Keep coverage out: it is slow, and has a lock of its own, which a fork or a signal may leave locked."""
    tracer = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(tracer)


class Call(threading.Thread):
    """A call in a thread of its own, and how it ended."""

    def __init__(self, function, *args, **kwargs):
        super().__init__(daemon=True)
        self._call = lambda: function(*args, **kwargs)
        self.result = None
        self.error = None
        self.start()

    def run(self):
        try:
            self.result = self._call()
        except Exception as error:  # noqa: BLE001
            self.error = error

    def outcome(self):
        """Wait for the end; return the result or raise the error."""
        self.join(PATIENCE)
        if self.is_alive():
            raise AssertionError("the call never ended")
        if self.error is not None:
            raise self.error
        return self.result


class RecordingStore(MemoryStore):
    """A MemoryStore that remembers which operations were asked of it."""

    def __init__(self):
        super().__init__()
        self.operations = []

    def execute(self, demands, ends_ns=None):
        outcome = super().execute(demands, ends_ns)
        self.operations.append(demands[0].operation)
        return outcome

    def snapshot(self, demands, ends_ns=None):
        self.operations.append("snapshot")
        return super().snapshot(demands, ends_ns)

    @property
    def hits(self):
        return self.operations.count("hit")
