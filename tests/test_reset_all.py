"""`reset_all` forgets every key of a limiter's rules, on every store, and nothing else."""

import asyncio

import pytest
import redis

from ratekeeper import AsyncLimiter, FixedWindow, Limiter, StoreUnavailable
from ratekeeper.algorithms import all_of
from ratekeeper.clock import stopwatch
from ratekeeper.stores import AsyncRedisStore, MemoryStore, RedisStore, SqliteStore
from ratekeeper.testing import ManualClock
from tests import clusters, inside, servers
from tests.conformance.kit import DRIVERS
from tests.faces import FACES, loop
from tests.waiters import Call, in_queue, until

NOW = 1_700_000_000_000_000
KEYS = ("", "user:42", b"\xff", 7, ("a", 1), "x" * 500, "{}*?[a]\\")[1:]


@pytest.fixture(params=FACES.values(), ids=FACES)
def face(request):
    return request.param


@pytest.fixture(scope="module")
def url():
    server = servers.RedisServer(servers.programs()[servers.newest()])
    yield server.url
    server.stop()


def left(subject, key="k"):
    return subject.call("peek", NOW, key=key).remaining


def reset_all(subject):
    assert subject.run(subject.limiter.reset_all()) is None


@pytest.mark.parametrize("driver", DRIVERS, ids=str)
@pytest.mark.parametrize("rule", all_of(5, 3_600_000_000), ids=lambda rule: rule.text)
def test_every_key_of_a_rule_is_untouched_again(driver, rule):
    subject = driver.subject({"rule": rule})
    for key in KEYS:
        subject.call("charge", NOW, 5, key)
    assert [left(subject, key) for key in KEYS] == [0] * len(KEYS)
    reset_all(subject)
    assert [left(subject, key) for key in KEYS] == [5] * len(KEYS)
    assert [subject.call("hit", NOW, 2, key).remaining for key in KEYS] == [3] * len(KEYS)


@pytest.mark.parametrize("driver", DRIVERS, ids=str)
def test_all_rules_of_the_limiter_and_no_others_are_forgotten(driver):
    subject = driver.subject({"a": "fixed-window 5/hour", "b": "5/hour burst 5"})
    others = [
        subject.beside({"other": "fixed-window 5/hour"}),
        subject.beside({"a": "sliding-window-log 5/hour"}),
        subject.beside({"aa": "fixed-window 5/hour"}),
        subject.beside({"a": "fixed-window 5/hour"}, prefix="another prefix"),
    ]
    for limiter in (subject, *others):
        limiter.call("charge", NOW, 2, "k")
    reset_all(subject)
    assert left(subject) == 5
    assert [left(other) for other in others] == [3, 3, 3, 3]
    reset_all(others[-1])


@pytest.mark.parametrize("driver", DRIVERS, ids=str)
def test_a_name_that_is_a_pattern_stands_for_itself(driver):
    subject = driver.subject({"a*[b]?\\": "fixed-window 5/hour"})
    other = subject.beside({"aXbX": "fixed-window 5/hour"})
    for limiter in (subject, other):
        limiter.call("hit", NOW, 2, "k")
    reset_all(subject)
    assert (left(subject), left(other)) == (5, 3)


@pytest.mark.parametrize("driver", [each for each in DRIVERS if not each.crowd], ids=str)
def test_more_keys_than_one_step_takes_are_forgotten(driver):
    subject = driver.subject({"many": "fixed-window 5/hour"})
    beside = subject.beside({"else": "fixed-window 5/hour"})

    async def hit_all():
        for begin in range(0, 2_500, 500):
            await asyncio.gather(*(subject.limiter.hit(f"k{number}") for number in range(begin, begin + 500)))

    beside.call("hit", NOW, 1, "k7")
    if driver.kind is AsyncLimiter:
        subject.run(hit_all())
    else:
        for number in range(2_500):
            subject.limiter.hit(f"k{number}")
    assert left(subject, "k7") == 4
    reset_all(subject)
    assert {left(subject, f"k{number}") for number in range(0, 2_500, 7)} == {5}
    assert left(beside, "k7") == 4
    reset_all(subject)


def test_a_limiter_that_is_switched_off_leaves_the_store_alone(face):
    store = MemoryStore()
    clock = ManualClock()
    on, off = (face("5/hour", store, clock=clock, enabled=enabled) for enabled in (True, False))
    on.hit("k")
    off.reset_all()
    assert on.peek("k").remaining == 4
    assert off.notices.counts["unlimited"] == 1


# In memory


