"""What an error from Redis means: what to do next, what to tell the caller, and whether the server is away."""

from __future__ import annotations

from typing import Any

from ratekeeper.errors import StoreUnavailable
from ratekeeper.rates import show
from ratekeeper.stores.protocol import Outcome

Result = Outcome | StoreUnavailable  # the result of one request in a batch


class Unanswered(Exception):
    """The server did not answer; the cause says why."""


class Unsent(Unanswered):
    """The server could not be reached; nothing was sent."""


class Torn(StoreUnavailable):
    """The keys of one request are temporarily on two servers; nothing was executed."""


# What an error means, by its redis-py class or, if it was raised inside the script, by the code in its text.
_MEANINGS = {
    "NoScriptError": "no script",
    "MovedError": "moved",
    "AskError": "ask",
    "ReadOnlyError": "read-only",
    "ClusterDownError": "down",
    "MasterDownError": "read-only",  # from a replica that has lost its master and refuses reads
    "TryAgainError": "torn",
    "NoPermissionError": "fault",  # for a key, before the script runs
}
_CODES = {"READONLY": "read-only", "WRONGTYPE": "fault", "RATEKEEPER": "fault"}
NOT_EXECUTED = ("no script", "moved", "ask", "read-only")
FOR_ONE = ("torn", "fault")  # concerns one key or request; the rest of the batch and the server are fine
_OF_A_SLOT = ("moved", "ask")  # while no server has the slot, each points to another; all are fine


def meaning_of(reply: Any) -> str:
    """Return what an error reply means for the next step; an empty string for any other reply."""
    if not isinstance(reply, Exception):
        return ""
    known = _MEANINGS.get(type(reply).__name__)
    text = str(reply)
    if type(reply).__name__ == "NoPermissionError" and "user_script" in text:
        return ""  # for a command, after which the script may have written already
    if known is None:
        known = next((meaning for code, meaning in _CODES.items() if code in text), "")
    return known


def unavailable(error: BaseException) -> StoreUnavailable:
    """Return an error that says why Redis did not decide: a new one for each caller, since each raises its own."""
    if isinstance(error, StoreUnavailable):
        again = type(error)(str(error), away=error.away, answered=error.answered)
        again.__cause__ = error.__cause__ or error
        return again
    text = str(error)
    if "unauthenticated" in text:  # how Redis refuses a long command before it parses it
        text += "; it asks for a password"
    meaning = meaning_of(error)
    kind = Torn if meaning == "torn" else StoreUnavailable
    answered = meaning in (*FOR_ONE, *_OF_A_SLOT)
    made = kind(f"Redis did not decide: {type(error).__name__}: {text}", away=not answered, answered=answered)
    made.__cause__ = error
    return made


def interrupted() -> StoreUnavailable:
    """Return the error of a request whose outcome is unknown."""
    return StoreUnavailable("the call to Redis was interrupted", away=False)


def no_decision(reply: object) -> StoreUnavailable:
    """Return the error for a reply that is not from the script."""
    return StoreUnavailable(f"Redis sent a reply that is not a decision: {show(reply)}")
