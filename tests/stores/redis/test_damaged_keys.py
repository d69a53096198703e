"""A stored key that is damaged, or not ours, concerns its own callers alone: fuzzed values under the names of keys."""

import asyncio
import random

import msgpack
import pytest
import redis

from ratekeeper import (
    AsyncLimiter,
    Decision,
    FixedWindow,
    LeakyBucket,
    Limiter,
    RateLimited,
    SlidingWindowCounter,
    SlidingWindowLog,
    StoreUnavailable,
    TokenBucket,
)
from ratekeeper.testing import ManualClock
from tests import inside
from tests.waiters import PATIENCE, Call, RecordingWaiter, in_queue, until

RULES = {
    "fixed-window": FixedWindow(20, 60),
    "sliding-window-log": SlidingWindowLog(200, 60),
    "sliding-window-counter": SlidingWindowCounter(20, 60),
    "token-bucket": TokenBucket(20, 1),
    "leaky-bucket shaping": LeakyBucket(20, 1, "shaping"),
}
STRICT = {"on_error": "raise", "deadline": 30}
BLOCK = 27  # bytes of a log's block before its entries


@pytest.fixture(params=RULES.values(), ids=RULES)
def rule(request):
    return request.param


@pytest.fixture
def clock():
    return ManualClock(1_700_000_040)


@pytest.fixture
def limiter(server, client, rule, clock):
    with Limiter({"r": rule}, server.url, clock=clock, **STRICT) as limiter:
        yield limiter


def of_another_type(client, name, kind):
    """Put a value of this type under a name."""
    client.delete(name)
    {
        "string": lambda: client.set(name, b"hello"),
        "list": lambda: client.rpush(name, b"hello", b"world"),
        "hash": lambda: client.hset(name, "field", "value"),
        "set": lambda: client.sadd(name, "member"),
        "sorted set": lambda: client.zadd(name, {"member": 1.0}),
        "stream": lambda: client.xadd(name, {"field": "value"}),
    }[kind]()


def used(limiter, client, clock, times=80):
    """Use a key, so that a log has several blocks, some expired entries and some that were given back."""
    for number in range(times):
        clock.advance(0.9)
        limiter.hit("k", 1 + number % 3)
    limiter.charge("k", 2**24)
    clock.advance(0.1)
    limiter.refund("k", 2**24)
    (name,) = client.keys("*")
    return name


def stored(client, name):
    return client.lrange(name, 0, -1) if client.type(name) == b"list" else [client.get(name)]


def put(client, name, blocks):
    is_list = client.type(name) == b"list"
    client.delete(name)
    if is_list:
        client.rpush(name, *blocks)
    else:
        client.set(name, blocks[0])


OPERATIONS = {
    "hit": lambda limiter: limiter.hit("k"),
    "denied hit": lambda limiter: limiter.hit("k", limiter.rules["r"].limit),
    "peek": lambda limiter: limiter.peek("k"),
    "charge": lambda limiter: limiter.charge("k", 3),
    "refund": lambda limiter: limiter.refund("k", 3),
    "refund of nearly all": lambda limiter: limiter.refund("k", limiter.rules["r"].limit - 5),
    "inspect": lambda limiter: limiter.inspect("k"),
    "snapshot": lambda limiter: inside.below(limiter).snapshot(inside.demands(limiter, "k")),
    "reset": lambda limiter: limiter.reset("k"),
}


def give_back(limiter, clock, ago):
    now_us = clock() // 1000
    charged_us = now_us - round(ago * 1e6)
    return inside.give_back(limiter, "k", 2, charged_us, charged_us + limiter.rules["r"].window_us)


@pytest.mark.parametrize("kind", ["string", "list", "hash", "set", "sorted set", "stream"])
@pytest.mark.parametrize("operation", [name for name in OPERATIONS if name != "reset"])
def test_a_value_of_another_kind_is_an_error_that_names_the_rule_and_not_the_key(limiter, client, kind, operation):
    limiter.hit("k")
    (name,) = client.keys("*")
    of_another_type(client, name, kind)
    with pytest.raises(StoreUnavailable, match=f"a key of rule 'r' holds no state of a {limiter.rules['r'].algorithm}"):
        OPERATIONS[operation](limiter)
    assert not limiter.store.breaker.is_open
    limiter.reset("k")
    assert client.dbsize() == 0
    assert limiter.hit("k").allowed


