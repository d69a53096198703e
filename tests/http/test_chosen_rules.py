"""Rules that a function of the request returns: whatever it does, requests are not silently unlimited."""

import math

import pytest

from ratekeeper import FixedWindow, InvalidRule, Limiter
from ratekeeper.http import AsyncGate, Gate, Route
from ratekeeper.stores import MemoryStore
from tests.faces import loop
from tests.http.requests import a_request

ONE = FixedWindow(1, "400 days")
NONE = {"degraded": 0, "skipped": 0, "shared": 0, "unlimited": 0, "shadow_denied": 0}


class AsyncioGate:
    """An AsyncGate that is called like a Gate."""

    def __init__(self, *args, **options):
        self.gate = AsyncGate(*args, **options)
        self.denial, self.notices = self.gate.denial, self.gate.notices

    def admit(self, *args, **options):
        return loop.run_until_complete(self.gate.admit(*args, **options))


@pytest.fixture(params=[Gate, AsyncioGate])
def gate(request):
    return request.param


def verdicts(gate, count, **request):
    admissions = [gate.admit(a_request(**request)) for _ in range(count)]
    return [None if admission is None else admission.decision.allowed for admission in admissions]


DENYING = [
    *(
        "0/minute",
        "0/m",
        "0 per minute",
        "00/minute",
        " 0/minute ",
        "0   /  minute",
        "fixed-window   0/minute",
        "fixed-window 0/15minutes",
        "0/s burst 10",
    ),
    *("10/s burst 0", "leaky-bucket 0/s burst 20 shaping", "token-bucket 10/s burst 0", "100/minute; 0/hour"),
    *("blocked", "Blocked", " blocked ", "10/s; blocked", "unlimited; blocked"),
    *(["10/s", "0/minute"], ("blocked",), {"user": "10/s", "all": "0/s"}, {"user": "blocked", "all": ONE}),
]


@pytest.mark.parametrize("rules", DENYING, ids=repr)
def test_rules_that_admit_nothing_deny_everything(gate, rules):
    limited = gate(lambda request: rules, key=lambda request: {"user": "u", "all": "a"})
    request = a_request()
    admission = limited.admit(request)
    assert not admission.decision.allowed
    assert admission.decision.retry_after == math.inf
    reply = limited.denial(request, admission)
    assert reply.status == 429
    assert {name for name, _ in reply.headers} == {"Content-Type", "Content-Length"}  # no Retry-After
    assert b"cannot be admitted" in reply.body
    assert limited.notices.counts == NONE


UNLIMITED = [
    *(None, "unlimited", " Unlimited ", "unlimited; unlimited", ["unlimited"], {"user": "unlimited"}),
]


@pytest.mark.parametrize("rules", UNLIMITED, ids=repr)
def test_rules_that_limit_nothing_are_counted_and_logged_once(gate, rules, caplog):
    limited = gate(lambda request: rules)
    assert verdicts(limited, 3) == [None] * 3
    assert limited.notices.counts == {**NONE, "unlimited": 3}
    assert [record.getMessage() for record in caplog.records] == [
        (
            "unlimited: route '*': the rules function returned no limit for a request: such requests are not limited "
            "(logged once; see .notices)"
        )
    ]


@pytest.mark.parametrize("rules", ["unlimited; fixed-window 1/day", [ONE, "unlimited"]], ids=repr)
def test_an_unlimited_rule_leaves_the_others(gate, rules):
    limited = gate(lambda request: rules)
    assert verdicts(limited, 2) == [True, False]
    assert limited.notices.counts == NONE


def test_an_unlimited_rule_is_left_out_of_keys_and_costs(gate):
    rules = {"user": "unlimited", "all": FixedWindow(4, "400 days")}
    keys = {"user": "ada", "all": "all"}
    for cost in ({"user": 9, "all": 2}, lambda request: {"user": 9, "all": 2}):
        limited = gate(lambda request: rules, key=lambda request: keys, cost=cost)
        assert verdicts(limited, 3) == [True, True, False]
        assert limited.notices.counts == NONE


def fails(request):
    raise LookupError("no session")


async def fails_later(request):
    raise LookupError("no session")


