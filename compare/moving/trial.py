"""Tries out one side of a peer's patterns in this environment: `python -m compare.moving.trial slowapi theirs`.

Programs run as they are, on a real Redis if they name one: `redis://localhost:6379` stands for the server that
the environment variable COMPARE_REDIS names.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import traceback
from types import ModuleType
from urllib.parse import urlsplit

import time_machine

from compare.moving import traffic
from compare.moving.page import Pattern, patterns
from compare.moving.peer import Peer, peer

REDIS = "redis://localhost:6379"


def answers(peer: Peer, pattern: Pattern, side: str, redis: str = REDIS) -> list[str]:
    """Return what one side of a pattern answers to its steps."""
    source = peer.program(pattern, side)
    if REDIS in source:
        source = source.replace(REDIS, redis)
        _empty(redis)
    program = ModuleType("program")
    sys.modules["program"] = program  # where frameworks look for the names in annotations
    with time_machine.travel(traffic.BEGINNING, tick=False) as clock:
        try:
            exec(compile(source, "program", "exec"), vars(program))
            return traffic.CLIENTS[peer.client](program, pattern.steps, clock)
        except Exception as error:  # noqa: BLE001 - it is the answer; no pattern expects it
            return [traceback.format_exception_only(error)[-1].strip()]


def _empty(redis: str) -> None:
    address = urlsplit(redis)
    with socket.create_connection((address.hostname, address.port or 6379), timeout=5) as connection:
        connection.sendall(b"FLUSHALL\r\n")
        connection.recv(100)


def main() -> None:
    """Print the answers of each pattern as JSON."""
    name, side = sys.argv[1:]
    redis = os.environ.get("COMPARE_REDIS", REDIS)
    print(json.dumps([answers(peer(name), pattern, side, redis) for pattern in patterns(name)]))


if __name__ == "__main__":
    main()
