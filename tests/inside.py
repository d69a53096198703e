"""What tests look at or call inside the package, in one place: no public name shows it."""

from ratekeeper import base_limiter, flows, keys
from ratekeeper.queues import queues_of
from ratekeeper.stores import AsyncRedisStore
from ratekeeper.stores.protocol import Demand, Receipt
from ratekeeper.stores.redis import asyncio_batches


def queues(limiter):
    """The queues of the callers that wait on the limiter's store."""
    return queues_of(limiter.store)


def nobody_waits(limiter):
    """Whether nothing is left of the callers that waited on the limiter's store."""
    waiting = queues(limiter)
    left = (waiting.by_name, waiting.claims, waiting.degraded, waiting._claimed, waiting._of_several)
    return left == ({}, {}, {}, {}, {})


def demands(limiter, key, cost=1, operation="hit"):
    """What a call asks of a store."""
    return limiter._ruleset.demands(operation, key, cost)


def mixed(limiter, asked):
    """A request as no public name makes it: of each demand its operation, rule, key, cost and whether it binds."""
    by_name = {binding.name: binding for binding in limiter._ruleset.bindings}
    return [
        Demand(by_name[name], keys.check(key), cost, operation, binds) for operation, name, key, cost, binds in asked
    ]


def forget_limiters(monkeypatch):
    """Let the process begin anew with no limiters in use."""
    monkeypatch.setattr(base_limiter, "_in_use", set())


def below(limiter):
    """The layer that waits go to: the fallback, or the store."""
    return limiter._below


def in_the_middle_of_a_call(store, action, *arguments):
    """Run an action as a signal handler in the middle of a call of this thread on a MemoryStore."""
    return store._lock.call(action, *arguments)


def stand_in(limiter):
    """Where calls in the middle of others are counted, once there was one, for a limiter in memory."""
    return limiter._below._fallback._local


def lock(it):
    """The lock of an object: no public call can be stopped while it has the lock."""
    return it._lock


def file_access(store):
    """What Python calls around a fork, for a store in a file: tests call it without a fork."""
    return store._access


def tables(store):
    """The states that a memory store keeps, by space: tests see to it that those of rules that are gone go, too."""
    return store._tables


def undoing():
    """What is being undone after tasks that were cancelled, on any event loop: tests wait for its end."""
    return flows._undoing


def leases(limiter):
    return limiter._leases


def lease(limiter, key):
    """The lease of a key: tests see whether there is one, and whether it is being taken."""
    return limiter._leases._keys[key]


def give_up_leases(limiter):
    """End all leases, and return what is to be given back: several end at once only in a busy program."""
    leases = limiter._leases
    for each in leases._keys.values():
        leases._give_up(each)
    return leases._over


def answers_took(limiter, seconds):
    """Let leases believe that the latest answer took so long."""
    limiter._leases._took_ns = int(seconds * 1e9)


def held_requests(gate):
    """What counts the requests that a gate holds."""
    return gate._held


def number_held(gate):
    """How many requests a gate holds: it shows only once it is at its bound."""
    return gate._held._total


def limiters_by_rules(gate):
    """The limiters that a gate has made for rules that depend on the request: tests see that there are not too many."""
    return gate._route_limits[-1]._by_rules


def store_of(gate):
    """The store of a gate: tests see which gates have one in common."""
    return gate.maker.store


def django_store(url):
    """The store of Django's async views for a URL."""
    from ratekeeper.integrations import django  # which other tests need not load

    return django._store(url, True)


def backoffs(backoff):
    """How long keys are held back: those that are over must not pile up."""
    return backoff._until


def limiters(service):
    """The limiters that the service keeps for made-up rules: tests see that there are not too many."""
    return service._limiters


def give_back(limiter, key, cost, charged_us, ends_us, *, degraded=False):
    """Give back a hit of this cost that was admitted at the first time and would have been forgotten at the second."""
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


def under_way(store):
    """The batches of the running event loop that are under way: tests wait until there are some, or none."""
    return batches(store)._under_way


def leaders(store):
    """The requests of threads that lead: tests wait until there are so many."""
    return batches(store)._leaders


def not_sent(store):
    """The requests that wait for a batch: as above."""
    return batches(store)._waiting


def idle(store):
    """The idle connections, by node."""
    return connections(store)._idle


def second_passed(store):
    """Let a store that is away be asked again, as it is once a second: tests need not wait for that."""
    for breaker in (store.breaker, *getattr(store, "node_breakers", {}).values()):
        breaker._ask_again_ns = 0


def never_late(monkeypatch):
    """Let every request that is given up tell that its server is away: on a busy machine one that is late does not."""
    monkeypatch.setattr(asyncio_batches, "_LATE_NS", 10**12)


def loops(store):
    """What an asyncio store holds for each event loop: tests check that it drops those that have ended."""
    return store._loops


def behind(store, addresses):
    """Lead a store of a cluster to other addresses than those that the nodes announce, such as to proxies."""
    store._servers.topology._remap = addresses


def gates_of_views(app):
    """How many gates a Flask application keeps for the limits of its views."""
    return sum(len(state._gates) for state in app.extensions["ratekeeper"].values())


def bindings(store):
    """How many rules are bound to a memory store."""
    return sum(len(table.bindings) for table in store._tables.values())


def followers(policies):
    """How many limiters follow these policies."""
    return len(policies._followers)
