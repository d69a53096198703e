"""What an error of Redis means: what to do next, what the caller is told, and whether the server is away."""

from __future__ import annotations

from typing import Any

from ratekeeper.errors import StoreUnavailable
from ratekeeper.rates import show
from ratekeeper.stores.protocol import Outcome

Result = Outcome | StoreUnavailable  # what became of one request of a batch


class Unanswered(Exception):
    """The server did not answer; why is the cause."""


class Unsent(Unanswered):
    """The server was out of reach: nothing was sent."""


class Torn(StoreUnavailable):
    """The keys of one request are on two servers for the moment; nothing was executed."""


# What an error says, by the class that redis-py gives it or, where a script met it, by the code in its text.
_MEANINGS = {
    "NoScriptError": "no script",
    "MovedError": "moved",
    "AskError": "ask",
    "ReadOnlyError": "read-only",
    "ClusterDownError": "down",
    "MasterDownError": "read-only",  # of a replica that has lost its master, and lets nobody read
    "TryAgainError": "torn",
    "NoPermissionError": "fault",  # of a key, before the script runs
}
_CODES = {"READONLY": "read-only", "WRONGTYPE": "fault", "RATEKEEPER": "fault"}
NOT_EXECUTED = ("no script", "moved", "ask", "read-only")
FOR_ONE = ("torn", "fault")  # one key, or one request; the others of the batch are fine, and so is the server
_OF_A_SLOT = ("moved", "ask")  # where no server has the slot, each names another one; all of them are fine


def meaning_of(reply: Any) -> str:
    """Say what an error means for what to do next; nothing for any other reply."""
    if not isinstance(reply, Exception):
        return ""
    known = _MEANINGS.get(type(reply).__name__)
    text = str(reply)
    if type(reply).__name__ == "NoPermissionError" and "user_script" in text:
        return ""  # of a command, when the script may have written already
    if known is None:
        known = next((meaning for code, meaning in _CODES.items() if code in text), "")
    return known


def unavailable(error: BaseException) -> StoreUnavailable:
    """Say why Redis did not decide. Each caller gets an error of its own: they are raised in different places."""
    if isinstance(error, StoreUnavailable):
        again = type(error)(str(error), away=error.away, answered=error.answered)
        again.__cause__ = error.__cause__ or error
        return again
    text = str(error)
    if "unauthenticated" in text:  # how Redis refuses a command that is long, before it looks at what it is
        text += "; it asks for a password"
    meaning = meaning_of(error)
    kind = Torn if meaning == "torn" else StoreUnavailable
    answered = meaning in (*FOR_ONE, *_OF_A_SLOT)
    made = kind(f"Redis did not decide: {type(error).__name__}: {text}", away=not answered, answered=answered)
    made.__cause__ = error
    return made


def interrupted() -> StoreUnavailable:
    """Say that nobody knows what became of a request."""
    return StoreUnavailable("the call to Redis was interrupted", away=False)


def no_decision(reply: object) -> StoreUnavailable:
    """Say that a server's answer is none of the script's."""
    return StoreUnavailable(f"Redis answered what is no decision: {show(reply)}")
