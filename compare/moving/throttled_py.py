"""The programs that the lines of throttled-py's patterns stand in, and those of ours."""

from compare.moving.page import OURS, THEIRS
from compare.moving.peer import Peer

_THEIR_IMPORTS = """
from datetime import timedelta
from throttled import RateLimiterType, Throttled, exceptions, per_duration, per_min, per_sec, rate_limiter, store
"""
_OUR_IMPORTS = """
from ratekeeper import AsyncLimiter, Limiter, RateLimited
from ratekeeper.stores import MemoryStore
"""

PEER = Peer(
    packages=("throttled-py[redis]",),
    extras="redis",
    client="calls",
    frames={
        (THEIRS, "program"): f"{_THEIR_IMPORTS}{{lines}}",
        (OURS, "program"): f"{_OUR_IMPORTS}{{lines}}",
        (THEIRS, "call"): f"""{_THEIR_IMPORTS}
throttle = Throttled(quota="2/m", store=store.MemoryStore())

def hit():
    return not throttle.limit("ada").limited

def line():
    return {{lines}}
""",
        (OURS, "call"): f"""{_OUR_IMPORTS}
limiter = Limiter("token-bucket 2/m")

def hit():
    return limiter.hit("ada").allowed

def line():
    return {{lines}}
""",
    },
)
