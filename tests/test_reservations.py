"""take() and wait_and_take(): hits that can be given back, or corrected once the real cost is known."""

import asyncio
import itertools
from unittest import mock

import pytest

from ratekeeper import (
    AsyncLimiter,
    FixedWindow,
    InvalidRule,
    LeakyBucket,
    Limiter,
    RateLimited,
    SlidingWindowCounter,
    SlidingWindowLog,
    StoreUnavailable,
    TokenBucket,
)
from ratekeeper.stores import MemoryStore, RedisStore
from ratekeeper.testing import ManualClock
from tests import servers
from tests.faces import FACES, loop
from tests.waiters import Call, in_queue, until, waiters

MINUTE = 60


@pytest.fixture
def clock():
    return ManualClock(1_700_000_040)  # where a minute begins


@pytest.fixture(params=FACES)
def face(request):
    return FACES[request.param]


def undo(taken, what, *args):
    """Call give_back() or correct(), which an AsyncReservation wants awaited."""
    result = getattr(taken, what)(*args)
    if result is not None:
        loop.run_until_complete(result)


def test_a_reservation_has_the_decision_and_is_true_when_admitted(face, clock):
    limiter = face(FixedWindow(5, MINUTE), clock=clock)
    taken = limiter.take("k", 3)
    assert (bool(taken), taken.decision.remaining) == (True, 2)
    denied = limiter.take("k", 3)
    assert (bool(denied), denied.decision.retry_after) == (False, 60.0)


@pytest.mark.parametrize(
    "rule",
    [
        FixedWindow(10, MINUTE),
        SlidingWindowLog(10, MINUTE),
        SlidingWindowCounter(10, MINUTE),
        TokenBucket(10, 1),
        LeakyBucket(10, 1),
    ],
)
def test_all_is_given_back_once(face, clock, rule):
    limiter = face(rule, clock=clock)
    limiter.hit("k")
    taken = limiter.take("k", 7)
    assert limiter.peek("k").remaining == 2
    undo(taken, "give_back")
    assert limiter.peek("k").remaining == 9
    undo(taken, "give_back")
    assert limiter.peek("k").remaining == 9


def test_what_was_denied_gives_nothing_back_and_is_not_corrected(face, clock):
    limiter = face(FixedWindow(5, MINUTE), clock=clock)
    limiter.hit("k", 4)
    denied = limiter.take("k", 3)
    undo(denied, "correct", 5)
    undo(denied, "give_back")
    assert limiter.peek("k").remaining == 1


@pytest.mark.parametrize(("real", "remaining"), [(3, 7), (5, 5), (8, 2), (0, 10), (14, 0)])
def test_a_correction_leaves_the_real_cost(face, clock, real, remaining):
    limiter = face(FixedWindow(10, MINUTE), clock=clock)
    undo(limiter.take("k", 5), "correct", real)
    assert limiter.peek("k").remaining == remaining


@pytest.mark.parametrize("real", [25, 26, 10**30])
def test_a_correction_charges_at_most_the_limit(face, clock, real):
    limiter = face(TokenBucket(20, 10), clock=clock)
    undo(limiter.take("k", 5), "correct", real)
    assert limiter.peek("k").reset_after == 2.5  # 25 of 20 are taken, and 10 come back each second


def test_a_correction_charges_each_rule_at_most_its_own_limit(face, clock):
    limiter = face({"few": TokenBucket(10, 1), "many": TokenBucket(1000, 1)}, clock=clock)
    undo(limiter.take("k", 1), "correct", {"few": 10**30, "many": 900})
    layers = limiter.peek("k").layers
    assert {name: layer.reset_after for name, layer in layers.items()} == {"few": 11, "many": 900}


def test_a_reservation_can_be_corrected_again_and_given_back_as_it_stands_then(face, clock):
    limiter = face(FixedWindow(10, MINUTE), clock=clock)
    taken = limiter.take("k", 5)
    remaining = []
    for real in (8, 2, 4):
        undo(taken, "correct", real)
        remaining.append(limiter.peek("k").remaining)
    undo(taken, "give_back")
    undo(taken, "correct", 9)  # it is over
    assert (remaining, limiter.peek("k").remaining) == ([2, 8, 6], 10)


