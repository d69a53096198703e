"""The exceptions that ratekeeper raises.

    RatekeeperError
    ├── InvalidRule (also a ValueError)   a rule, key, cost or URL is invalid
    ├── RateLimited                       the request is denied; carries the decision
    ├── StoreUnavailable                  the store could not answer, and on_error is "raise"
    ├── simulate.InvalidTraffic           traffic cannot be generated or read
    └── simulate.plot.PlotUnavailable     plotting needs ratekeeper[plot]

A value of the wrong type raises a plain ``TypeError``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ratekeeper.decision import Decision


class RatekeeperError(Exception):
    """The base class of all exceptions of this package."""


class InvalidRule(RatekeeperError, ValueError):
    """A rule, key, cost or store URL is invalid; the message names it and says what is valid."""


class StoreUnavailable(RatekeeperError):
    """The store could not answer in time, and ``on_error`` is "raise"."""

    def __init__(
        self, message: str, *, away: bool = True, answered: bool = False, reason: str = "the store did not decide"
    ) -> None:
        super().__init__(message)
        self.reason = reason
        """What is wrong, in words that are the same each time."""
        self.away = away
        """Whether the store is away for other callers too, and not just for this key or this deadline."""
        self.answered = answered
        """Whether the store did answer, but could not decide this request."""


class RateLimited(RatekeeperError):
    """The request is not admitted, or not in time; ``decision`` says why and when to retry."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision)
        self.decision = decision

    def __str__(self) -> str:
        return f"rate limit {self.decision.rule!r} exceeded; {self.decision.advice}"
