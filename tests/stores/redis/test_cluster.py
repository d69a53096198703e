"""A cluster: keys are found wherever their slot is, and layers on several nodes are all or nothing."""

import asyncio
import contextlib
import gc
import socket
import threading

import pytest
import redis
import redis.asyncio

from ratekeeper import (
    AsyncLimiter,
    FixedWindow,
    LeakyBucket,
    Limiter,
    RateLimited,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
)
from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores import AsyncRedisStore, RedisStore
from ratekeeper.stores.redis.wire import slot_of
from tests import clusters, inside, servers
from tests.clusters import client
from tests.faces import FACES

STRICT = {"on_error": "raise", "deadline": 10.0}
RULES = [
    FixedWindow(50, "365d"),
    SlidingWindowLog(50, "365d"),
    SlidingWindowCounter(50, "365d"),
    TokenBucket(50, "1/day"),
    LeakyBucket(50, "1/day"),
]


@pytest.fixture(scope="module", params=servers.programs())
def cluster(request):
    return clusters.shared_cluster(request.param)


@pytest.fixture
def empty(cluster):
    """A cluster without keys and scripts."""
    for server in cluster.masters:
        client(server).flushall()
        client(server).script_flush()
    return cluster


def on_each_node(cluster, name="key"):
    """Return a key for each master; tests that move slots have names of their own."""
    holders = {}
    number = 0
    while len(holders) < len(cluster.masters):
        holders.setdefault(cluster.holder(slot_of(f"{name} {number}")), f"{name} {number}")
        number += 1
    return {server: holders[server] for server in cluster.masters}


def test_every_node_gets_its_keys_and_the_script(empty):
    with Limiter(FixedWindow(5, "365d"), empty.url, **STRICT) as limiter:
        keys = on_each_node(empty).values()
        assert [limiter.hit(key).remaining for key in keys] == [4, 4, 4]
        for server in empty.masters:
            client(server).script_flush()
        assert [limiter.hit(key).remaining for key in keys] == [3, 3, 3]
    assert [client(server).dbsize() for server in empty.masters] == [1, 1, 1]


def test_what_is_asked_for_at_once_goes_to_its_nodes(empty):
    async def scenario():
        async with AsyncLimiter(FixedWindow(5, "365d"), empty.url, **STRICT) as limiter:
            decisions = await asyncio.gather(*(limiter.hit(f"key {number % 500}") for number in range(1_000)))
            return sorted(decision.remaining for decision in decisions)

    assert asyncio.run(scenario()) == [3] * 500 + [4] * 500
    assert empty.totals() == 500


def test_a_key_is_inspected_where_it_is(empty):
    with Limiter({"user": FixedWindow(5, "365d"), "all": SlidingWindowLog(9, "365d")}, empty.url, **STRICT) as limiter:
        keys = {"user": "ada", "all": "everybody"}
        limiter.hit(keys, 2)
        seen = limiter.inspect(keys)
        assert {name: inspection.state["count"] for name, inspection in seen.items()} == {"user": 2, "all": 2}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.algorithm)
def test_layers_on_several_nodes_admit_the_tightest_and_keep_nothing_of_what_was_voided(empty, rule):
    """Threads with stores of their own race for the tightest layer; the losers give the others back."""
    users, tenant, everybody = [f"user {number}" for number in range(4)], "a tenant", "everybody"
    rules = {"user": rule, "tenant": type(rule)(*_with_limit(rule, 120)), "all": type(rule)(*_with_limit(rule, 90))}
    admitted = dict.fromkeys(users, 0)

    def work(user):
        with Limiter(rules, RedisStore(empty.url, remember_denials=False), **STRICT) as limiter:
            for _ in range(60):
                if limiter.hit({"user": user, "tenant": tenant, "all": everybody}).allowed:
                    admitted[user] += 1

    threads = [threading.Thread(target=work, args=(user,)) for user in users]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total = sum(admitted.values())
    assert total <= 90
    with Limiter(rules, empty.url, **STRICT) as limiter:
        for user in users:
            layers = limiter.peek({"user": user, "tenant": tenant, "all": everybody}).layers
            remaining = {name: layer.remaining for name, layer in layers.items()}
            assert remaining == {"user": 50 - admitted[user], "tenant": 120 - total, "all": 90 - total}


def _with_limit(rule, limit):
    if isinstance(rule, TokenBucket):
        return limit, rule.refill_rate
    return (limit, rule.leak_rate) if isinstance(rule, LeakyBucket) else (limit, rule.window)