def test_a_window_that_began_later_gets_nothing_back(face, clock):
    limiter = face(FixedWindow(10, MINUTE), clock=clock)
    taken = limiter.take("k", 5)
    clock.advance(60)
    limiter.hit("k", 3)
    undo(taken, "give_back")
    assert limiter.peek("k").remaining == 7


def test_a_bucket_gets_back_what_has_not_drained_since(face, clock):
    limiter = face(TokenBucket(10, 1), clock=clock)
    taken = limiter.take("k", 6)
    clock.advance(2)
    undo(taken, "give_back")
    assert limiter.peek("k").remaining == 10
    limiter.hit("k", 10)
    early = limiter.take("other", 6)
    clock.advance(4)
    limiter.hit("other", 5)
    undo(early, "give_back")  # two of its six are still in use, besides the five
    assert limiter.peek("other").remaining == 5


def test_a_log_gets_back_the_units_of_that_time_only(face, clock):
    limiter = face(SlidingWindowLog(10, MINUTE), clock=clock)
    taken = limiter.take("k", 3)
    clock.advance(30)
    limiter.hit("k", 4)
    undo(taken, "give_back")
    assert limiter.peek("k").remaining == 6
    clock.advance(30)
    assert limiter.peek("k").remaining == 6  # the later four still count


def test_in_a_queue_only_the_last_is_given_back(face, clock):
    limiter = face(LeakyBucket(10, 1, "shaping"), clock=clock)
    first, last = limiter.take("k", 2), limiter.take("k", 3)
    undo(first, "give_back")
    assert limiter.peek("k").remaining == 5
    undo(last, "give_back")
    assert limiter.peek("k").remaining == 8


def test_several_rules_are_corrected_one_by_one(face, clock):
    limiter = face({"requests": FixedWindow(10, MINUTE), "tokens": FixedWindow(1000, MINUTE)}, clock=clock)
    taken = limiter.take("k", {"requests": 1, "tokens": 400})
    undo(taken, "correct", {"tokens": 250})
    layers = limiter.peek("k").layers
    assert {name: layer.remaining for name, layer in layers.items()} == {"requests": 9, "tokens": 750}
    undo(taken, "correct", {"requests": 3, "tokens": 100})
    layers = limiter.peek("k").layers
    assert {name: layer.remaining for name, layer in layers.items()} == {"requests": 7, "tokens": 900}


def test_a_rule_that_was_left_out_can_be_charged_by_a_correction(face, clock):
    limiter = face({"requests": FixedWindow(10, MINUTE), "tokens": FixedWindow(1000, MINUTE)}, clock=clock)
    taken = limiter.take({"requests": "r", "tokens": "t"}, {"requests": 1, "tokens": 0})
    undo(taken, "correct", {"tokens": 30})
    layers = limiter.peek({"requests": "r", "tokens": "t"}).layers
    assert {name: layer.remaining for name, layer in layers.items()} == {"requests": 9, "tokens": 970}


@pytest.mark.parametrize(("real", "error"), [(-1, InvalidRule), (1.5, TypeError), ({"nobody": 1}, InvalidRule)])
def test_a_real_cost_that_is_none_changes_nothing(face, clock, real, error):
    limiter = face(FixedWindow(10, MINUTE), clock=clock)
    taken = limiter.take("k", 5)
    with pytest.raises(error, match=r"real cost|cost must be"):
        undo(taken, "correct", real)
    assert limiter.peek("k").remaining == 5


def test_a_give_back_wakes_who_waits(clock):
    limiter = Limiter(FixedWindow(5, MINUTE), clock=clock)
    taken = limiter.take("k", 5)
    waiting = Call(limiter.wait, "k", 2)
    until(lambda: waiters(limiter), "one in the queue")
    taken.correct(3)
    assert waiting.outcome().allowed


def test_wait_and_take_waits_and_can_be_given_back(clock):
    limiter = Limiter(LeakyBucket(10, 1, "shaping"), clock=clock)
    limiter.hit("k", 2)
    waiting = Call(limiter.wait_and_take, "k", 3)
    until(lambda: waiters(limiter, "departure"), "one in the queue")
    clock.advance(2)
    taken = waiting.outcome()
    assert taken.decision.allowed
    taken.give_back()
    assert limiter.peek("k").remaining == 8  # of its three, one has not drained since it was charged


