"""The programs that the lines of limits' patterns stand in, and those of ours."""

from compare.moving.page import OURS, THEIRS
from compare.moving.peer import Peer

_THEIR_IMPORTS = """
import time
from limits import (
    RateLimitItemPerDay, RateLimitItemPerHour, RateLimitItemPerMinute, RateLimitItemPerSecond, parse, parse_many,
    storage, strategies
)
"""
_OUR_IMPORTS = """
import time
from datetime import timedelta
from ratekeeper import AsyncLimiter, FixedWindow, Limiter, SlidingWindowCounter, SlidingWindowLog, parse
from ratekeeper.stores import MemoryStore, RedisStore
"""

PEER = Peer(
    packages=("limits[redis,async-redis]",),
    extras="redis",
    client="calls",
    frames={
        (THEIRS, "program"): f"{_THEIR_IMPORTS}{{lines}}",
        (OURS, "program"): f"{_OUR_IMPORTS}{{lines}}",
        (THEIRS, "call"): f"""{_THEIR_IMPORTS}
limiter = strategies.FixedWindowRateLimiter(storage.MemoryStorage())
rate = parse("2/minute")

def hit():
    return limiter.hit(rate, "login", "ada")

def line():
    return {{lines}}

def do():
    {{lines}}
""",
        (OURS, "call"): f"""{_OUR_IMPORTS}
limiter = Limiter("2/minute")

def hit():
    return limiter.hit(("login", "ada")).allowed

def line():
    return {{lines}}

def do():
    {{lines}}
""",
    },
)