TWO = {"first": FixedWindow(50, "365d"), "last": FixedWindow(50, "365d")}


def before_the_charge(monkeypatch, limiter, key, action):
    """Do something just before the part of a hit that has this key is charged."""
    servers = inside.servers(limiter.store)
    node_of = servers.node_of

    def interposed(request):
        if (request[0].operation, request[0].key) == ("hit", key):
            action()
        return node_of(request)

    monkeypatch.setattr(servers, "node_of", interposed)


def pause(server, seconds):
    """Let a server answer no client for a while, and remain a member of its cluster."""
    client(server).execute_command("CLIENT PAUSE", int(seconds * 1000), "ALL")


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("spent", [0, 5], ids=["charged", "not charged"])
def test_a_part_that_does_not_bind_is_given_back_if_it_was_charged_when_a_later_part_denies(
    empty, monkeypatch, face, spent
):
    rules = {"shadow": FixedWindow(5, "365d"), "other": FixedWindow(50, "365d"), "last": FixedWindow(1, "365d")}
    keys = dict(zip(rules, on_each_node(empty).values(), strict=True))
    with Limiter(rules, empty.url, **STRICT) as another:
        another.charge(keys, {"shadow": spent or 1, "other": 1, "last": 0})
        limiter = FACES[face](rules, empty.url, shadow=["shadow"], **STRICT)
        before_the_charge(
            monkeypatch, limiter, keys["last"], lambda: another.hit(keys, {"shadow": 0, "other": 0, "last": 1})
        )
        assert (decision := limiter.hit(keys)).rule == "last"
        assert not decision
        left = {name: layer.remaining for name, layer in another.peek(keys).layers.items()}
        assert left == {"shadow": 5 - (spent or 1), "other": 49, "last": 0}
    limiter.close()


@pytest.mark.parametrize("face", FACES)
def test_what_was_taken_is_given_back_when_a_later_part_is_not_decided_in_time(empty, monkeypatch, face):
    first, last, other = on_each_node(empty).values()
    limiter = FACES[face](TWO, empty.url, on_error="raise", deadline=2.0)
    before_the_charge(monkeypatch, limiter, last, lambda: pause(empty.masters[1], 2.5))
    with pytest.raises(StoreUnavailable):
        limiter.hit({"first": first, "last": last})
    elsewhere = {"first": first, "last": other}
    clusters.until(lambda: limiter.peek(elsewhere).layers["first"].remaining == 50, "the first part is given back")
    limiter.close()


def test_what_was_taken_is_given_back_when_a_signal_interrupts_a_later_part(empty, monkeypatch):
    first, last, _ = on_each_node(empty).values()

    def interrupt():
        raise KeyboardInterrupt

    with Limiter(TWO, empty.url, **STRICT) as limiter:
        before_the_charge(monkeypatch, limiter, last, interrupt)
        with pytest.raises(KeyboardInterrupt):
            limiter.hit({"first": first, "last": last})
        layers = limiter.peek({"first": first, "last": last}).layers
    assert [layer.remaining for layer in layers.values()] == [50, 50]


def test_a_hit_on_several_nodes_that_is_cancelled_takes_all_or_nothing(empty, monkeypatch):
    first, last, _ = on_each_node(empty).values()

    async def scenario():
        async with AsyncLimiter(TWO, empty.url, **STRICT) as limiter:
            reached = asyncio.Event()
            before_the_charge(monkeypatch, limiter, first, reached.set)
            hit = asyncio.create_task(limiter.hit({"first": first, "last": last}))
            await asyncio.wait_for(reached.wait(), servers.PATIENCE)
            hit.cancel()
            with pytest.raises(asyncio.CancelledError):
                await hit
        layers = (await limiter.peek({"first": first, "last": last})).layers
        await limiter.close()
        return [layer.remaining for layer in layers.values()]

    assert asyncio.run(scenario()) == [49, 49]