def test_wait_and_take_raises_what_wait_does(face, clock):
    limiter = face(FixedWindow(5, MINUTE), clock=clock)
    limiter.hit("k", 5)
    with pytest.raises(RateLimited) as raised:
        limiter.wait_and_take("k", timeout=1)
    assert raised.value.decision.retry_after == 60.0


def test_what_is_switched_off_takes_nothing(face, clock):
    store = MemoryStore()
    limiter = face(FixedWindow(5, MINUTE), store, clock=clock, enabled=False)
    taken = limiter.take("k", 3)
    undo(taken, "correct", 5)
    undo(taken, "give_back")
    assert (bool(taken), bool(limiter.wait_and_take("k")), store.size) == (True, True, 0)


def test_the_hook_hears_of_what_is_taken(face, clock):
    heard = []
    limiter = face(FixedWindow(5, MINUTE), clock=clock, on_decision=lambda *told: heard.append(told))
    taken = [limiter.take("k", 3), limiter.take("k", 3), limiter.wait_and_take("k", 2)]
    assert heard == [("k", each.decision) for each in taken]


def test_what_this_process_took_while_redis_was_away_is_given_back_here(clock):
    server = servers.RedisServer(servers.programs()[servers.newest()])
    limiter = Limiter({"r": FixedWindow(5, MINUTE)}, RedisStore(server.url), clock=clock, deadline=5)
    taken = limiter.take("k", 2)
    assert not taken.decision.degraded
    server.stop()
    here = limiter.take("k", 3)
    assert here.decision.degraded
    here.give_back()
    assert limiter.peek("k").remaining == 5
    taken.give_back()  # which the server was charged, where it expires
    assert limiter.peek("k").remaining == 5
    limiter.close()


def test_a_store_that_is_away_raises_if_that_is_asked_for():
    server = servers.RedisServer(servers.programs()[servers.newest()])
    with Limiter(FixedWindow(5, MINUTE), server.url, on_error="raise", deadline=5) as limiter:
        taken = limiter.take("k", 2)
        server.stop()
        with pytest.raises(StoreUnavailable):
            taken.correct(1)


# the method that you read is the one that runs


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
def test_every_method_has_its_docstring_and_is_the_class_s_own(kind):
    limiter = kind("10/minute")
    for name in ("hit", "peek", "charge", "refund", "reset", "take", "wait", "wait_and_take", "inspect", "limited"):
        method = getattr(limiter, name)
        assert method.__doc__
        assert method.__func__ is getattr(kind, name)


def test_a_hit_that_is_patched_is_what_runs():
    limiter = Limiter("10/minute")
    with mock.patch.object(Limiter, "hit", return_value="patched"):
        assert limiter.hit("k") == "patched"
    assert limiter.hit("k").allowed


# the fast path answers as the layers do


@pytest.mark.parametrize("rule", ["fixed-window 3/minute", "sliding-window-log 3/minute", "3/minute", "1/s burst 3"])
def test_the_quick_way_answers_as_the_layers_do(rule):
    costs = [1, 2, 1, 4, 1, 1, 3]
    answers = []
    for on_decision in (None, lambda *_: None):  # with a hook, only the layers decide
        clock = ManualClock(1_700_000_040)
        limiter = Limiter(rule, clock=clock, on_decision=on_decision)
        decided = []
        for cost, at in zip(costs, itertools.count()):
            clock.set(1_700_000_040 + 7 * at)
            decided += [limiter.hit(key, cost) for key in ("k", b"k", ("k", 1), 7)]
        answers.append(decided)
    assert answers[0] == answers[1]


def test_a_task_that_is_cancelled_before_it_is_admitted_takes_nothing(clock):
    async def scenario():
        limiter = AsyncLimiter(LeakyBucket(10, 1, "shaping"), clock=clock)
        await limiter.hit("k", 2)
        waiting = asyncio.ensure_future(limiter.wait_and_take("k", 3))
        await asyncio.sleep(0)
        assert in_queue(limiter, "departure") == 1
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        return (await limiter.peek("k")).remaining

    assert asyncio.run(scenario()) == 8
