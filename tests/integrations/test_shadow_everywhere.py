"""`shadow` in every integration: what would be denied is admitted, counted, sometimes logged, and in the decision."""

import asyncio
import logging
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Depends, FastAPI

from ratekeeper import FixedWindow, InvalidRule, Limiter
from ratekeeper.http import Notices, Route
from ratekeeper.integrations.fastapi import RateLimit
from tests.http import test_gate
from tests.http.requests import a_request
from tests.http.test_gate import verdicts
from tests.integrations.everywhere import PLACES

LONG = "400 days"
ONE, TWO = FixedWindow(1, LONG), FixedWindow(2, LONG)
gate = test_gate.gate  # a fixture


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_rules_that_are_tried_out_deny_nothing(place, caplog):
    notices = Notices()
    with place(limit={"one": ONE}, shadow=True, notices=notices) as ask:
        answers = [ask() for _ in range(12)]
    assert {answer.status for answer in answers} == {200}
    assert not [name for name in answers[0].headers if "ratelimit" in name]
    assert notices.counts["shadow_denied"] == 11
    said = [record.getMessage() for record in caplog.records if record.name == "ratekeeper"]
    assert [each.rpartition("(")[2] for each in said] == ["1 so far; see .notices)", "10 so far; see .notices)"]
    assert "rule 'one' would have denied a request" in said[0]


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_the_other_rules_decide_and_are_reported(place):
    notices = Notices()
    with place(limit={"one": ONE, "two": TWO}, shadow=["one"], notices=notices) as ask:
        answers = [ask() for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert [answer.headers["x-ratelimit-limit"] for answer in answers] == ["2"] * 3
    assert "one" not in answers[0].headers["ratelimit-policy"]
    assert notices.counts["shadow_denied"] == 2


def test_the_decision_says_it():
    app = FastAPI()
    seen = []

    @app.get("/")
    async def hello(admission: Annotated[Any, Depends(RateLimit({"one": ONE}, shadow=True))]):
        seen.append(admission.decision.shadow_denied)

    async def ask():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
            return [(await client.get("/")).status_code for _ in range(2)]

    assert asyncio.run(ask()) == [200, 200]
    assert seen == [(), ("one",)]


# --- on both gates


def test_a_route_may_be_tried_out_alone_or_be_enforced_alone(gate):
    routes = [Route("/a", ONE, shadow=True), Route("/b", {"one": ONE, "two": TWO}, shadow=["one"]), Route("/c", ONE)]
    for shadow, of_c in ((False, [True, False, False]), (True, [True, True, True])):
        limited = gate(TWO, routes=routes, shadow=shadow)
        for path, expected in (("/a", [True] * 3), ("/b", [True, True, False]), ("/c", of_c)):
            assert verdicts(limited, *[a_request(path=path)] * 3) == expected
    limited = gate(ONE, routes=[Route("/a", ONE, shadow=False)], shadow=True)
    assert verdicts(limited, *[a_request(path="/a")] * 2, *[a_request()] * 2) == [True, False, True, True]


def test_names_may_be_those_of_any_route(gate):
    limited = gate({"one": ONE}, routes=[Route("/a", {"two": TWO})], shadow=iter(["two"]))
    assert verdicts(limited, *[a_request(path="/a")] * 3, *[a_request()] * 2) == [True, True, True, True, False]
    with pytest.raises(InvalidRule, match="shadow names an unknown rule 'three'; the rules are 'two', 'one'"):
        gate({"one": ONE}, routes=[Route("/a", {"two": TWO})], shadow=["three"])
    with pytest.raises(InvalidRule, match="route '/a': shadow names an unknown rule 'one'"):
        gate({"one": ONE}, routes=[Route("/a", {"two": TWO}, shadow=["one"])])


@pytest.mark.parametrize("shadow", ["one", 1, None])
def test_a_bad_shadow_is_refused(gate, shadow):
    with pytest.raises(TypeError, match="shadow must be True, False or a list of rule names"):
        gate(ONE, shadow=shadow)


def test_a_limiter_has_its_own_shadow(gate):
    kind = Limiter if gate.kind is test_gate.Gate else test_gate.AsyncLimiter
    limited = gate(kind({"one": ONE}, shadow=True))
    assert verdicts(limited, a_request(), a_request()) == [True, True]
    assert limited.notices.counts["shadow_denied"] == 1
    with pytest.raises(InvalidRule, match="shadow cannot be combined with a limiter"):
        gate(kind({"one": ONE}), shadow=True)


@pytest.mark.parametrize(
    ("rules", "shadow", "expected", "denied"),
    [
        ({"one": ONE, "two": TWO}, True, [True] * 3, 3),
        ({"one": ONE, "two": TWO}, ["one"], [True, True, False], 2),
        ("blocked", True, [None] * 3, 3),
        ({"one": "blocked", "two": TWO}, True, [True] * 3, 4),
        ({"one": "blocked", "two": TWO}, ["one"], [True, True, False], 3),
        ({"one": "blocked", "two": "unlimited"}, ["one"], [None] * 3, 3),
        ({"one": ONE, "two": "0/s"}, ["one"], [False] * 3, 0),
        ("blocked", ["one"], [False] * 3, 0),
        ("nonsense", True, [True] * 3, 1),
    ],
)
def test_rules_that_a_function_returns_are_tried_out(gate, rules, shadow, expected, denied):
    limited = gate(lambda request: rules, shadow=shadow, fallback=TWO)
    assert verdicts(limited, *[a_request()] * 3) == expected
    assert limited.notices.counts["shadow_denied"] == denied


def test_a_request_without_a_key_is_denied_by_no_rule_that_is_tried_out(gate, caplog):
    limited = gate({"one": ONE}, key=lambda _: None, unidentified="deny", shadow=True)
    assert verdicts(limited, a_request(), a_request()) == [None, None]
    assert limited.notices.counts["shadow_denied"] == 2
    limited = gate({"one": ONE, "two": TWO}, key=lambda _: None, unidentified="deny", shadow=["one"])
    admission = limited.admit(a_request())
    assert (admission.decision.allowed, admission.decision.rule) == (False, "two")
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_a_shaping_rule_that_is_tried_out_holds_nobody(gate):
    limited = gate("leaky-bucket 1/minute burst 5 shaping", shadow=True, max_waiters=0)
    assert verdicts(limited, *[a_request()] * 7) == [True] * 7
    assert limited.notices.counts["shadow_denied"] == 2