def test_what_goes_wrong_when_the_caller_is_gone_is_nobodys_error(empty, monkeypatch):
    first, last, _ = on_each_node(empty).values()
    unheard = []

    async def scenario():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
        async with AsyncLimiter(TWO, empty.url, on_error="raise", deadline=1) as limiter:
            reached = asyncio.Event()
            before_the_charge(monkeypatch, limiter, last, lambda: (pause(empty.masters[1], 1.5), reached.set()))
            hit = asyncio.create_task(limiter.hit({"first": first, "last": last}))
            await asyncio.wait_for(reached.wait(), servers.PATIENCE)
            hit.cancel()
            with pytest.raises(asyncio.CancelledError):
                await hit

    asyncio.run(scenario())
    gc.collect()
    assert not unheard


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
def test_a_denial_of_layers_on_several_nodes_takes_nothing_and_is_remembered(empty, kind):
    rules = {"first": FixedWindow(50, "365d"), "last": FixedWindow(1, "365d")}
    first, last, _ = on_each_node(empty).values()

    async def scenario():
        limiter = kind(rules, empty.url, **STRICT)
        answers = []
        for number in range(8):
            if number == 3:
                asked = _calls(empty)
            decision = limiter.hit({"first": first, "last": last})
            answers.append(await decision if kind is AsyncLimiter else decision)
        closing = limiter.close()
        assert _calls(empty) == asked
        if closing is not None:
            await closing
        return [(answer.allowed, answer.layers["first"].remaining) for answer in answers]

    assert asyncio.run(scenario()) == [(True, 49)] + [(False, 49)] * 7


def _calls(cluster):
    return sum(
        client(server).info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0) for server in cluster.masters
    )


def test_keys_are_followed_while_their_slot_moves_and_afterwards(empty):
    source, target = empty.masters[:2]
    moving = on_each_node(empty)[source]
    slot = slot_of(moving)
    rules = {"a": FixedWindow(100, "365d"), "b": SlidingWindowLog(100, "365d")}
    with Limiter(rules, empty.url, **STRICT) as both, Limiter(FixedWindow(100, "365d"), empty.url, **STRICT) as one:
        used = [one.hit(moving).remaining, both.hit(moving).remaining]
        empty.begin_to_move(slot, target)
        used += [one.hit(moving).remaining, both.hit(moving).remaining]
        assert empty.move_keys(slot, source, target, most=2) == 2  # and one stays
        used += [one.hit(moving).remaining, both.hit(moving).remaining]
        empty.move_keys(slot, source, target)
        used += [one.hit(moving).remaining, both.hit(moving).remaining]
        empty.end_move(slot, target)
        used += [one.hit(moving).remaining, both.hit(moving).remaining]
        assert used == [99, 99, 98, 98, 97, 97, 96, 96, 95, 95]
        assert not both.store.is_away
        empty.move(slot, source)
        assert both.hit(moving).remaining == 94


def test_both_rules_on_a_moving_untouched_key_are_decided(empty):
    source, target = empty.masters[:2]
    moving = on_each_node(empty, "untouched")[source]
    rules = {"a": FixedWindow(100, "365d"), "b": FixedWindow(50, "365d")}
    empty.begin_to_move(slot_of(moving), target)
    try:
        with Limiter(rules, empty.url, **STRICT) as limiter:
            assert [limiter.hit(moving).layers["a"].remaining for _ in range(3)] == [99, 98, 97]
    finally:
        empty.move(slot_of(moving), target)
        empty.move(slot_of(moving), source)


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
def test_two_rules_on_a_key_that_is_half_moved_and_a_third_elsewhere_are_decided(empty, kind):
    source, target, other = empty.masters
    keys = on_each_node(empty, f"half moved for {kind.__name__}")
    moving, elsewhere = keys[source], keys[other]
    rules = {"a": FixedWindow(100, "365d"), "b": SlidingWindowLog(90, "365d"), "c": FixedWindow(80, "365d")}

    async def scenario():
        limiter = kind(rules, empty.url, **STRICT)
        answers = []
        for number in range(3):
            decision = limiter.hit({"a": moving, "b": moving, "c": elsewhere})
            answers.append(await decision if kind is AsyncLimiter else decision)
            if number == 0:
                empty.begin_to_move(slot_of(moving), target)
                assert empty.move_keys(slot_of(moving), source, target, most=1) == 1
        closing = limiter.close()
        if closing is not None:
            await closing
        return [tuple(layer.remaining for layer in answer.layers.values()) for answer in answers]

    try:
        assert asyncio.run(scenario()) == [(99, 89, 79), (98, 88, 78), (97, 87, 77)]
    finally:
        empty.move(slot_of(moving), target)
        empty.move(slot_of(moving), source)


@pytest.mark.parametrize("face", FACES)
def test_all_keys_of_a_slot_that_is_half_moved_are_forgotten(empty, face):
    source, target, _ = empty.masters
    moving = on_each_node(empty, f"half moved and forgotten by {face}")[source]
    limiter = FACES[face]({"a": FixedWindow(100, "365d"), "b": SlidingWindowLog(90, "365d")}, empty.url, **STRICT)
    try:
        limiter.hit(moving)
        empty.begin_to_move(slot_of(moving), target)
        assert empty.move_keys(slot_of(moving), source, target, most=1) == 1
        limiter.reset_all()
        assert empty.totals() == 0
    finally:
        empty.move(slot_of(moving), target)
        empty.move(slot_of(moving), source)
        limiter.close()


