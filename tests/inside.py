"""What tests look at or call inside of a limiter, in one place: no public name tells of it."""

from ratekeeper.queues import queues_of
from ratekeeper.stores import AsyncRedisStore
from ratekeeper.stores.protocol import Demand, Receipt
from ratekeeper.stores.redis import asyncio_batches


def queues(limiter):
    """The queues of those who wait on the limiter's store."""
    return queues_of(limiter.store)


def demands(limiter, key, cost=1, operation="hit"):
    """What a call asks of a store."""
    return limiter._ruleset.demands(operation, key, cost)


def mixed(limiter, asked):
    """A request as no public name makes it: of each demand its operation, rule, key, cost and whether it binds."""
    by_name = {binding.name: binding for binding in limiter._ruleset.bindings}
    return [Demand(by_name[name], key, cost, operation, binds) for operation, name, key, cost, binds in asked]


def below(limiter):
    """The layer that waits go to: the fallback, or the store."""
    return limiter._below


def in_the_middle_of_a_call(store, action, *arguments):
    """Run an action as a signal handler in the middle of a call of this thread on a MemoryStore."""
    return store._lock.call(action, *arguments)


def stand_in(limiter):
    """Where calls in the middle of others are counted, once there was one, for a limiter in memory."""
    return limiter._below._fallback._local


def leases(limiter):
    return limiter._leases


def give_back(limiter, key, cost, charged_us, ends_us, *, degraded=False):
    """Give back a hit of this cost that was admitted at that time and would have been forgotten at the other."""
    receipt = Receipt(charged_us, ends_us, degraded)
    return below(limiter).execute([each._replace(receipt=receipt) for each in demands(limiter, key, cost, "give_back")])


def servers(store):
    """What all connections of a Redis store share: tests put another server into its topology."""
    return store._servers


def connections(store):
    """The connections of a Redis store, of the running event loop if it has loops: tests count those that are idle."""
    return store._of_loop().connections if isinstance(store, AsyncRedisStore) else store._connections


def batches(store):
    """The batches of a Redis store of one server, of the running event loop: tests wait until they are under way."""
    return store._of_loop().below if isinstance(store, AsyncRedisStore) else store._below


def second_passed(store):
    """Let a store that is away be asked again, as it is once a second: tests need not wait for that."""
    for breaker in (store.breaker, *getattr(store, "node_breakers", {}).values()):
        breaker._ask_again_ns = 0


def never_late(monkeypatch):
    """Let every request that is given up tell that its server is away: on a busy machine one that is late does not."""
    monkeypatch.setattr(asyncio_batches, "_LATE_NS", 10**12)


def loops(store):
    """What an asyncio store holds for each event loop: tests see to it that those that ended are let go."""
    return store._loops
