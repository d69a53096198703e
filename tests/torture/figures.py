"""A drill on what the service counts."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.metrics.figures import Page
from tests.service.serving import Served
from tests.torture import progress
from tests.waiters import until

POLICIES = """
[[policies.api.rules]]
name = "user"
limit = "fixed-window 40/day"
key = "{user}"
[[policies.api.rules]]
name = "all"
limit = "token-bucket 1000/s burst 1000000"
key = "all"
[[policies.api.overrides]]
when = { plan = "staff" }
limits = "unlimited"
[[policies.api.overrides]]
when = { plan = "banned" }
limits = "blocked"
[[policies.api.overrides]]
when = { plan = "free" }
limits = { user = "blocked" }

[[policies.tried.rules]]
name = "user"
limit = "fixed-window 20/day"
key = "{user}"
shadow = true
[[policies.tried.rules]]
name = "tenant"
limit = "sliding-window-log 500/day"
key = "{tenant}"
"""
INLINE = "fixed-window 30/day"
_COVERED = 50  # seconds that top talkers certainly cover
_OUTCOMES = {(True, True): "unlimited", (True, False): "admitted", (False, False): "denied", (False, True): "blocked"}
_IN_A_BATCH = 50
_PLANS = ("pro", "pro", "pro", "pro", "staff", "banned", "free")


class Client(threading.Thread):
    """A client that counts what it is answered."""

    def __init__(self, url: str, decisions: int, seed: int) -> None:
        super().__init__(daemon=True)
        self.decisions: Counter[tuple[str, str, str]] = Counter()
        self.answered = 0
        self.admitted: Counter[str] = Counter()
        """The cost that was admitted of each user by the rule without a policy."""
        self.error: BaseException | None = None
        self._url = url
        self._wanted = decisions
        self._dice = random.Random(seed)

    def run(self) -> None:
        try:
            while self.answered < self._wanted:
                with httpx.Client(
                    base_url=self._url, timeout=60
                ) as http:  # a new connection, perhaps of another worker
                    self._ask_some(http)
        except BaseException as error:  # noqa: BLE001 - the drill reports it
            self.error = error

    def _ask_some(self, http: httpx.Client) -> None:
        for _ in range(3):
            body = self._request()
            self._note(body, http.post("/v1/hit?always_200=1", json=body).raise_for_status().json())
            http.post("/v1/peek?always_200=1", json=self._request())  # which is no decision on a request
            batch = [self._request() for _ in range(_IN_A_BATCH)]
            answers = http.post("/v1/hit/batch", json={"requests": batch}).raise_for_status().json()["decisions"]
            for each, answer in zip(batch, answers, strict=True):
                self._note(each, answer)

    def _request(self) -> dict[str, Any]:
        user, cost = f"user {self._dice.randrange(400)}", self._dice.randrange(1, 4)
        if self._dice.random() < 0.2:
            return {"key": user, "rule": INLINE, "cost": cost}
        policy = self._dice.choice(["api", "api", "tried"])
        attributes = {"user": user, "tenant": f"tenant {self._dice.randrange(20)}", "plan": self._dice.choice(_PLANS)}
        return {"policy": policy, "attributes": attributes, "cost": cost}

    def _note(self, body: dict[str, Any], answer: dict[str, Any]) -> None:
        policy = body.get("policy", "")
        rule = answer["rule"] if policy else ""
        self.answered += 1
        self.decisions[policy, rule, _OUTCOMES[answer["allowed"], not answer["limit"]]] += 1
        for name in answer["shadow_denied"]:
            self.decisions[policy, name, "shadow_denied"] += 1
        if answer["allowed"] and not policy:
            self.admitted[body["key"]] += body["cost"]


def figures(decisions: int = 100_000, workers: int = 3, clients: int = 6) -> str:
    """Metrics agree with an independent count of mixed decisions by several workers, one of which is killed."""
    with tempfile.TemporaryDirectory() as folder:
        policies = Path(folder, "limits.toml")
        policies.write_text(POLICIES)
        options = ("--workers", str(workers), "--deadline", "60", "--policies", str(policies), "--show-keys")
        served = Served(None, *options, TMPDIR=folder)
        try:
            began = time.monotonic()
            counted = _ask(served, decisions // 20, clients, [])
            _agree(served, counted)
            if time.monotonic() - began < _COVERED:
                _agree_on_talkers(served, counted)
            _kill_one(served)  # while none has a request in hand
            _agree(served, counted)
            counted += _ask(served, decisions - decisions // 20, clients, counted)
            _agree(served, counted)
        finally:
            served.stop()
    total = sum(client.answered for client in counted)
    return f"{total:,} decisions by {workers} workers, one of them killed: every count agrees"


def _ask(served: Served, decisions: int, clients: int, before: list[Client]) -> list[Client]:
    """Have decisions made, and return the clients that were answered."""
    asking = [Client(served.url, -(-decisions // clients), len(before) + each) for each in range(clients)]
    for client in asking:
        client.start()
    while any(client.is_alive() for client in asking):
        progress("figures", f"{sum(each.answered for each in (*before, *asking)):,} decisions")
        time.sleep(0.1)
    for client in asking:
        if client.error is not None:
            raise client.error
    return asking


def _agree(served: Served, counted: list[Client]) -> None:
    answered = sum(client.answered for client in counted)
    expected = sum((client.decisions for client in counted), Counter())
    for _ in range(10):  # whichever worker answers, it speaks for all
        page = Page(httpx.get(f"{served.url}metrics").text)
        assert page.decisions == expected, f"metrics say {page.decisions}, the answers {dict(expected)}"
        times = sum(page.of("ratekeeper_decision_seconds_count").values())
        assert times == answered, f"{times:,} times of {answered:,} decisions"
        degraded = sum(page.of("ratekeeper_degraded_total").values())
        assert degraded == 0, f"{degraded:,} decisions were degraded"


def _agree_on_talkers(served: Served, counted: list[Client]) -> None:
    expected = dict(sum((client.admitted for client in counted), Counter()))
    seen: dict[str, Any] = {}

    def agrees() -> bool:
        nonlocal seen
        top = httpx.get(f"{served.url}v1/top?by=admitted&n=1000").raise_for_status().json()
        assert top["missed"] == 0, "there are too few keys to miss any"
        seen = {each["key"]: each["cost"] for each in top["keys"] if each["rule"] == INLINE}
        return seen == expected

    until(agrees, f"top talkers that agree: {len(expected)} keys")


def _kill_one(served: Served) -> None:
    before = served.workers
    os.kill(min(before), signal.SIGKILL)
    until(lambda: len(served.workers - {min(before)}) == len(before), "another worker")


DRILLS: dict[str, Callable[[], str]] = {"figures": figures}