@pytest.mark.parametrize("face", FACES)
def test_what_changes_a_key_that_is_half_moved_and_another_elsewhere_is_done_once(empty, face):
    source, target, other = empty.masters
    keys = on_each_node(empty, f"half moved and changed by {face}")
    moving, elsewhere = keys[source], keys[other]
    rules = {"a": FixedWindow(100, "365d"), "b": SlidingWindowLog(90, "365d"), "c": FixedWindow(80, "365d")}
    limiter = FACES[face](rules, empty.url, **STRICT)
    three = {"a": moving, "b": moving, "c": elsewhere}
    try:
        limiter.hit(three, cost=10)
        empty.begin_to_move(slot_of(moving), target)
        assert empty.move_keys(slot_of(moving), source, target, most=1) == 1
        seen = [limiter.charge(three, 5), limiter.refund(three, 2), limiter.peek(three)]
    finally:
        empty.move(slot_of(moving), target)
        empty.move(slot_of(moving), source)
        limiter.close()
    remaining = [tuple(layer.remaining for layer in decision.layers.values()) for decision in seen]
    assert remaining == [(85, 75, 65), (87, 77, 67), (87, 77, 67)]


@pytest.mark.parametrize("face", FACES)
def test_what_was_taken_from_a_key_that_is_half_moved_by_now_is_given_back(empty, monkeypatch, face):
    source, target, other = empty.masters
    keys = on_each_node(empty, f"half moved and given back by {face}")
    moving, elsewhere = keys[source], keys[other]
    rules = {"a": FixedWindow(100, "365d"), "b": SlidingWindowLog(90, "365d"), "c": FixedWindow(1, "365d")}
    three = {"a": moving, "b": moving, "c": elsewhere}

    def be_quicker_and_move_half():
        with Limiter({"c": rules["c"]}, empty.url, **STRICT) as quicker:
            assert quicker.hit(elsewhere).allowed
        empty.begin_to_move(slot_of(moving), target)
        assert empty.move_keys(slot_of(moving), source, target, most=1) == 1

    limiter = FACES[face](rules, empty.url, **STRICT)
    before_the_charge(monkeypatch, limiter, elsewhere, be_quicker_and_move_half)
    try:
        assert not limiter.hit(three).allowed
        remaining = [layer.remaining for layer in limiter.peek(three).layers.values()]
    finally:
        empty.move(slot_of(moving), target)
        empty.move(slot_of(moving), source)
        limiter.close()
    assert remaining == [100, 90, 0]


def test_nodes_that_name_each_other_for_a_slot_are_not_taken_to_be_away(empty):
    one, other, third = empty.masters
    keys = on_each_node(empty, "named by each other")
    lost, slot = keys[one], slot_of(keys[one])
    with Limiter(FixedWindow(5, "365d"), empty.url, **STRICT) as limiter:
        limiter.hit(lost)
        client(one).delete(*client(one).keys("*"))  # a node keeps a slot that has keys
        try:
            client(other).execute_command("CLUSTER SETSLOT", slot, "NODE", empty.id_of(one))
            client(one).execute_command("CLUSTER SETSLOT", slot, "NODE", empty.id_of(other))
            with pytest.raises(StoreUnavailable, match=r"MOVED|Moved"):
                limiter.hit(lost)
            assert not limiter.store.is_away
            assert [limiter.hit(keys[server]).remaining for server in (other, third)] == [4, 4]
        finally:
            empty.end_move(slot, one)
        assert limiter.hit(lost).remaining == 4


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
def test_seeds_that_never_answer_are_passed_over_in_the_end(empty, kind):
    with contextlib.ExitStack() as stack:
        dead = []
        for _ in range(8):
            listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            dead.append(f"127.0.0.1:{listening.getsockname()[1]}")
        url = f"redis+cluster://{','.join(dead)},127.0.0.1:{empty.masters[0].port}"

        async def scenario():
            limiter = kind(FixedWindow(5, "365d"), url, deadline=0.5)
            is_degraded, tries = True, 0
            while is_degraded and tries < 20:  # a few are enough where nothing else runs
                tries += 1
                inside.second_passed(limiter.store)
                decision = limiter.hit("k")
                is_degraded = (await decision if kind is AsyncLimiter else decision).degraded
            closing = limiter.close()
            if closing is not None:
                await closing
            return is_degraded

        assert not asyncio.run(scenario())


