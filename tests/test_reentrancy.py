"""A signal handler or finalizer that calls a limiter in the middle of another call of its own thread gets an answer."""

import gc
import itertools
import math
import uuid

import pytest

from ratekeeper import FixedWindow, Limiter, SlidingWindowCounter, SlidingWindowLog, StoreUnavailable
from ratekeeper.clock import stopwatch
from ratekeeper.http.backoff import Backoff
from ratekeeper.http.held_requests import HeldRequests
from ratekeeper.queues import queues_of
from ratekeeper.stores import MemoryStore, RedisStore
from ratekeeper.stores.breaker import Breaker
from ratekeeper.stores.protocol import Binding, Demand, Outcome
from ratekeeper.stores.redis.denials import Denials
from ratekeeper.stores.redis.semaphore import SignalSafeSemaphore
from ratekeeper.testing import ManualClock
from tests import inside, points, servers
from tests.faces import FACES
from tests.waiters import untraced

LIMIT = 10**6
ONE = SlidingWindowLog(LIMIT, "30d")
TWO = {"log": SlidingWindowLog(LIMIT, "30d"), "counter": SlidingWindowCounter(LIMIT, "30d")}
CALLS = {  # the rules, the call, and how many units it leaves
    "hit": (ONE, lambda limiter: limiter.hit("a"), 1),
    "refund": (ONE, lambda limiter: limiter.refund("a"), -1),
    "take and give back": (ONE, lambda limiter: limiter.take("a").give_back(), 0),
    "charge, two rules": (TWO, lambda limiter: limiter.charge("a"), 1),
    "wait, two rules": (TWO, lambda limiter: limiter.wait("a", timeout=60), 1),
}


@pytest.fixture
def url(store, tmp_path):
    return {
        "memory": lambda: "memory://",
        "sqlite": lambda: f"sqlite:///{tmp_path / 'limits.db'}",
        "redis": lambda: servers.shared(servers.newest()).url,
    }[store]()


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("store", ["memory", "sqlite", "redis"])
def test_a_handler_that_hits_in_the_middle_of_a_call_gets_an_answer_and_both_count(store, url, call):
    rules, each, units = CALLS[call]
    on_error = "raise" if store == "redis" else "local"  # Redis can decide both
    limiter = Limiter(rules, url, prefix=f"test {uuid.uuid4()}", on_error=on_error, deadline=30)
    limiter.charge("a", 1_000)
    apart = Limiter(rules, limiter.store, prefix=f"test {uuid.uuid4()}", on_error=on_error, deadline=30)
    answers = []
    each(limiter)

    def handle():
        answers.append(limiter.hit("a"))
        answers.append(apart.hit("b"))

    with untraced(), points.handled_by(handle), points.bounded():
        calls = 1 + next(point for point in itertools.count() if not points.at(point, lambda: each(limiter)))
    assert len(answers) == 2 * (calls - 1) > 20
    counted = [sum(not answer.degraded for answer in answers[first::2]) for first in (0, 1)]
    assert LIMIT - limiter.peek("a").remaining == 1_000 + units + units * calls + counted[0]
    assert LIMIT - apart.peek("b").remaining == counted[1]
    degraded = len(answers) - sum(counted)
    assert bool(degraded) is (store != "redis")
    assert limiter.notices.counts["degraded"] + apart.notices.counts["degraded"] == degraded
    limiter.close()


@pytest.mark.parametrize("face", FACES.values(), ids=FACES)
@pytest.mark.parametrize("rules", ["fixed-window 5/hour", {"a": "fixed-window 5/hour", "b": "token-bucket 9/hour"}])
def test_in_memory_on_error_says_what_the_answer_to_the_inner_call_is(face, rules):
    answers = {}
    for on_error in ("local", "open", "closed", "raise"):
        store = MemoryStore()
        limiter = face(rules, store, on_error=on_error)
        limiter.hit("a", 5)
        if on_error == "raise":
            with pytest.raises(StoreUnavailable, match="in the middle of another call of the same thread"):
                inside.in_the_middle_of_a_call(store, _run, limiter, limiter.hit, "a", 5)
            continue
        answers[on_error] = [
            inside.in_the_middle_of_a_call(store, _run, limiter, limiter.hit, "a", 5) for _ in range(2)
        ]
        assert all(decision.degraded for decision in answers[on_error])
        assert limiter.notices.counts["degraded"] == 2
        assert not limiter.hit("a")
    assert [decision.allowed for decision in answers["local"]] == [True, False]  # counted apart
    assert [decision.allowed for decision in answers["open"]] == [True, True]
    assert [decision.allowed for decision in answers["closed"]] == [False, False]
    assert answers["closed"][0].retry_after == 1


def _run(limiter, method, *arguments):
    """Call a method, of an AsyncLimiter without an event loop: in memory nothing has to be awaited."""
    if isinstance(limiter, Limiter):
        return method(*arguments)
    try:
        getattr(limiter.limiter, method.__name__)(*arguments).send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it had to be awaited")


def test_a_call_in_the_middle_of_the_stand_in_s_own_call_is_denied():
    store = MemoryStore()
    limiter = Limiter("5/hour", store)

    def innermost():
        return limiter.hit("a")

    def inner():
        assert limiter.hit("a").allowed
        return inside.in_the_middle_of_a_call(inside.stand_in(limiter), innermost)

    decision = inside.in_the_middle_of_a_call(store, inner)
    assert (decision.allowed, decision.degraded, decision.retry_after) == (False, True, 1)