def test_a_full_memory_store_has_room_again(face):
    store = MemoryStore(max_keys=100)
    clock = ManualClock()
    limiter, other = (face({name: "fixed-window 5/hour"}, store, clock=clock) for name in ("a", "b"))
    for round_ in range(3):
        other.hit("stays")
        for number in range(99):
            limiter.hit(f"{round_}:{number}")
        limiter.reset(f"{round_}:7")
        assert (store.size, store.evictions) == (99, 0)
        limiter.reset_all()
        assert store.size == 1
    clock.advance(7_200)
    limiter.hit("late")
    assert other.peek("stays").remaining == 5


def test_a_memory_store_evicts_what_came_after_as_it_should():
    store = MemoryStore(max_keys=10)
    limiter = Limiter("fixed-window 5/hour", store, clock=ManualClock())
    for number in range(10):
        limiter.hit(number)
    limiter.reset_all()
    for number in range(100, 125):
        limiter.hit(number, 3)
    assert (store.size, store.evictions) == (10, 15)


def test_a_memory_store_keeps_nothing_of_what_was_forgotten():
    store = MemoryStore(max_keys=10)
    limiter = Limiter("fixed-window 5/hour", store, clock=ManualClock())
    for cycle in range(30):
        for number in range(9):
            limiter.hit((cycle, number))
        for number in range(9):
            limiter.reset((cycle, number))
        limiter.hit((cycle, "last"))
        limiter.reset_all()
    (table,) = inside.tables(store).values()
    assert (store.size, store.evictions, table.states, table.emptied) == (0, 0, {}, set())
    assert sum(len(cohort.keys) for cohort in table.cohorts.values()) == 0


# What lies between a limiter and its store


def test_a_waiter_is_admitted(face):
    store, clock = MemoryStore(), ManualClock()
    limiter = face("fixed-window 1/hour; 5/hour burst 5", store, clock=clock)
    limiter.hit("k")
    waits = [Call(Limiter("fixed-window 1/hour; 5/hour burst 5", store, clock=clock).wait, key) for key in ("k", "l")]
    assert waits[1].outcome().allowed
    until(lambda: in_queue(limiter) == 1, "it waits")
    limiter.reset_all()
    assert waits[0].outcome().allowed


@pytest.mark.parametrize("clock", [None, ManualClock()], ids=["server's clock", "clock of our own"])
def test_a_denial_is_no_longer_remembered(face, url, clock):
    limiter = face({"denied": FixedWindow(1, 86_400)}, url, on_error="raise", deadline=30, clock=clock)
    assert [limiter.hit("k").allowed for _ in range(3)] == [True, False, False]
    limiter.reset_all()
    assert [limiter.hit("k").allowed for _ in range(3)] == [True, False, False]
    limiter.reset_all()
    limiter.close()


def test_a_denial_that_was_on_its_way_is_not_remembered(url):
    store = RedisStore(url)
    limiter = Limiter({"late": FixedWindow(1, 86_400)}, store, on_error="raise", deadline=30)
    limiter.hit("k")
    sent_ns = stopwatch()
    assert not limiter.hit("k")
    (denial,) = store.denials.held.values()
    limiter.reset_all()
    store.denials.note_results([denial.demands], [denial.outcome], sent_ns)  # by a thread that had been held up
    assert limiter.hit("k")
    limiter.reset_all()
    store.close()


@pytest.fixture(params=["Redis", "SQLite"])
def far(request, url, tmp_path):
    return url if request.param == "Redis" else f"sqlite:///{tmp_path}/limits.db"


def test_a_slice_of_a_lease_is_forgotten_with_the_rest(face, far):
    clock = ManualClock()
    options = {"on_error": "raise", "deadline": 30, "clock": clock}
    limiter = face({"leased": FixedWindow(100, 3_600)}, far, lease=1.0, **options)
    other = Limiter({"leased": FixedWindow(100, 3_600)}, far, **options)
    for _ in range(5):
        limiter.hit("k")
    assert other.peek("k").remaining < 95  # a slice was taken
    limiter.reset_all()
    assert other.peek("k").remaining == 100
    assert limiter.hit("k").remaining == 99
    clock.advance(5)
    limiter.hit("k")
    limiter.close()
    assert other.peek("k").remaining == 98  # nothing was given back of what had been forgotten
    other.reset_all()
    other.close()


