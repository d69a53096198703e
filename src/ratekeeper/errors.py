"""Every error that ratekeeper raises on purpose.

    RatekeeperError
    ├── InvalidRule (also a ValueError)   a rule, key, cost or URL that cannot be used
    ├── RateLimited                       the answer was no; carries the decision
    ├── StoreUnavailable                  the store could not answer, and on_error is "raise"
    ├── simulate.InvalidTraffic           traffic that cannot be made up or read
    └── simulate.plot.PlotUnavailable     a picture was asked for without ratekeeper[plot]

A value of the wrong type is a plain ``TypeError``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ratekeeper.decision import Decision


class RatekeeperError(Exception):
    """The root of all errors of this package."""


class InvalidRule(RatekeeperError, ValueError):
    """A rule, key, cost or store URL that cannot be used; the message names it and says what can."""


class StoreUnavailable(RatekeeperError):
    """The store could not answer in time, and the limiter was told to raise."""

    def __init__(self, message: str, *, away: bool = True, answered: bool = False) -> None:
        super().__init__(message)
        self.away = away
        """Whether others will find it the same; not so if one key is at fault, or time ran out before it was asked."""
        self.answered = answered
        """Whether the store did answer, that it cannot decide this request."""


class RateLimited(RatekeeperError):
    """The request is not admitted (in time); ``decision`` says why and until when."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision)
        self.decision = decision

    def __str__(self) -> str:
        return f"rate limit {self.decision.rule!r} exceeded; {self.decision.advice}"
