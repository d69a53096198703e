"""The algorithms: one file per rule, and beside it the same step in Lua for Redis.

Reading order:

- `rule`: the interface of every rule
- `fixed_window`, `sliding_window_log`, `sliding_window_counter`: the rules with a window; `window` has what they share
- `token_bucket`, `leaky_bucket`: the rules with a level; `bucket` has what they share

Words: a *rule* is a limit, a *state* is what a store keeps for one key of a rule, and a *step* takes the state,
the time and a cost, and returns the next state and the answer.
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
"""All algorithms, in the order in which they are shown. They describe themselves; nothing else lists them."""

BY_NAME: dict[str, type[Rule]] = {
    name: algorithm for algorithm in ALGORITHMS for name in (algorithm.algorithm, *algorithm.aliases)
}


def all_of(count: int, period_us: int) -> list[Rule]:
    """Return a rule of each algorithm, in each of its modes, for `count` units per period."""
    return [
        algorithm.of(count, period_us, mode=variant.mode) for algorithm in ALGORITHMS for variant in algorithm.variants
    ]