def test_without_the_store_only_local_counts_are_forgotten_and_the_error_says_so(face):
    server = servers.RedisServer(servers.programs()[servers.newest()])
    limiter = face({"a": "fixed-window 5/hour"}, server.url, deadline=30, on_error="local")
    limiter.hit("k", 4)
    server.stop()
    assert (limiter.hit("k", 2).remaining, limiter.hit("k").degraded) == (3, True)
    with pytest.raises(StoreUnavailable):
        limiter.reset_all()
    assert limiter.peek("k").remaining == 5
    limiter.close()


def test_in_the_middle_of_another_call_it_says_that_it_cannot():
    store = MemoryStore()
    limiter = Limiter("5/hour", store, clock=ManualClock())
    limiter.hit("k")
    with pytest.raises(StoreUnavailable, match="in the middle of another call"):
        inside.in_the_middle_of_a_call(store, limiter.reset_all)
    assert inside.in_the_middle_of_a_call(store, limiter.hit, "k").remaining == 4  # counted apart
    limiter.reset_all()
    assert limiter.peek("k").remaining == 5
    assert inside.in_the_middle_of_a_call(store, limiter.peek, "k").remaining == 5


# On Redis


def test_foreign_keys_on_redis_stay(face, url):
    with redis.Redis.from_url(url) as client:
        client.set("ratekeeper:own", "mine")
        limiter = face({"a": "5/hour", "b": "7/hour"}, url, on_error="raise", deadline=30)
        limiter.hit("k")
        limiter.reset_all()
        assert client.keys("*") == [b"ratekeeper:own"]
        client.flushall()
        limiter.close()


def test_a_permission_that_is_missing_is_named(face, url):
    with redis.Redis.from_url(url) as client:
        client.execute_command("ACL", "SETUSER", "poor", "reset", "on", ">pw", "~*", "+@all", "-scan")
        limiter = face("5/hour", url.replace("//", "//poor:pw@"), on_error="raise", deadline=30)
        with pytest.raises(StoreUnavailable, match="scan"):
            limiter.reset_all()
        limiter.close()
        client.execute_command("ACL", "DELUSER", "poor")


def test_on_a_cluster_every_node_forgets(face):
    cluster = clusters.shared_cluster(servers.newest())
    limiter = face({"spread": "fixed-window 5/hour"}, cluster.url, prefix="reset_all", on_error="raise", deadline=30)
    for number in range(300):
        limiter.hit(number)

    def kept():
        return [
            sum(1 for _ in redis.Redis(port=server.port).scan_iter("reset_all:*", 1_000)) for server in cluster.masters
        ]

    assert sum(kept()) == 300
    assert min(kept()) > 50
    limiter.reset_all()
    assert kept() == [0, 0, 0]
    limiter.close()


def test_a_node_that_does_not_answer_is_an_error(face):
    cluster = clusters.shared_cluster(servers.newest())
    down, nobody = cluster.masters[2].port, servers.free_port()
    kind = RedisStore if face is Limiter else AsyncRedisStore
    store = kind(f"redis+cluster://127.0.0.1:{cluster.masters[0].port}")
    inside.behind(store, lambda address: (address[0], nobody if address[1] == down else address[1]))
    limiter = face("fixed-window 5/hour", store, prefix="reset_all", on_error="raise", deadline=30)
    with pytest.raises(StoreUnavailable):
        limiter.reset_all()
    store.close() if face is Limiter else loop.run_until_complete(store.close())


def test_a_second_event_loop_may_call_it(url):
    store = AsyncRedisStore(url)
    limiter = AsyncLimiter({"loops": "5/hour"}, store, on_error="raise", deadline=30)

    async def hit():
        return (await limiter.hit("k")).remaining

    async def reset_all():
        await limiter.reset_all()
        await store.close()

    assert loop.run_until_complete(hit()) == 4
    asyncio.run(reset_all())
    assert loop.run_until_complete(hit()) == 4
    loop.run_until_complete(reset_all())


# In a file


def test_another_process_may_use_the_file_meanwhile(tmp_path):
    """Each step takes the lock for itself, and a key that is hit again after its step stays."""
    one, two = (SqliteStore(tmp_path / "limits.db") for _ in range(2))
    limiter, other = (
        Limiter({"a": "fixed-window 5/hour"}, store, on_error="raise", deadline=30) for store in (one, two)
    )
    for number in range(1_500):
        limiter.hit(number)
    steps = []
    forget = one.forget_some

    def forget_and_hit(*args):
        result = forget(*args)
        steps.append(other.store.breaker.is_open)
        return result

    one.forget_some = forget_and_hit
    limiter.reset_all()
    assert len(steps) == 2
    assert {other.peek(number).remaining for number in range(0, 1_500, 11)} == {5}
    one.close()
    two.close()
