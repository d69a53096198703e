"""ratekeeper: exact rate limiting with one complete answer.

    >>> from ratekeeper import Limiter, TokenBucket
    >>> limiter = Limiter(TokenBucket(capacity=20, refill_rate=10))
    >>> limiter.hit("user:42", cost=3).remaining
    17

To read the code: `decision` is what comes out; `algorithms/` holds the five rules, each a pure step in one file;
`rates` and `rules` turn what people write into them; `stores/` keep state, and `resilience` is what happens while one
is away; `limiter` and its `core` tie a set of rules to a store, and `lines` and `waiting` are how callers wait their
turn; `clock` is where time comes from.
"""

from ratekeeper.algorithms import FixedWindow, LeakyBucket, SlidingWindowCounter, SlidingWindowLog, TokenBucket
from ratekeeper.decision import Decision
from ratekeeper.errors import InvalidRule, RatekeeperError, RateLimited, StoreUnavailable
from ratekeeper.limiter import AsyncLimiter, Limiter
from ratekeeper.rules import parse

__all__ = [
    "AsyncLimiter",
    "Decision",
    "FixedWindow",
    "InvalidRule",
    "LeakyBucket",
    "Limiter",
    "RateLimited",
    "RatekeeperError",
    "SlidingWindowCounter",
    "SlidingWindowLog",
    "StoreUnavailable",
    "TokenBucket",
    "parse",
]
__version__ = "0.1.0"
