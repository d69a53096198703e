"""What an error from Redis means: what to do next, what to tell the caller, and whether the server is away."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from ratekeeper.errors import StoreUnavailable
from ratekeeper.rates import show
from ratekeeper.stores.protocol import Outcome

Result = Outcome | StoreUnavailable  # the result of one request in a batch


class Unanswered(Exception):
    """The server did not answer; the cause says why."""


class Unsent(Unanswered):
    """The server could not be reached; nothing was sent."""


class Late(Unanswered):
    """No connection was ready in time; it is still being opened, and nothing was sent."""


class Torn(StoreUnavailable):
    """The keys of one request are temporarily on two servers; nothing was executed."""


class _Error(NamedTuple):
    """What an error reply means."""

    meaning: str
    """What it means for the next step; "" if the server is away for all until it answers something else."""
    reason: str
    """What is wrong and what to do."""


_A_KEY = "delete the key, or use another prefix"
_BY_CODE = {
    "NOSCRIPT": _Error("no script", "Redis has lost the script; check what flushes scripts"),
    "MOVED": _Error("moved", "the slot is being moved between nodes; if this goes on, check CLUSTER SLOTS"),
    "ASK": _Error("ask", "the slot is being moved between nodes; if this goes on, check CLUSTER SLOTS"),
    "TRYAGAIN": _Error("torn", "the slot is being moved between nodes; if this goes on, check CLUSTER SLOTS"),
    "CLUSTERDOWN": _Error("down", "the cluster does not serve this slot; check CLUSTER INFO"),
    "READONLY": _Error("read-only", "the server is a replica, which cannot write; use its master"),
    "MASTERDOWN": _Error("read-only", "the server is a replica that has lost its master; use the master"),
    "NOPERM": _Error("fault", "the Redis user lacks a permission; give it those in docs/redis.md"),
    "WRONGTYPE": _Error("fault", f"a key has a value that is not ours; {_A_KEY}"),
    "RATEKEEPER": _Error("fault", f"a key has a value that is not ours; {_A_KEY}"),
    "NOAUTH": _Error("", "Redis refuses the login; check user and password"),
    "WRONGPASS": _Error("", "Redis refuses the login; check user and password"),
    "OOM": _Error("no writes", "Redis is full (maxmemory); raise it, or free memory"),
    "LOADING": _Error("", "Redis is still loading its data; decisions resume afterwards"),
    "BUSY": _Error("", "Redis is busy with a script; see SCRIPT KILL"),
    "MISCONF": _Error("no writes", "Redis cannot save its data and refuses writes; see its log"),
    "NOREPLICAS": _Error("no writes", "Redis has too few replicas and refuses writes; see min-replicas-to-write"),
}
_CLASSES = {  # of redis-py, which removes the code from the text
    "NoScriptError": "NOSCRIPT",
    "MovedError": "MOVED",
    "AskError": "ASK",
    "TryAgainError": "TRYAGAIN",
    "ClusterDownError": "CLUSTERDOWN",
    "ReadOnlyError": "READONLY",
    "MasterDownError": "MASTERDOWN",
    "NoPermissionError": "NOPERM",
    "OutOfMemoryError": "OOM",
    "BusyLoadingError": "LOADING",
    "AuthenticationError": "NOAUTH",
    "AuthenticationWrongNumberOfArgsError": "NOAUTH",
}
_DAMAGED = re.compile(r"\bRATEKEEPER damaged ([\d,]+)")
_IN_A_TEXT = re.compile(rf"\b({'|'.join(_BY_CODE)})\b")  # raised inside the script, or unknown to redis-py
_WITHOUT_A_CODE = {  # texts of Redis 6, and of commands that are refused before they are parsed
    "The user executing the script": "NOPERM",  # Redis 6
    "no permissions to": "NOPERM",  # in a script, from Redis 7.2 on
    "unauthenticated": "NOAUTH",
    "no password": "NOAUTH",
}
NOT_EXECUTED = ("no script", "moved", "ask", "read-only")
FOR_ONE = ("torn", "fault")  # concerns one key or request; the rest of the batch and the server are fine
REFUSES_WRITES = ("no writes", "read-only")  # it still answers a peek, and denies
_OF_A_SLOT = ("moved", "ask")  # while no server has the slot, each points to another; all are fine


LATE = "Redis did not answer in time; check its load and the network, or raise the deadline"
UNREACHABLE = "Redis cannot be reached; check the address, the network and the server"
_UNKNOWN = "Redis answered with an error"
INTERRUPTED = "calls to Redis were interrupted"


def _error_of(error: BaseException) -> _Error:
    text = str(error)
    code = _CLASSES.get(type(error).__name__)
    if code is None:
        found = _IN_A_TEXT.search(text)
        code = found[1] if found else next((code for part, code in _WITHOUT_A_CODE.items() if part in text), None)
    if code is not None:
        known = _BY_CODE[code]
        if code == "NOPERM" and "user_script" in text:
            return known._replace(meaning="")  # for a command, after which the script may have written already
        return known
    if "Timeout" in type(error).__name__:
        return _Error("", LATE)
    is_lost = isinstance(error, OSError) or type(error).__name__ in ("ConnectionError", "IncompleteReadError")
    return _Error("", UNREACHABLE if is_lost else _UNKNOWN)


class Redirection(NamedTuple):
    """Where a slot is, according to a node."""

    slot: int
    host: str  # "" if it is the host of that node
    port: int


def redirection_of(refusal: Exception) -> Redirection:
    """Return what a MOVED or an ASK says; redis-py reads it only since version 6.0."""
    slot, _, address = str(refusal).removeprefix("MOVED ").removeprefix("ASK ").partition(" ")
    host, _, port = address.rpartition(":")
    return Redirection(int(slot), host, int(port))


def refuses_login(reply: Any) -> bool:
    """Return whether a reply says that the server requires a login, or a different one."""
    return isinstance(reply, Exception) and _error_of(reply) == _BY_CODE["NOAUTH"]


def meaning_of(reply: Any) -> str:
    """Return what an error reply means for the next step; an empty string for any other reply."""
    return _error_of(reply).meaning if isinstance(reply, Exception) else ""


def unavailable(error: BaseException) -> StoreUnavailable:
    """Return an error that says why Redis did not decide: a new one for each caller, since each raises its own."""
    if isinstance(error, StoreUnavailable):
        again = type(error)(str(error), away=error.away, answered=error.answered, reason=error.reason)
        again.__cause__ = error.__cause__ or error
        return again
    text = str(error)
    if "unauthenticated" in text:  # how Redis refuses a long command before it parses it
        text += "; it asks for a password"
    meaning, reason = _error_of(error)
    kind = Torn if meaning == "torn" else StoreUnavailable
    answered = meaning in (*FOR_ONE, *_OF_A_SLOT)
    said = f"Redis did not decide: {type(error).__name__}: {text}"
    made = kind(said, away=not answered, answered=answered, reason=reason)
    made.__cause__ = error
    return made


def damaged_in(reply: object) -> list[int]:
    """Return the numbers of a call's keys, counted from 1, whose values the script could not read."""
    found = _DAMAGED.search(str(reply))
    return [int(number) for number in found[1].split(",")] if found else []


def is_of_another_type(reply: Exception) -> bool:
    """Return whether a command failed because a key has a value of another type."""
    return "WRONGTYPE" in str(reply)


def interrupted() -> StoreUnavailable:
    """Return the error of a request whose outcome is unknown."""
    return StoreUnavailable("the call to Redis was interrupted", away=False, reason=INTERRUPTED)


def no_decision(reply: object) -> StoreUnavailable:
    """Return the error for a reply that is not from the script."""
    reason = "the reply is not a decision; check that the address is that of a Redis server, and any proxy in between"
    return StoreUnavailable(f"Redis sent a reply that is not a decision: {show(reply)}", reason=reason)