BAD = [
    *("", " ", "nonsense", "1/dya", "-1/minute", "0.0/minute", "0/bananas", "burst 0", "unlimited;", "many; unlimited"),
    *(
        "none",
        "None",
        "inf/s",
        "1e9/s",
        "100",
        0,
        5,
        -1,
        1.5,
        True,
        False,
        b"1/s",
        pytest.param(object(), id="an object"),
        [],
        (),
        {},
        [[]],
        [None, 0],
    ),
    *(
        {"user": ["1/s"]},
        {"user": "1/s; 2/s"},
        {5: "1/s"},
        {"user": 0},
        {"user": b""},
        ";".join(["1/s"] * 1000),
        ";".join(["0/s"] * 5000),
    ),
]


@pytest.mark.parametrize("rules", BAD, ids=lambda rules: repr(rules)[:30])
def test_what_cannot_be_read_gets_the_limit_that_stands_for_all_else(gate, rules, caplog):
    limited = gate(ONE, routes=[Route("/dynamic", lambda request: rules)])
    assert verdicts(limited, 3, path="/dynamic") == [True, False, False]
    assert limited.notices.counts == {**NONE, "degraded": 3}
    assert [record.getMessage() for record in caplog.records] == [
        (
            "degraded: route '/dynamic': the rules function failed; the default limit applies, fixed-window 1/400d "
            "(logged once; see .notices)"
        )
    ]


@pytest.mark.parametrize("rules", [fails, lambda request: "nonsense"])
def test_without_such_a_limit_the_fallback_applies(gate, rules):
    assert verdicts(gate(rules), 61) == [True] * 60 + [False]
    assert verdicts(gate(rules, fallback="fixed-window 2/400d"), 3) == [True, True, False]
    assert verdicts(gate(fails, fallback="60/minute", routes=[Route("/x", rules)]), 61, path="/x") == [True] * 60 + [
        False
    ]


def test_a_coroutine_that_fails_gets_the_fallback():
    limited = AsyncioGate(fails_later, fallback=ONE)
    assert verdicts(limited, 2) == [True, False]
    assert limited.notices.counts == {**NONE, "degraded": 2}


def test_the_fallback_may_be_a_limiter():
    limiter = Limiter(ONE)
    assert verdicts(Gate(fails, fallback=limiter), 2) == [True, False]
    assert not limiter.peek("address:192.0.2.1").allowed


def test_a_fallback_that_cannot_be_read_is_refused_at_once(gate):
    with pytest.raises(InvalidRule, match="cannot read rule 'many'"):
        gate(lambda request: "1/s", fallback="many")


def test_costs_by_name_that_do_not_fit_the_fallback_cost_one(gate):
    limited = gate(fails, cost={"tokens": 5}, fallback=FixedWindow(2, "400 days"))
    assert verdicts(limited, 3) == [True, True, False]


def test_what_is_free_is_counted_and_logged_once(gate, caplog):
    limited = gate(ONE, cost=lambda request: 0)
    assert verdicts(limited, 2) == [None, None]
    assert limited.notices.counts == {**NONE, "skipped": 2}
    assert len(caplog.records) == 1


@pytest.mark.parametrize(("unidentified", "kind"), [("skip", "skipped"), ("shared", "shared"), ("deny", None)])
@pytest.mark.parametrize("key", [fails, lambda request: None, lambda request: 1.5])
def test_requests_without_a_key_are_counted_and_logged_once(gate, caplog, key, unidentified, kind):
    limited = gate("5/day", key=key, unidentified=unidentified)
    verdicts(limited, 3)
    assert limited.notices.counts == ({**NONE, kind: 3} if kind else NONE)
    assert len(caplog.records) == 1


class BindingStore(MemoryStore):
    """Remembers in which group each rule in force is."""

    def __init__(self):
        super().__init__()
        self.groups = {}

    def bind(self, binding, clock):
        self.groups[binding.rule.text] = binding.group
        super().bind(binding, clock)


def test_the_rules_that_a_function_chooses_are_one_group(gate):
    """Where a full store divides its room, they count as one rule."""
    store = BindingStore()
    routes = [Route("/x", lambda request: request.header("x-plan")[0], name="plans")]
    limited = gate("9/day", routes=routes, store=store, prefix="here")
    for plan in ("1/day", "2/day"):
        limited.admit(a_request(path="/x", headers={"x-plan": plan}))
    assert store.groups == {
        "sliding-window-counter 9/day": None,
        "sliding-window-counter 1/day": "here:plans",
        "sliding-window-counter 2/day": "here:plans",
    }