def plausible(chance, now_us):
    """A log's block with fields of the right lengths, whatever they say."""
    width = chance.choice([3, 6])

    def about(center, spread):
        return max(0, center + chance.randrange(-spread, spread))

    def total():
        return chance.choice([0, chance.randrange(300), chance.randrange(2**48)])

    def time():
        return about(now_us, chance.choice([1, 10**6, 10**8])) if chance.random() < 0.9 else chance.randrange(2**56)

    header = [
        time().to_bytes(7, "big"),
        total().to_bytes(6, "big"),
        time().to_bytes(7, "big"),
        total().to_bytes(6, "big"),
    ]
    entries = [
        chance.randrange(10 ** chance.choice([1, 7, 12])).to_bytes(5, "big")
        + min(total(), 256**width - 1).to_bytes(width, "big")
        for _ in range(chance.choice([1, 2, 31, 32, 33]))
    ]
    return bytes([width]) + b"".join(header + entries)


def mutations(chance, blocks, now_us):
    """Give damaged versions of what a key holds."""
    for _ in range(80):
        damaged = list(blocks)
        at = chance.randrange(-2, len(damaged)) % len(damaged)  # the last block is looked at most
        block = bytearray(damaged[at])
        way = chance.randrange(10)
        if way == 0:
            block += chance.randbytes(chance.choice([1, 1, 2, 7, 8, 16, 300]))
        elif way == 1:
            del block[chance.randrange(len(block)) :]
        elif way == 2:
            block = bytearray(chance.randbytes(chance.choice([0, 1, 8, BLOCK, BLOCK + 8, BLOCK + 80])))
        elif way in (3, 4):
            for _ in range(chance.choice([1, 1, 3, 20])):
                block[chance.randrange(len(block))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        elif way == 5:
            block = bytearray(block[:BLOCK]) + block[BLOCK:][::-1]
        elif way in (8, 9) and blocks[0][0] in (3, 6):
            block = plausible(chance, now_us)
        if way == 6:
            del damaged[at]
        elif way == 7:
            chance.shuffle(damaged)
        else:
            damaged[at] = bytes(block)
        if damaged and damaged != blocks:
            yield damaged


def unreadable(ask, limiter):
    """Ask for a damaged key; tell whether it could not be read. An answer is at least one that a rule can give."""
    try:
        answered = ask(limiter)
    except StoreUnavailable as error:
        if "holds no state" in str(error) and error.answered:
            return True
        raise
    if isinstance(answered, Decision):
        assert min(answered.remaining, answered.reset_after, answered.delay) >= 0
        assert answered.allowed or answered.retry_after > 0
    return False


@pytest.mark.parametrize("seed", range(3))
def test_no_damage_hangs_the_script_or_raises_another_error(limiter, client, clock, seed):
    chance = random.Random(f"{seed} {limiter.rules}")
    name = used(limiter, client, clock)
    intact = stored(client, name)
    refused = 0
    for damaged in mutations(chance, intact, clock() // 1000):
        for ask in OPERATIONS.values():
            put(client, name, damaged)
            refused += unreadable(ask, limiter)
        for ago in (1, 5.5):
            put(client, name, damaged)
            refused += unreadable(lambda limiter, ago=ago: give_back(limiter, clock, ago), limiter)
        limiter.reset("k")
        assert limiter.hit("k").allowed
    assert refused > 20
    assert not limiter.store.breaker.is_open


@pytest.mark.parametrize(
    "rule", [rule for rule in RULES.values() if rule.stored_as == "string"], ids=lambda it: it.text
)
def test_numbers_that_may_be_a_state_are_answered(limiter, client, clock):
    chance = random.Random(1)
    limiter.hit("k")
    (name,) = client.keys("*")
    size = len(numbers(client.get(name)))
    for _ in range(200):
        state = [chance.choice([0, 1, chance.randrange(2**53), clock() // 1000, 2**53]) for _ in range(size)]
        for ask in OPERATIONS.values():
            client.set(name, b"\xff" + b"".join(map(msgpack.packb, state)))
            unreadable(ask, limiter)


def numbers(value):
    unpacker = msgpack.Unpacker()
    unpacker.feed(value)
    return list(unpacker)[1:]


@pytest.mark.parametrize("where", ["last", "first", "middle", "another type"])
def test_others_in_the_same_batch_are_unharmed(server, client, where):
    """One call asks for the damaged key and for fifty others; each of them is charged once."""
    clock = ManualClock(1_700_000_040)
    rules = {"log": SlidingWindowLog(200, 60), "bucket": TokenBucket(1000, 1)}

    async def scenario():
        async with AsyncLimiter(rules, server.url, clock=clock, **STRICT) as limiter:
            for _ in range(100):
                clock.advance(0.5)
                await limiter.hit("bad")
            clock.advance(20)
            (name,) = client.keys("*sl:*bad*")
            blocks = stored(client, name)
            at = {"last": -1, "first": 0, "middle": 1}.get(where)
            if at is None:
                of_another_type(client, name, "hash")
            else:
                blocks[at] += b"!"
                put(client, name, blocks)
            before = client.info("commandstats")["cmdstat_evalsha"]["calls"]
            asked = [limiter.hit(key) for number in range(50) for key in (f"k{number}", "bad")]
            asked += [limiter.charge("bad", {"log": 0, "bucket": 1})]
            ended = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), PATIENCE)
            calls = client.info("commandstats")["cmdstat_evalsha"]["calls"] - before
            left = {(await limiter.peek(f"k{number}")).layers["bucket"].remaining for number in range(50)}
            return ended, calls, left, limiter.store.breaker.openings

    ended, calls, left, openings = asyncio.run(scenario())
    assert {type(end).__name__ for end in ended[0:100:2]} == {"Decision"}
    assert left == {999}
    assert openings == 0
    assert calls <= 8
    if where in ("last", "another type"):
        assert {str(end) for end in ended[1:100:2]} == {
            "a key of rule 'log' holds no state of a sliding-window-log, or a damaged one"
        }
    assert ended[-1].allowed


def test_a_damaged_key_is_decided_by_on_error_noted_once_and_mended_by_a_reset(server, client, caplog):
    rules = {"log": SlidingWindowLog(2, 60), "count": FixedWindow(5, 86_400)}
    with Limiter(rules, server.url, deadline=30) as limiter:
        limiter.hit("ada@example.org")
        for name in client.keys("*"):
            of_another_type(client, name, "set")
        decisions = [limiter.hit("ada@example.org") for _ in range(3)]
        assert [(decision.allowed, decision.degraded) for decision in decisions] == [
            (True, True),
            (True, True),
            (False, True),
        ]
        assert limiter.notices.counts["degraded"] == 3
        (record,) = caplog.records
        assert "rule 'log'" in record.getMessage()
        assert "reset it" in record.getMessage()
        assert "ada" not in caplog.text
        assert limiter.hit("bob").degraded is False
        limiter.reset("ada@example.org")
        decision = limiter.hit("ada@example.org")
        assert (decision.allowed, decision.degraded, decision.remaining) == (True, False, 1)
        assert not limiter.store.is_away


def test_who_waits_for_a_damaged_key_is_served_by_on_error(server, client, monkeypatch):
    monkeypatch.setattr("ratekeeper.queues.Waiter", RecordingWaiter)
    clock = ManualClock(1_700_000_040)
    with Limiter(SlidingWindowLog(1, 60), server.url, clock=clock, deadline=30) as limiter:
        limiter.hit("k")
        (name,) = client.keys("*")
        client.rpush(name, b"!")
        waiting = [Call(limiter.wait, "k", 1, timeout) for timeout in (None, 100)]
        assert waiting[0].outcome().degraded or waiting[1].outcome().degraded
        until(lambda: in_queue(limiter) == 1, "one in the queue")
        with pytest.raises(RateLimited):
            Call(limiter.wait, "k", 1, 100).outcome()
        limiter.reset("k")  # and so the other one is admitted by Redis
        assert {call.outcome().degraded for call in waiting} == {True, False}


def test_a_damaged_log_does_not_keep_the_server_busy(server, client):
    """A byte behind its last entry made the script loop for ever."""
    with Limiter(SlidingWindowLog(3, 86_400), server.url, **STRICT) as limiter:
        limiter.hit("k", 3)
        (name,) = client.keys("*")
        client.lset(name, -1, client.lindex(name, -1) + b"!")
        with redis.Redis(port=server.port, socket_timeout=PATIENCE) as other:
            with pytest.raises(StoreUnavailable, match="holds no state"):
                limiter.hit("k")
            assert other.ping()