def test_what_was_taken_in_the_middle_of_another_call_is_given_back_where_it_was_counted():
    store = MemoryStore()
    limiter = Limiter("fixed-window 5/hour", store)
    limiter.hit("a", 2)
    taken = inside.in_the_middle_of_a_call(store, limiter.take, "a", 3)
    assert taken.decision.degraded
    taken.give_back()
    assert limiter.peek("a").remaining == 3
    assert inside.in_the_middle_of_a_call(store, limiter.peek, "a").remaining == 5
    other = limiter.take("a", 2)
    inside.in_the_middle_of_a_call(store, other.give_back)
    assert limiter.peek("a").remaining == 1
    assert inside.in_the_middle_of_a_call(store, limiter.peek, "a").remaining == 5


@pytest.mark.parametrize("call", ["wait", "inspect"])
def test_in_memory_what_needs_the_store_itself_is_an_error_in_the_middle_of_another_call(call):
    store = MemoryStore()
    limiter = Limiter("5/hour", store)
    with pytest.raises(StoreUnavailable, match="in the middle of another call of the same thread"):
        inside.in_the_middle_of_a_call(store, getattr(limiter, call), "a")


def test_a_finalizer_that_hits_wherever_garbage_is_collected_gets_an_answer():
    limiter = Limiter(SlidingWindowLog(10**6, "30d"), clock=ManualClock())
    answers = []
    hitting = []

    def hit(phase, _):
        if phase == "stop" and not hitting:
            hitting.append(True)
            answers.append(limiter.hit("finalized"))
            hitting.clear()

    threshold = gc.get_threshold()
    with untraced(), points.bounded():
        gc.callbacks.append(hit)
        gc.freeze()
        gc.set_threshold(1)  # collect garbage at nearly every chance
        try:
            for number in range(200):
                limiter.hit("a")
                limiter.charge(f"key {number}")
        finally:
            gc.set_threshold(*threshold)
            gc.unfreeze()
            gc.callbacks.remove(hit)
    assert len(answers) > 100
    assert limiter.peek("a").remaining == 10**6 - 200
    assert limiter.peek("finalized").remaining == 10**6 - sum(not answer.degraded for answer in answers)


def test_a_thread_that_is_not_inside_waits_for_the_lock_however_long_and_counts_exactly():
    limiter = Limiter(FixedWindow(10, 60), clock=ManualClock())
    handled = []

    def handle():  # in the middle of a call that does not have the lock
        handled.append(limiter.hit("a"))

    def hook(_key, _decision):
        points.arrive()

    hooked = Limiter(FixedWindow(10, 60), limiter.store, clock=limiter.timer, on_decision=hook)
    with points.handled_by(handle):
        assert hooked.hit("a").remaining == 9
    assert (handled[0].degraded, handled[0].remaining, handled[0].retry_after) == (False, 8, 0.0)
    assert limiter.hit("a", cost=11).retry_after == math.inf


def _breaker():
    breaker = Breaker("it")
    error = StoreUnavailable("gone")

    def call():
        breaker.failed(error)
        breaker.admits(stopwatch())
        breaker.succeeded()

    return call


def _semaphore():
    semaphore = SignalSafeSemaphore(2)
    return lambda: semaphore.call(stopwatch() + 10**9, int)


def _denials():
    denials = Denials(most=3)
    binding = Binding("a", FixedWindow(1, 60), ("", "", "a"))
    numbers = itertools.count()

    def call():
        for operation, steady_us in [("hit", 10**6), ("hit", 10**6), ("hit", 0), ("refund", 0)]:
            demand = Demand(binding, next(numbers) % 5, 1, operation)
            answer = (not steady_us, 0, steady_us, 60 * 10**6, 0)
            outcome = Outcome(stopwatch() // 1000, [answer], steady_us=steady_us)
            denials.note_results([[demand]], [outcome], stopwatch())

    return call


def _leases():
    limiter = Limiter("fixed-window 1000/hour", RedisStore(servers.shared(servers.newest()).url), lease=60, deadline=30)
    key = f"test {uuid.uuid4()}"

    def call():
        limiter.hit(key)
        limiter.refund(key)

    return call


def _held_requests():
    held = HeldRequests(3, 3)

    def call():
        if held.enter("a"):
            held.leave("a")

    return call


def _backoff():
    backoff = Backoff(stopwatch, max_keys=2)
    numbers = itertools.count()

    def call():
        backoff.back_off(next(numbers), 60)
        backoff.until(next(numbers))

    return call


def _clock():
    clock = ManualClock()
    return lambda: clock.advance(1)


def _queues():
    return lambda: queues_of(MemoryStore())


@pytest.mark.parametrize(
    "make",
    [_breaker, _semaphore, _denials, _leases, _held_requests, _backoff, _clock, _queues],
    ids=lambda it: it.__name__,
)
def test_whatever_has_a_lock_can_be_called_in_the_middle_of_a_call(make):
    call = make()
    call()
    with untraced(), points.handled_by(call), points.bounded():
        assert sum(1 for _ in itertools.takewhile(lambda point: points.at(point, call), itertools.count())) > 5