def test_an_existing_cluster_client_says_where_the_nodes_are(empty):
    port = empty.masters[0].port
    with (
        redis.RedisCluster("127.0.0.1", port) as theirs,
        Limiter(FixedWindow(5, 60), RedisStore(theirs), **STRICT) as limiter,
    ):
        assert [limiter.hit(key).allowed for key in on_each_node(empty).values()] == [True] * 3


def test_an_existing_asyncio_cluster_client_says_where_the_nodes_are(empty):
    async def scenario():
        theirs = redis.asyncio.RedisCluster("127.0.0.1", empty.masters[0].port)
        store = AsyncRedisStore(theirs)
        limiter = AsyncLimiter(FixedWindow(5, 60), store, **STRICT)
        decisions = await asyncio.gather(*(limiter.hit(key) for key in on_each_node(empty).values()))
        await store.close()
        await (theirs.aclose() if hasattr(theirs, "aclose") else theirs.close())  # 5.0.0 has only the latter
        return [decision.allowed for decision in decisions]

    assert asyncio.run(scenario()) == [True] * 3


def test_a_server_that_is_no_cluster_is_named_so():
    url = servers.shared(servers.newest()).url.replace("redis://", "redis+cluster://").removesuffix("/0")
    with Limiter("1/s", url, **STRICT) as limiter, pytest.raises(StoreUnavailable, match="cluster support disabled"):
        limiter.hit("k")


@pytest.mark.parametrize("face", FACES)
def test_a_node_of_a_cluster_that_is_taken_for_a_lone_server_says_so(empty, face):
    one, other, _ = empty.masters
    keys = on_each_node(empty)
    limiter = FACES[face](FixedWindow(5, "365d"), one.url, **STRICT)
    for ask in (limiter.hit, limiter.inspect):
        with pytest.raises(StoreUnavailable, match=rf"{other.port}, .*redis\+cluster://"):
            ask(keys[other])
    assert limiter.hit(keys[one]).remaining == 4
    assert not limiter.store.is_away
    limiter.close()


@pytest.mark.parametrize("face", FACES.values(), ids=FACES)
def test_a_node_that_is_full_is_away_until_it_can_write(empty, face):
    first, *others = on_each_node(empty).values()
    limiter = face(FixedWindow(3, "365d"), empty.url, deadline=10)
    for key in (first, *others):
        limiter.hit(key, 2)
    full = client(empty.masters[0])
    full.config_set("maxmemory", 1)
    try:
        for _ in range(3):
            for call, cost in ((limiter.hit, 1), (limiter.peek, 1), (limiter.hit, 2)):
                inside.second_passed(limiter.store)
                assert call(first, cost).degraded
            assert not any(limiter.peek(key).degraded for key in others)
        assert [breaker.openings for breaker in limiter.store.node_breakers.values() if breaker.is_open] == [1]
    finally:
        full.config_set("maxmemory", 0)
    inside.second_passed(limiter.store)
    assert (limiter.peek(first).degraded, limiter.peek(first).remaining) == (False, 1)
    assert len(full.keys()) == 1
    limiter.close()


def test_a_node_that_is_away_takes_only_its_own_keys_with_it():
    cluster = clusters.ClusterOfServers(servers.programs()[servers.newest()])
    try:
        for server in cluster.masters:
            client(server).config_set("cluster-require-full-coverage", "no")
        keys = list(on_each_node(cluster).values())
        with Limiter(FixedWindow(10**6, "365d"), cluster.url, deadline=1.0) as limiter:
            assert [limiter.hit(key).degraded for key in keys] == [False] * 3
            cluster.masters[0].stop()
            for _ in range(20):
                assert [limiter.hit(key).degraded for key in keys] == [True, False, False]
            assert limiter.store.is_away
            with Limiter(FixedWindow(1, "365d"), cluster.url, deadline=1.0, on_error="raise") as strict:
                strict.hit(keys[1])
                with pytest.raises(RateLimited):  # the node that is away has no part in it
                    strict.wait(keys[1], timeout=0.01)
            assert [breaker.openings for breaker in limiter.store.node_breakers.values() if breaker.is_open] == [1]
            cluster.masters[0].start()
            clusters.until(lambda: not limiter.hit(keys[0]).degraded, "back on its node")
            assert not limiter.store.is_away
    finally:
        cluster.stop()
