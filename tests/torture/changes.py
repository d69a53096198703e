"""Drills on policies that change while a fleet decides by them: in the store, in a file, and by overrides."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.servers import RedisServer, newest, programs
from tests.service.keep_alive import KeepAlive
from tests.service.serving import Served
from tests.torture import progress
from tests.torture.crowds import is_quiet, until

PROCESSES = 3
CLIENTS = 8  # of each process
AGREED = 1.0  # seconds after a change, as promised
MANY = 10**9  # so that nobody is denied
BODY = b'{"policy": "api", "attributes": {"user": "one"}}'

Limits = tuple[int, int]


class Told(NamedTuple):
    """A decision: when it was asked for, and by which limits of both rules it was made."""

    begun: float
    limits: Limits


def pair(number: int) -> Limits:
    """Return limits that belong together: no two changes have one of them in common."""
    return MANY + number, 2 * MANY + number


def text(number: int) -> str:
    one, all_of_them = (f"fixed-window {limit}/365d" for limit in pair(number))
    return f"""
[[policies.api.rules]]
name = "one"
limit = "{one}"
key = "{{user}}"

[[policies.api.rules]]
name = "all"
limit = "{all_of_them}"
key = "all"
"""


class Load:
    """Clients of all processes of a fleet, at a rate together, and what they were told."""

    def __init__(self, fleet: Sequence[Served], rate: float) -> None:
        self.told: list[list[Told]] = [[] for _ in fleet]
        pause = len(fleet) * CLIENTS / rate
        self._clients = [
            KeepAlive(served.port, BODY, CLIENTS, pause=pause, note=self._note(told))
            for served, told in zip(fleet, self.told, strict=True)
        ]

    @staticmethod
    def _note(told: list[Told]) -> Callable[[float, dict[str, Any]], None]:
        def note(begun: float, decision: dict[str, Any]) -> None:
            layers = decision["layers"]
            told.append(Told(begun, (layers["one"]["limit"], layers["all"]["limit"])))

        return note

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for each in self._clients:
                stack.enter_context(each)
            yield
        for each in self._clients:
            assert not each.cut, f"requests failed: {each.cut[:3]}"
            assert set(each.answers) == {200}, f"requests failed: {dict(each.answers)}"
            assert not each.degraded[200], "the store was not asked"

    def agree(self, limits: Limits, since: float) -> float:
        """Wait until every process decides by these limits; return how long after a moment the last other one did."""
        for told in self.told:
            until(lambda told=told: any(each.limits == limits for each in told[-20:]), f"decisions by {limits}")
        others = [each.begun for told in self.told for each in list(told) if each.limits != limits]
        return max(max(others, default=since) - since, 0.0)

    @property
    def answered(self) -> int:
        return sum(map(len, self.told))


def in_store(rounds: int = 10, rate: float = 2_000) -> str:
    """Policies in the store and overrides change under load: nothing fails, is mixed or lost, and all agree soon."""
    redis = RedisServer(programs()[newest()])
    options = ("--policies", "store", "--deadline", "30")
    fleet: list[Served] = []
    try:
        fleet += [Served(redis.url, *options) for _ in range(PROCESSES)]
        _put(fleet[0], 0)
        for served in fleet:
            until(lambda served=served: _peek(served).status_code == 200, "the policies reach every process")
        load = Load(fleet, rate)
        known = {pair(0)}
        slowest = 0.0
        with load.running():
            began = time.monotonic()
            for number in range(1, rounds + 1):
                progress("changes", f"round {number} of {rounds}")
                one = fleet[number % PROCESSES]
                _put(one, number)
                slowest = max(slowest, load.agree(pair(number), time.monotonic()))
                over, removed = pair(10_000 + number), pair(20_000 + number)
                _override(one, over, 1.0)
                slowest = max(slowest, load.agree(over, time.monotonic()))
                until(lambda load=load, over=over: _is_over(load, over), "the end of the override")
                _override(one, removed, 600)
                slowest = max(slowest, load.agree(removed, time.monotonic()))
                assert one.ask("DELETE", "/v1/overrides/drill").status_code == 200
                slowest = max(slowest, load.agree(pair(number), time.monotonic()))
                known |= {pair(number), over, removed}
            seconds = time.monotonic() - began
        _check(load, known, fleet)
    finally:
        for served in fleet:
            served.stop()
        redis.stop()
    return _figure(4 * rounds, load, seconds, slowest)


def in_file(rounds: int = 10, rate: float = 2_000) -> str:
    """A policy file that three processes follow changes under load: the same holds."""
    redis = RedisServer(programs()[newest()])
    fleet: list[Served] = []
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "limits.toml")
        path.write_text(text(0))
        try:
            fleet += [Served(redis.url, "--policies", str(path), "--deadline", "30") for _ in range(PROCESSES)]
            load = Load(fleet, rate)
            slowest = 0.0
            with load.running():
                began = time.monotonic()
                for number in range(1, rounds + 1):
                    progress("reloads", f"round {number} of {rounds}")
                    path.write_text(text(number))
                    if number % 2:
                        answer = fleet[0].ask("POST", "/v1/policies/reload")
                        assert answer.status_code == 200, answer.text
                    slowest = max(slowest, load.agree(pair(number), time.monotonic()))
                seconds = time.monotonic() - began
            _check(load, {pair(number) for number in range(rounds + 1)}, fleet)
        finally:
            for served in fleet:
                served.stop()
            redis.stop()
    return _figure(rounds, load, seconds, slowest)


def _check(load: Load, known: set[Limits], fleet: Sequence[Served]) -> None:
    mixed = {each.limits for told in load.told for each in told} - known
    assert not mixed, f"decided by a mixture: {mixed}"
    layers = _peek(fleet[0]).json()["layers"]
    used = {name: layer["limit"] - layer["remaining"] for name, layer in layers.items()}
    assert used == {"one": load.answered, "all": load.answered}, f"{load.answered:,} were admitted, {used} are counted"


def _figure(changes: int, load: Load, seconds: float, slowest: float) -> str:
    assert slowest < AGREED * (1 if is_quiet() else 10), f"a process followed after {slowest:.2f} s"
    rate = load.answered / seconds
    return (
        f"{changes} changes under {rate:,.0f} requests a second; {load.answered:,} counted, agreed in {slowest:.2f} s"
    )


def _is_over(load: Load, limits: Limits) -> bool:
    return all(told[-1].limits != limits for told in load.told)


def _peek(served: Served) -> Any:
    return served.ask("POST", "/v1/peek", content=BODY, headers={"content-type": "application/json"})


def _put(served: Served, number: int) -> None:
    version = served.ask("GET", "/v1/policies").headers["etag"]
    answer = served.ask("PUT", "/v1/policies", content=text(number), headers={"if-match": version})
    assert answer.status_code == 200, answer.text


def _override(served: Served, limits: Limits, seconds: float) -> None:
    one, all_of_them = (f"fixed-window {limit}/365d" for limit in limits)
    override = {"policy": "api", "when": {}, "limits": {"one": one, "all": all_of_them}, "expires_in": seconds}
    answer = served.ask("PUT", "/v1/overrides/drill", json=override)
    assert answer.status_code == 200, answer.text


DRILLS = {"changes": in_store, "reloads": in_file}
