"""What tests look at or call inside of a limiter, in one place: no public name tells of it."""

from ratekeeper.queues import queues_of
from ratekeeper.stores.protocol import Receipt


def queues(limiter):
    """The queues of those who wait on the limiter's store."""
    return queues_of(limiter.store)


def demands(limiter, key, cost=1, operation="hit"):
    """What a call asks of a store."""
    return limiter._ruleset.demands(operation, key, cost)


def below(limiter):
    """The layer that waits go to: the fallback, or the store."""
    return limiter._below


def leases(limiter):
    return limiter._leases


def give_back(limiter, key, cost, charged_us, ends_us, *, degraded=False):
    """Give back a hit of this cost that was admitted at that time and would have been forgotten at the other."""
    receipt = Receipt(charged_us, ends_us, degraded)
    return below(limiter).execute([each._replace(receipt=receipt) for each in demands(limiter, key, cost, "give_back")])
