"""How commands reach the servers that answer them: a flow without I/O, which the sync and the async store drive.

The flow yields what to send and where; its driver sends back the replies, or throws what went wrong. Nothing is sent
twice but what a server said it did not execute: an unknown script, a slot that is elsewhere, a server out of reach.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores.redis import script

Command = tuple[bytes, ...]
MOST_HOPS = 8  # a slot that moves while it is asked for moves once or twice

_SHA, _TEXT = script.SHA.encode(), script.TEXT.encode()


class Address(NamedTuple):
    """Where a server is."""

    host: str
    port: int
    is_sentinel: bool = False


class Send(NamedTuple):
    """Send these commands to the server there (None: the only one), in this share of the time that is left."""

    address: Address | None
    commands: Sequence[Command]
    share: float = 1.0


Flow = Generator[Send, list[Any], Any]


class Unanswered(Exception):
    """The server did not answer; why is the cause."""


class Unsent(Unanswered):
    """The server was out of reach: nothing was sent."""


class Torn(StoreUnavailable):
    """The keys of one request are on two servers for the moment; nothing was executed."""


class Unit:
    """Commands that go to one server together, and their replies."""

    __slots__ = ("asking", "commands", "replies", "slot")

    def __init__(self, slot: int | None, commands: Sequence[Command]) -> None:
        self.slot = slot
        self.commands = commands
        self.asking = False  # whether the server holds the slot only half
        self.replies: list[Any] = []

    def to_send(self) -> list[Command]:
        """Return the commands, as the server wants them."""
        if not self.asking:
            return list(self.commands)
        return [part for command in self.commands for part in ((b"ASKING",), command)]

    def take(self, replies: Sequence[Any]) -> Any:
        """Keep the replies to the commands; return the one that says that the server did not execute them, if any."""
        self.replies = list(replies[1::2] if self.asking else replies)
        return next((reply for reply in self.replies if meaning_of(reply) in NOT_EXECUTED), None)


Waiting = dict[Address | None, list[Unit]]

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
FOR_ONE = ("torn", "fault")  # one key, or one request; the others of the call are fine, and so is the server
OF_A_SLOT = ("moved", "ask")  # where no server has the slot, each names another one; all of them are fine


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


def by_hash(names: Sequence[bytes], argument: bytes) -> Command:
    """Return the call of the script, by its hash."""
    return (b"EVALSHA", _SHA, b"%d" % len(names), *names, argument)


def _in_full(command: Command) -> Command:
    return (b"EVAL", _TEXT, *command[2:])


def converse(topology: Any, units: Sequence[Unit]) -> Flow:
    """Send units to where they belong until each has its replies; what goes wrong is the reply."""
    if not topology.is_known:
        yield from topology.discover()
    waiting = _by_address(topology, units)
    for _ in range(MOST_HOPS):
        again: Waiting = {}
        for address, group in waiting.items():
            try:
                yield from _ask(topology, address, group, again)
            except Unsent as error:
                yield from _look_elsewhere(topology, address, group, error.__cause__, again)
            except Unanswered as error:
                topology.suspect(address)
                for unit in group:
                    unit.replies = [error.__cause__]
        if not again:
            return
        waiting = again


def _ask(topology: Any, address: Address | None, group: Sequence[Unit], again: Waiting) -> Flow:
    """Send units to one server; what it did not execute goes there, or elsewhere, again."""
    commands = [unit.to_send() for unit in group]
    replies = yield Send(address, [command for part in commands for command in part])
    begin = 0
    demoted: list[Unit] = []
    for unit, sent in zip(group, commands, strict=True):
        refusal = unit.take(replies[begin : begin + len(sent)])
        begin += len(sent)
        if meaning_of(refusal) == "read-only":
            demoted.append(unit)
        elif refusal is not None:
            _redirect(topology, address, unit, refusal, again)
        elif meaning_of(unit.replies[0]) == "down":
            topology.suspect(address)
    if demoted:
        yield from _look_elsewhere(topology, address, demoted, demoted[0].replies[0], again)


def _by_address(topology: Any, units: Sequence[Unit]) -> Waiting:
    groups: Waiting = {}
    for unit in units:
        address = topology.address(unit.slot)
        if address is None and topology.may_move:  # somebody found just now that it is not where it was
            unit.replies = [StoreUnavailable("no server is known that has the key", away=False)]
        else:
            groups.setdefault(address, []).append(unit)
    return groups


def _look_elsewhere(
    topology: Any,
    address: Address | None,
    group: Sequence[Unit],
    error: BaseException | None,
    again: Waiting,
) -> Flow:
    """Find out where the slots of a server have gone that is out of reach, or no master any more."""
    topology.suspect(address)
    with suppress(StoreUnavailable):  # nobody else knows either
        yield from topology.discover()
    for unit in group:
        other = topology.address(unit.slot)
        if other is None or other == address:
            unit.replies = [error]
        else:
            again.setdefault(other, []).append(unit)


def _redirect(topology: Any, address: Address | None, unit: Unit, refusal: Any, again: Waiting) -> None:
    meaning = meaning_of(refusal)
    if meaning == "no script":
        target = address
        if target not in again:  # the first brings the script along for those behind it
            unit.commands = [_in_full(command) for command in unit.commands]
    elif not topology.has_slots:
        said = f"the key is at {refusal.host}:{refusal.port}, and Redis a node of a cluster: use redis+cluster://"
        unit.replies = [StoreUnavailable(said, away=False, answered=True)]
        return
    else:
        target = topology.named(refusal.host, int(refusal.port), address)
        unit.asking = meaning == "ask"
        if not unit.asking:
            topology.moved(refusal.slot_id, target)
    again.setdefault(target, []).append(unit)
