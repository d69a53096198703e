"""The algorithms: one file a rule, and beside it its step in Lua for Redis.

To read it: `rule` is what every rule says and does; then any of the rules, such as `fixed_window`. `window` and
`bucket` have what several of them share.
"""

from ratekeeper.algorithms.fixed_window import FixedWindow
from ratekeeper.algorithms.leaky_bucket import LeakyBucket
from ratekeeper.algorithms.rule import EMPTY, Rule
from ratekeeper.algorithms.sliding_window_counter import SlidingWindowCounter
from ratekeeper.algorithms.sliding_window_log import SlidingWindowLog
from ratekeeper.algorithms.token_bucket import TokenBucket

__all__ = [
    "ALGORITHMS",
    "BY_NAME",
    "EMPTY",
    "FixedWindow",
    "LeakyBucket",
    "Rule",
    "SlidingWindowCounter",
    "SlidingWindowLog",
    "TokenBucket",
    "all_of",
]

ALGORITHMS: tuple[type[Rule], ...] = (
    FixedWindow,
    SlidingWindowLog,
    SlidingWindowCounter,
    TokenBucket,
    LeakyBucket,
)
"""All there are, in the order in which they are shown. Whatever else is said of them, they say themselves."""

BY_NAME: dict[str, type[Rule]] = {
    name: algorithm for algorithm in ALGORITHMS for name in (algorithm.algorithm, *algorithm.aliases)
}


def all_of(count: int, period_us: int) -> list[Rule]:
    """Return each algorithm, in each of its modes, for so many units in that time."""
    return [
        algorithm.of(count, period_us, mode=variant.mode) for algorithm in ALGORITHMS for variant in algorithm.variants
    ]
