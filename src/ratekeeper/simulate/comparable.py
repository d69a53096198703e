"""What rules of different kinds are compared by: the exact sliding log that means the same."""

from __future__ import annotations

from fractions import Fraction

from ratekeeper import rates
from ratekeeper.algorithms import Rule, SlidingWindowLog
from ratekeeper.errors import InvalidRule


def comparable_log(rule: Rule) -> SlidingWindowLog:
    """Return the exact sliding log that a rule is compared with.

    It has the rule's limit and window. A bucket has its capacity as the limit, and as the window the time in which it
    refills or drains whole (capacity / rate, rounded up to a microsecond): 1/s burst 10 is compared with 10 in 10 s.
    """
    try:
        return SlidingWindowLog(rule.limit, Fraction(rule.window_us, rates.SECOND_US))
    except InvalidRule:
        longest = f"{rates.MAX_WINDOW_US // (86_400 * rates.SECOND_US)} days"
        raise InvalidRule(
            f"rule {rule.text!r} takes longer than {longest} to refill, which is too long to compare with a window"
        ) from None
