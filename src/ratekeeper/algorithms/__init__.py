"""The five algorithms: one file a rule."""

from ratekeeper.algorithms.fixed_window import FixedWindow
from ratekeeper.algorithms.leaky_bucket import LeakyBucket
from ratekeeper.algorithms.rule import EMPTY, Rule
from ratekeeper.algorithms.sliding_window_counter import SlidingWindowCounter
from ratekeeper.algorithms.sliding_window_log import SlidingWindowLog
from ratekeeper.algorithms.token_bucket import TokenBucket

__all__ = [
    "EMPTY",
    "FixedWindow",
    "LeakyBucket",
    "Rule",
    "SlidingWindowCounter",
    "SlidingWindowLog",
    "TokenBucket",
]
