"""The service decides by a policy as the library does: every vector, and traces of several rules."""

import asyncio
import json
import random
from fractions import Fraction

import pytest

from ratekeeper.policies import Policies
from ratekeeper.service.api import decision_fields
from ratekeeper.service.app import create_app
from ratekeeper.service.web import ServiceRequest
from ratekeeper.stores import MemoryStore, memory
from ratekeeper.testing import ManualClock
from tests.conformance.kit import rule_of
from tests.conformance.test_vectors import FILES, vectors
from tests.service.operating import Never

HEADERS = {b"host": b"localhost", b"content-type": b"application/json"}
OPERATIONS = ("hit", "peek", "charge", "refund", "reset")
SEVERAL = {
    "policies": {
        "api": {
            "rules": [
                {"name": "user", "limit": "token-bucket 3/s burst 5", "key": "{user}"},
                {"name": "tenant", "limit": "sliding-window-log 20/10s", "key": "{tenant|none}", "cost": "{tokens|1}"},
                {"name": "writes", "limit": "fixed-window 4/s", "key": "all", "when": {"method": "POST"}},
                {"name": "tried", "limit": "leaky-bucket 2/s burst 3 shaping", "key": "{user}", "shadow": True},
            ],
            "overrides": [
                {"when": {"user": "ada"}, "limits": {"user": "token-bucket 30/s burst 50"}},
                {"when": {"user": "eve"}, "limits": {"writes": "blocked"}},
                {"when": {"user": "root"}, "limits": "unlimited"},
            ],
        }
    }
}


class Both:
    """The service and a limiter of the library, by one policy, on clocks that show the same time."""

    def __init__(self, policies, monkeypatch):
        text = json.dumps(policies)
        self.clock = ManualClock()
        monkeypatch.setattr(memory, "wall_clock", self.clock)  # the service decides by the time of its store
        self._app = create_app(MemoryStore(), policies=text, playground=False)
        self._app.service.policies.following = Never()
        self._limiter = Policies.load(text).limiter("api", MemoryStore(), clock=self.clock)

    async def differ(self, operation, at_us, attributes, cost):
        """Do an operation on both; return both answers if they differ, and that of the library."""
        self.clock.set(Fraction(at_us, 1_000_000))
        body = json.dumps({"policy": "api", "attributes": attributes, "cost": cost}).encode()

        async def read(_):
            return body

        request = ServiceRequest("POST", f"/v1/{operation}", b"", HEADERS, (), "127.0.0.1", read)
        answer = await self._app.answer(request)
        method = getattr(self._limiter, operation)
        decision = method(attributes) if operation == "reset" else method(attributes, cost)
        served = json.loads(answer.body)
        expected = (
            {"ok": True}
            if decision is None
            else json.loads(json.dumps(decision_fields(decision)), parse_constant=lambda _: None)
        )
        denies = decision is not None and operation in ("hit", "peek") and not decision.allowed
        assert answer.status == (429 if denies else 200)
        return None if served == expected else (served, expected), decision


def same(answer, expected):
    """Whether a decision is what a vector expects, in microseconds."""
    times = {name: round(getattr(answer, name) * 1_000_000) for name in ("reset_after", "delay")}
    fields = {
        "allowed": answer.allowed,
        "remaining": answer.remaining,
        **{f"{name}_us": at for name, at in times.items()},
    }
    return all(expected.get(name, value) == value for name, value in fields.items())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_vector_is_answered_as_the_library_answers_it(file, monkeypatch):
    async def play():
        steps = 0
        for vector in vectors(file):
            rule = {"name": "one", "limit": rule_of(vector["rule"]).text, "key": "{user}"}
            both = Both({"policies": {"api": {"rules": [rule]}}}, monkeypatch)
            is_exact = True
            for step in vector["steps"]:
                if step["op"] not in OPERATIONS:
                    is_exact = False  # the service gives nothing back
                    continue
                wrong, decision = await both.differ(step["op"], step["at_us"], {"user": "42"}, step["cost"])
                assert wrong is None, (vector["name"], step, wrong)
                if is_exact and "expect" in step:
                    assert same(decision, step["expect"]), (vector["name"], step, decision)
                steps += 1
        return steps

    assert asyncio.run(play()) > 0


@pytest.mark.parametrize("seed", range(5))
def test_traces_of_several_rules_are_answered_as_the_library_answers_them(seed, monkeypatch):
    dice = random.Random(seed)

    async def play():
        both = Both(SEVERAL, monkeypatch)
        at_us, outcomes = 1_700_000_000_000_000, set()
        for _ in range(300):
            at_us += dice.choice([0, 1, 1_000, 250_000, 999_999, -500])
            attributes = {
                "user": dice.choice(["ada", "bob", "eve", "root", 42]),
                "method": dice.choice(["GET", "post"]),
            }
            attributes |= dice.choice([{}, {"tenant": "acme"}, {"tenant": "acme", "tokens": dice.randint(0, 8)}])
            operation = dice.choice(["hit"] * 6 + list(OPERATIONS))
            cost = dice.choice([1, 1, 2, 9, {"user": 2}, {"user": 0, "tenant": 3}])
            wrong, decision = await both.differ(operation, at_us, attributes, cost)
            assert wrong is None, (operation, attributes, cost, wrong)
            outcomes.add(
                None if decision is None else (decision.allowed, decision.limit is None, bool(decision.shadow_denied))
            )
        return outcomes

    assert len(asyncio.run(play())) >= 5, "the traces met too little"
