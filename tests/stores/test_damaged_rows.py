"""A damaged row in the file of a SqliteStore concerns the callers of its key alone: fuzzed values in its columns."""

import asyncio
import random
import sqlite3

import pytest

from ratekeeper import AsyncLimiter, FixedWindow, Limiter, RateLimited, SlidingWindowLog, StoreUnavailable
from ratekeeper.algorithms import all_of
from ratekeeper.testing import ManualClock
from tests import inside
from tests.waiters import PATIENCE

RULES = all_of(20, 60_000_000)
OPERATIONS = {
    "hit": lambda limiter: limiter.hit("k"),
    "denied hit": lambda limiter: limiter.hit("k", 20),
    "peek": lambda limiter: limiter.peek("k"),
    "charge": lambda limiter: limiter.charge("k", 3),
    "refund": lambda limiter: limiter.refund("k", 3),
    "give back": lambda limiter: inside.give_back(limiter, "k", 1, limiter.timer() // 1000, limiter.timer() // 1000),
    "inspect": lambda limiter: limiter.inspect("k"),
    "snapshot": lambda limiter: inside.below(limiter).snapshot(inside.demands(limiter, "k")),
}


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "limits.db"


def change(path, column, value):
    """Change the only row, behind the store's back."""
    with sqlite3.connect(path) as database:
        assert database.execute(f"UPDATE keys SET {column} = ?", (value,)).rowcount == 1
    database.close()


def state_in(path):
    with sqlite3.connect(path) as database:
        ((state,),) = database.execute("SELECT state FROM keys").fetchall()
    database.close()
    return state


def damaged(chance, state):
    """Give damaged versions of a state."""
    yield from (0, 1.5, b"", "", b"\0" * 27, "one two three", "1 2 3 4 5", "9" * 5_000)
    raw = state if isinstance(state, bytes) else state.encode()
    for _ in range(60):
        value = bytearray(raw)
        way = chance.randrange(4)
        if way == 0:
            value += chance.randbytes(chance.choice([1, 8, 16]))
        elif way == 1:
            del value[chance.randrange(len(value)) :]
        elif way == 2:
            value[chance.randrange(len(value))] ^= 1 << chance.randrange(8)
        else:
            value = bytearray(chance.randbytes(chance.choice([1, 8, 24, 40, 400])))
        yield bytes(value) if isinstance(state, bytes) else value.decode("latin-1")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.text)
def test_no_damaged_state_raises_another_error_and_a_reset_mends_it(path, clock, rule):
    chance = random.Random(rule.text)
    with Limiter({"r": rule}, f"sqlite:///{path}", clock=clock, on_error="raise", deadline=30) as limiter:
        for _ in range(10):
            limiter.hit("k")
            clock.advance(0.01)
        state = state_in(path)
        refused = 0
        for value in damaged(chance, state):
            for ask in OPERATIONS.values():
                limiter.reset("k")
                limiter.hit("k")
                change(path, "state", value)
                try:
                    ask(limiter)
                except StoreUnavailable as error:
                    if f"a key of rule 'r' holds no state of a {rule.algorithm}" not in str(error):
                        raise
                    refused += 1
            limiter.reset("k")
            assert limiter.hit("k").remaining == 19
        assert refused > 100
        assert not limiter.store.is_away


@pytest.mark.parametrize("column", ["expires_us", "due_us"])
@pytest.mark.parametrize("value", ["soon", b"\1", -1, 1.5, 1 << 62])
def test_a_damaged_time_of_expiry_hurts_nobody(path, clock, column, value):
    with Limiter(FixedWindow(20, 60), f"sqlite:///{path}", clock=clock, on_error="raise", deadline=30) as limiter:
        limiter.hit("k")
        change(path, column, value)
        clock.advance(2)  # keys are looked at once a second, whether they have expired
        assert limiter.hit("other").remaining == 19
        assert limiter.hit("k").allowed


def test_a_damaged_row_is_decided_by_on_error_noted_once_and_mended_by_a_reset(path, clock, caplog):
    rules = {"log": SlidingWindowLog(2, 60)}
    with Limiter(rules, f"sqlite:///{path}", clock=clock, deadline=30) as limiter:
        limiter.hit("ada@example.org")
        change(path, "state", b"\0" * 40)
        decisions = [limiter.hit("ada@example.org") for _ in range(3)]
        assert [(decision.allowed, decision.degraded) for decision in decisions] == [
            (True, True),
            (True, True),
            (False, True),
        ]
        assert limiter.notices.counts["degraded"] == 3
        (record,) = caplog.records
        assert "a key of rule 'log' cannot be read; reset it" in record.getMessage()
        assert "ada" not in caplog.text
        assert limiter.hit("bob").degraded is False
        limiter.reset("ada@example.org")
        assert (limiter.hit("ada@example.org").remaining, limiter.store.is_away) == (1, False)


def test_who_waits_for_a_damaged_row_is_served_by_on_error(path, clock):
    async def scenario():
        async with AsyncLimiter(SlidingWindowLog(1, 60), f"sqlite:///{path}", clock=clock, deadline=30) as limiter:
            await limiter.hit("k")
            change(path, "state", "a log?")
            assert (await limiter.wait("k")).degraded
            waiting = asyncio.create_task(limiter.wait("k"))
            await asyncio.sleep(0)
            with pytest.raises(RateLimited):
                await asyncio.wait_for(limiter.wait("k", timeout=100), PATIENCE)
            await limiter.reset("k")
            return (await asyncio.wait_for(waiting, PATIENCE)).degraded

    assert asyncio.run(scenario()) is False
