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

from typing import TYPE_CHECKING, Any

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


def damaged_key(rule: str, algorithm: str) -> StoreUnavailable:
    """Return the error for a key whose stored value is no state of its rule; the key itself may be personal data."""
    key = f"a key of rule {repr(rule)[:200]}"
    return StoreUnavailable(
        f"{key} holds no state of a {algorithm}, or a damaged one",
        away=False,
        answered=True,
        reason=f"{key} cannot be read; reset it, or use another prefix",
    )


class RateLimited(RatekeeperError):
    """The request is not admitted, or not in time; ``decision`` says why and when to retry.

    ``args`` holds only the text, so that an error that is made again from ``args`` in JSON, as Celery's result backend
    does, has the same text. Such an error has no ``decision``; one that was pickled or copied has it.
    """

    decision: Decision

    def __init__(self, decision: Decision | str) -> None:
        if isinstance(decision, str):
            super().__init__(decision)
        else:
            super().__init__(_text(decision))
            self.decision = decision

    if not TYPE_CHECKING:  # for type checkers, `decision` is always there

        def __getattr__(self, name: str) -> Any:
            if name == "decision":
                raise AttributeError("this error was made from its text, as from JSON; the decision is on the original")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __str__(self) -> str:
        return _text(self.decision) if hasattr(self, "decision") else super().__str__()


def _text(decision: Decision) -> str:
    return f"rate limit {decision.rule!r} exceeded; {decision.advice}"
