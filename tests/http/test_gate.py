"""The way of a request past the limits, on both gates."""

import asyncio
import inspect
import itertools
import json
import logging
import time

import pytest
import redis

from ratekeeper import AsyncLimiter, FixedWindow, InvalidRule, Limiter, SlidingWindowLog
from ratekeeper.http import Answer, AsyncGate, Gate, Headers, Reply, Route, by_header, by_path, by_user
from ratekeeper.stores import AsyncRedisStore, MemoryStore, RedisStore
from ratekeeper.testing import ManualClock
from tests import inside, servers
from tests.faces import loop
from tests.http.requests import a_request

NOW = 1_700_000_023  # 17 s before the next full minute
MINUTE = FixedWindow(2, 60)


class Awaited:
    """An AsyncGate that is called like a Gate."""

    def __init__(self, *args, **options):
        self.gate = AsyncGate(*args, **options)

    def __getattr__(self, name):
        found = getattr(self.gate, name)
        if not inspect.iscoroutinefunction(found):
            return found
        return lambda *args, **options: loop.run_until_complete(found(*args, **options))


@pytest.fixture(params=[Gate, Awaited])
def gate(request):
    made = []

    def make(*args, **options):
        made.append(request.param(*args, **{"clock": ManualClock(NOW), **options}))
        return made[-1]

    make.kind = request.param
    yield make
    for each in made:
        each.close()


def verdicts(gate, *requests):
    """The decisions on requests: True, False, or None for those that are not limited."""
    admissions = [gate.admit(request) for request in requests]
    return [None if admission is None else admission.decision.allowed for admission in admissions]


def test_a_limit_is_for_each_client(gate):
    one, other = a_request(peer="192.0.2.1"), a_request(peer="192.0.2.2")
    assert verdicts(gate(MINUTE), one, one, one, other) == [True, True, False, True]


def test_without_a_limit_nothing_is_limited_which_is_counted_and_logged_once(gate, caplog):
    unlimited = gate(exempt=["/healthz"], routes=[Route("/open", None)])
    assert verdicts(unlimited, a_request(), a_request(path="/open")) == [None, None]
    assert unlimited.notices.counts["unlimited"] == 2
    assert [record.getMessage() for record in caplog.records] == [
        "unlimited: no limit is configured; pass a limit or routes (logged once; see .notices)"
    ]


def test_an_exemption_is_not_limited(gate):
    limited = gate(MINUTE, exempt=["/healthz", "GET /static/*"])
    static = [a_request(path="/static/x"), a_request(path="/static/x", method="POST"), a_request(path="/static")]
    assert verdicts(limited, a_request(path="/healthz"), *static) == [None, None, True, True]


def test_the_first_route_that_matches_counts(gate):
    routes = [
        Route("/login", FixedWindow(1, 60), methods=["post"]),
        Route("/users/{id}/posts", FixedWindow(1, 60)),
        Route("/api/*", None),
    ]
    limited = gate("1000/minute", routes=routes)
    for path, method, limit in [
        ("/login", "POST", 1),
        ("/login", "GET", 1000),
        ("/users/7/posts", "GET", 1),
        ("/users/7/8/posts", "GET", 1000),
        ("/users//posts", "GET", 1000),
        ("/other", "GET", 1000),
    ]:
        assert limited.admit(a_request(path=path, method=method)).decision.limit == limit
    assert limited.admit(a_request(path="/api/users")) is None


def test_routes_count_for_themselves(gate):
    limited = gate(MINUTE, routes=[Route("/a", MINUTE), Route("/b", MINUTE)], store=MemoryStore())
    assert verdicts(limited, *(a_request(path=path) for path in ("/a", "/a", "/a", "/b", "/c"))) == [
        True,
        True,
        False,
        True,
        True,
    ]


def test_routes_of_one_name_share_what_is_used(gate):
    limited = gate(routes=[Route("/a", MINUTE, name="api"), Route("/b", MINUTE, name="api")])
    assert verdicts(limited, *(a_request(path=path) for path in ("/a", "/b", "/a", "/b"))) == [True, True, False, False]


def test_a_route_may_have_its_own_key_and_cost(gate):
    limited = gate("10/minute", routes=[Route("/x/*", "10/minute", key=by_path(), cost=10)])
    assert verdicts(limited, a_request(path="/x/1"), a_request(path="/x/1"), a_request(path="/x/2")) == [
        True,
        False,
        True,
    ]


def test_rules_may_depend_on_the_request(gate):
    plans = {"free": "1/minute", "pro": "3/minute", "house": None}
    limited = gate(lambda request: plans[request.header("x-plan")[0]], key=by_header("x-plan"))
    assert verdicts(
        limited, *(a_request(headers={"x-plan": plan}) for plan in ("free", "free", "pro", "pro", "house"))
    ) == [
        True,
        False,
        True,
        True,
        None,
    ]


@pytest.mark.parametrize("rules", [{"a": MINUTE, "b": MINUTE}, [MINUTE, "1/s"], MINUTE, "2/minute; 3/hour"])
def test_rules_that_depend_on_the_request_may_have_any_form(gate, rules):
    limited = gate(lambda request: rules)
    assert verdicts(limited, a_request(), a_request()).count(True) >= 1


def test_many_rules_that_depend_on_the_request_do_not_pile_up(gate):
    limited = gate(lambda request: f"{request.path[1:]}/minute")
    for number in range(1, 1100):
        limited.admit(a_request(path=f"/{number}"))
    assert len(inside.limiters_by_rules(getattr(limited, "gate", limited))) == 1000


def test_a_cost_may_depend_on_the_request(gate):
    limited = gate(FixedWindow(10, 60), cost=lambda request: int(request.header("x-cost")[0]))
    costs = [a_request(headers={"x-cost": cost}) for cost in ("6", "5", "0", "4")]
    assert verdicts(limited, *costs) == [True, False, None, True]


def test_a_cost_may_differ_by_rule(gate):
    rules = {"requests": FixedWindow(10, 60), "tokens": FixedWindow(100, 60)}
    limited = gate(rules, cost=lambda request: {"tokens": 70})
    layers = limited.admit(a_request()).decision.layers
    assert (layers["requests"].remaining, layers["tokens"].remaining) == (9, 30)


def test_a_key_may_differ_by_rule(gate):
    rules = {"user": FixedWindow(1, 60), "all": FixedWindow(2, 60)}
    limited = gate(rules, key=lambda request: {"user": request.user_id, "all": "all"})
    assert verdicts(limited, *(a_request(user=user) for user in "aabc")) == [True, False, True, False]


def test_a_limiter_may_be_given():
    limiter = Limiter(MINUTE)
    limiter.hit("address:192.0.2.1", 2)
    assert verdicts(Gate(limiter), a_request()) == [False]


def test_a_limiter_of_the_other_kind_is_refused():
    with pytest.raises(TypeError, match="limit must be rules or of type AsyncLimiter here"):
        AsyncGate(Limiter(MINUTE))
    with pytest.raises(TypeError, match="limit must be rules or of type Limiter here"):
        Gate(AsyncLimiter(MINUTE))


async def of_tomorrow(request):
    return "ada"


async def plan_of(request):
    return "1/minute"


async def cost_of(request):
    return 1


def test_functions_may_be_coroutine_functions():
    gate = AsyncGate(plan_of, key=of_tomorrow, cost=cost_of)
    assert verdicts(
        type("", (), {"admit": lambda self, r: asyncio.run(gate.admit(r))})(), a_request(), a_request()
    ) == [
        True,
        False,
    ]


@pytest.mark.parametrize("options", [{"key": of_tomorrow}, {"cost": cost_of}, {"limit": plan_of}])
def test_a_sync_gate_refuses_coroutine_functions_at_once(options):
    with pytest.raises(TypeError, match="is a coroutine function, which cannot be awaited here"):
        Gate(**{"limit": "1/minute", **options})


def test_a_sync_gate_that_gets_an_awaitable_does_not_fail(caplog):
    def looks_plain(request):
        return of_tomorrow(request)

    gate = Gate("1/minute", key=looks_plain)
    assert verdicts(gate, a_request(), a_request()) == [True, False]
    assert "the key function failed: all such requests share one key" in caplog.text


# --- requests without a key


def fails(request):
    raise LookupError("no session")


NO_KEYS = {
    "raises": fails,
    "gives nothing": lambda request: None,
    "gives what is no key": lambda request: 1.5,
    "gives an empty key": lambda request: "",
    "gives a key that is too long": lambda request: "x" * 2000,
    "gives keys for other rules": lambda request: {"other": "x"},
}


@pytest.mark.parametrize("key", NO_KEYS.values(), ids=NO_KEYS)
@pytest.mark.parametrize(
    ("policy", "expected"), [("shared", [True, False]), ("deny", [False, False]), ("skip", [None, None])]
)
def test_a_request_without_a_key_follows_the_policy(gate, key, policy, expected):
    limited = gate("1/minute", key=key, unidentified=policy)
    assert verdicts(limited, a_request(peer="192.0.2.1"), a_request(peer="192.0.2.2")) == expected


def test_a_request_that_is_denied_for_want_of_a_key_is_told_no_time(gate):
    limited = gate("1/minute", key=fails, unidentified="deny")
    request = a_request()
    reply = limited.denial(request, limited.admit(request))
    assert reply.status == 429
    assert "Retry-After" not in dict(reply.headers)


def test_trouble_with_a_key_function_is_logged_once(gate, caplog):
    limited = gate("1/minute", key=fails)
    with caplog.at_level(logging.WARNING, "ratekeeper"):
        verdicts(limited, a_request(), a_request())
    assert [record.getMessage() for record in caplog.records] == [
        "shared: route '*': the key function failed: all such requests share one key (logged once; see .notices)"
    ]
    assert "LookupError: no session" in caplog.text


@pytest.mark.parametrize("rules", [fails, lambda request: "1/dya", lambda request: {"a": ["1/s"]}])
def test_a_request_whose_rules_cannot_be_found_is_limited_as_all_else_is(gate, rules):
    limited = gate(FixedWindow(1, 60), routes=[Route("/api/*", rules)])
    assert verdicts(limited, a_request(path="/api/x"), a_request(path="/api/x")) == [True, False]
    assert limited.notices.counts["degraded"] == 2


def test_a_limit_for_get_is_one_for_head(gate):
    limited = gate(routes=[Route("*", FixedWindow(1, 60), methods=["GET"])])
    assert verdicts(limited, a_request(), a_request(method="HEAD"), a_request(method="POST")) == [True, False, None]


@pytest.mark.parametrize("cost", [fails, lambda _: -1, lambda _: "1", lambda _: None, lambda _: {"x": 1}])
def test_trouble_with_a_cost_function_costs_one(gate, cost, caplog):
    assert gate(MINUTE, cost=cost).admit(a_request()).decision.remaining == 1
    assert "the cost function failed; the request costs 1" in caplog.text


# --- the answer


def test_a_denial_is_answered_with_headers_and_a_problem(gate):
    limited = gate({"user": FixedWindow(1, 60)})
    request = a_request()
    limited.admit(request)
    reply = limited.denial(request, limited.admit(request))
    assert reply.status == 429
    assert dict(reply.headers) == {
        "Content-Type": "application/problem+json",
        "Content-Length": str(len(reply.body)),
        "X-RateLimit-Limit": "1",
        "X-RateLimit-Remaining": "0",
        "X-RateLimit-Reset": str(NOW + 17),
        "RateLimit-Policy": '"user";q=1;w=60',
        "RateLimit": '"user";r=0;t=17',
        "Retry-After": "17",
    }
    assert json.loads(reply.body)["violated-policies"] == ["user"]


def test_an_application_may_answer_denials_itself(gate):
    def deny(request, decision):
        return Reply(503, [("retry-after", "60")], f"{request.path} {decision.limit}".encode())

    limited = gate(FixedWindow(1, 60), deny=deny, headers=Headers(legacy=False, draft=None))
    limited.admit(a_request())
    assert limited.denial(a_request(), limited.admit(a_request())) == Reply(503, [("retry-after", "60")], b"/ 1")


@pytest.mark.parametrize("deny", [None, lambda request, decision: Reply(503, [("Content-Length", "4")], b"busy")])
def test_the_answer_to_head_has_no_body(gate, deny):
    limited = gate(FixedWindow(1, 60), deny=deny)
    head = a_request(method="HEAD")
    limited.admit(head)
    reply = limited.denial(head, limited.admit(head))
    assert (reply.body, "Content-Length" in dict(reply.headers)) == (b"", True)


# --- settlement


def test_a_request_that_cost_more_is_charged(gate):
    limited = gate(FixedWindow(100, 60), cost=10, settle=lambda request, answer: answer.size)
    admission = limited.admit(a_request())
    limited.settle(a_request(), admission, Answer(200, 35))
    assert limited.admit(a_request()).decision.remaining == 55


def test_a_request_that_cost_less_is_given_back(gate):
    limited = gate(FixedWindow(100, 60), cost=10, settle=lambda request, answer: 0 if answer.status == 304 else None)
    for status, remaining in ((304, 90), (200, 90), (200, 80)):
        admission = limited.admit(a_request())
        assert admission.decision.remaining == remaining
        limited.settle(a_request(), admission, Answer(status, 0))


def test_a_cost_can_be_corrected_by_hand(gate):
    limited = gate(FixedWindow(100, 60), cost=10)
    limited.correct(limited.admit(a_request()), 25)
    limited.correct(limited.admit(a_request()), 0)
    assert limited.admit(a_request()).decision.remaining == 65


def test_each_rule_is_settled_by_itself(gate):
    rules = {"requests": FixedWindow(10, 60), "in": FixedWindow(100, 60), "out": FixedWindow(100, 60)}
    limited = gate(rules, cost={"in": 50, "out": 50}, settle=lambda request, answer: {"in": 60, "out": 20})
    limited.settle(a_request(), limited.admit(a_request()), Answer(200, 0))
    layers = limited.admit(a_request(peer="192.0.2.1")).decision.layers  # denied by "in", so as after the settlement
    assert {name: layer.remaining for name, layer in layers.items()} == {"requests": 9, "in": 40, "out": 80}


_numbers = itertools.count()
CORRECTIONS = {
    "settled": lambda gate, admission: gate.settle(a_request(), admission, Answer(200, 0)),
    "by hand": lambda gate, admission: gate.correct(admission, 0),
}


@pytest.fixture(params=["memory", "Redis"])
def shared(request):
    """Where several limiters count together, under a prefix of the test's own."""
    store = MemoryStore() if request.param == "memory" else servers.shared(servers.newest()).url
    return {"store": store, "prefix": f"gate {next(_numbers)}", "on_error": "raise", "deadline": 5}


@pytest.fixture(params=CORRECTIONS.values(), ids=CORRECTIONS)
def correct(request):
    """Say that a request cost nothing."""
    return request.param


def test_what_counted_in_a_window_that_is_over_is_not_given_back_to_the_next(gate, shared, correct):
    clock = ManualClock(NOW)
    limited = gate(FixedWindow(100, 60), cost=60, settle=lambda *_: 0, clock=clock, **shared)
    admission = limited.admit(a_request())
    clock.advance(17)
    assert limited.admit(a_request()).decision.remaining == 40  # another's, in the next window
    correct(limited, admission)
    assert not limited.admit(a_request()).decision.allowed


def test_nobody_elses_units_are_given_back(gate, shared, correct):
    clock = ManualClock(NOW)
    rule = SlidingWindowLog(10, 60)
    limited = gate(rule, cost=5, settle=lambda *_: 0, clock=clock, **shared)
    others = Limiter(rule, clock=clock, **shared)
    admission = limited.admit(a_request())
    clock.advance(1)
    others.hit(admission.key, 4)
    correct(limited, admission)
    assert others.peek(admission.key).remaining == 6
    clock.advance(59)  # the request's own would be over, the others count for another second
    assert others.peek(admission.key).remaining == 6
    others.close()


@pytest.mark.parametrize("on_error", ["open", "local"])
def test_what_redis_was_not_charged_is_not_given_back_there(gate, correct, on_error):
    server = servers.RedisServer(servers.programs()[servers.newest()])
    rule, options = FixedWindow(100, 86_400), {"clock": ManualClock(NOW), "deadline": 5}
    limited = gate(rule, cost=60, settle=lambda *_: 0, store=server.url, on_error=on_error, **options)
    server.stop()
    admission = limited.admit(a_request())
    assert admission.decision.degraded
    server.start()
    others = Limiter(rule, server.url, on_error="raise", **options)
    others.hit(admission.key, 60)
    inside.second_passed(admission.http_limiter.limiter.store)
    correct(limited, admission)
    assert others.peek(admission.key).remaining == 40
    others.close()
    server.stop()


def test_what_a_process_counted_for_redis_is_given_back_in_this_process(gate, correct):
    gone = f"redis://127.0.0.1:{servers.free_port()}"
    limited = gate(FixedWindow(100, 86_400), cost=60, settle=lambda *_: 0, store=gone)
    correct(limited, limited.admit(a_request()))
    assert limited.admit(a_request()).decision.allowed


def test_a_denied_request_has_nothing_to_give_back(gate):
    limited = gate(FixedWindow(100, 60), cost=60)
    limited.admit(a_request())
    limited.correct(limited.admit(a_request()), 0)
    assert not limited.admit(a_request()).decision.allowed


def test_a_limiter_that_is_switched_off_settles_nothing():
    limiter = Limiter(FixedWindow(100, 60), enabled=False)
    gate = Gate(limiter, cost=60, settle=lambda *_: 0)
    admission = gate.admit(a_request())
    gate.settle(a_request(), admission, Answer(200, 0))
    assert (admission.decision.remaining, limiter.store.size) == (100, 0)


def test_decisions_that_can_be_corrected_are_told_to_the_hook():
    told = []
    gate = Gate(Limiter(MINUTE, on_decision=lambda *each: told.append(each)), settle=lambda *_: 0)
    admissions = [gate.admit(a_request()) for _ in range(3)]
    assert told == [(admission.key, admission.decision) for admission in admissions]


@pytest.mark.parametrize("correctable", [True, False])
def test_the_shortest_way_decides_alike_and_settles(gate, correctable):
    def begun(limited):
        return limited.admit(a_request(), correctable=correctable)

    plain, settling = gate(MINUTE), gate(MINUTE, settle=lambda *_: 0)
    assert [begun(plain).decision.remaining for _ in range(3)] == [1, 0, 0]
    for _ in range(3):
        admission = begun(settling)
        assert admission.decision.remaining == 1
        settling.settle(a_request(), admission, Answer(200, 0))


@pytest.mark.parametrize("settle", [lambda *_: -1, lambda *_: "x", lambda *_: {"x": 1}, lambda *_: 1 / 0])
def test_trouble_with_a_settlement_leaves_the_estimate(gate, settle, caplog):
    limited = gate(MINUTE, settle=settle)
    limited.settle(a_request(), limited.admit(a_request()), Answer(200, 0))
    assert limited.admit(a_request()).decision.remaining == 0
    assert "the settlement failed" in caplog.text


# --- shaping

SHAPING = "leaky-bucket 1/s burst 10 shaping"


def test_more_than_the_bound_of_one_key_do_not_wait(gate, caplog):
    limited = gate(SHAPING, max_waiters_per_key=2)
    admissions = [limited.admit(a_request()) for _ in range(5)]
    assert [(each.decision.allowed, each.decision.delay, each.decision.retry_after) for each in admissions] == [
        (True, 0.0, 0.0),
        (True, 1.0, 0.0),
        (True, 2.0, 0.0),
        (False, 0.0, 3.0),
        (False, 0.0, 3.0),
    ]
    assert verdicts(limited, a_request(peer="192.0.2.9")) == [True]
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(
        "requests that would have to be held are denied, because 1000 are held already, or 2 for one key"
    )
    held = getattr(limited, "gate", limited).held
    assert (held.count, held.refused) == (2, 2)


def test_who_leaves_makes_room(gate):
    limited = gate(SHAPING, max_waiters=1)
    _, waiting, refused = (limited.admit(a_request()) for _ in range(3))
    assert (waiting.decision.allowed, refused.decision.allowed) == (True, False)
    limited.leave(waiting)
    limited.leave(refused)
    assert verdicts(limited, a_request(), a_request()) == [True, False]


def test_gates_may_share_their_bounds(gate):
    one = gate(SHAPING, max_waiters=1)
    other = gate(SHAPING, sibling=getattr(one, "gate", one))
    for limited in (one, other):
        limited.admit(a_request())
    assert verdicts(one, a_request()) + verdicts(other, a_request()) == [True, False]


def test_a_full_house_still_admits_what_need_not_wait(gate):
    limited = gate(SHAPING, max_waiters=1)
    limited.admit(a_request())
    limited.admit(a_request())
    assert verdicts(limited, a_request(peer="192.0.2.9")) == [True]


def test_a_held_request_goes_on_after_its_delay():
    gate = Gate("leaky-bucket 1000/s burst 10 shaping", max_waiters=1)
    gate.admit(a_request())
    admission = gate.admit(a_request())
    gate.hold(admission)
    assert inside.number_held(gate) == 0


# --- bad input fails at start-up, with the place and the reason


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"limit": "many"}, InvalidRule, "route '\\*': cannot read rule 'many'"),
        ({"limit": 5}, TypeError, "route '\\*': rules must be a rule, a text"),
        ({"routes": [Route("/a", "0/s")]}, InvalidRule, "route '/a': rule '0/s'"),
        (
            {"routes": [Route("/a", "1/s", methods=["get"], key="user")]},
            TypeError,
            "route 'GET /a': key must be a callable",
        ),
        ({"routes": [Route("/a", "1/s", cost=0)]}, InvalidRule, "route '/a': cost must be an int of at least 1, not 0"),
        ({"routes": [Route("/a", "1/s", cost={"x": 1})]}, InvalidRule, "route '/a': cost .* names an unknown rule 'x'"),
        (
            {"limit": "1/s", "key": lambda one, two: "k"},
            TypeError,
            "route '\\*': key must take one argument, the request",
        ),
        ({"limit": "1/s", "settle": lambda request: 1}, TypeError, "route '\\*': settle must take two arguments"),
        ({"limit": "1/s", "unidentified": "ignore"}, InvalidRule, "unidentified must be 'shared', 'deny' or 'skip'"),
        ({"limit": "1/s", "headers": True}, TypeError, "headers must be Headers"),
        ({"limit": "1/s", "deny": 503}, TypeError, "deny must be a text, or a function"),
        ({"limit": "1/s", "deny": lambda: None}, TypeError, "deny must take two arguments, the request and the dec"),
        ({"limit": "1/s", "max_waiters": -1}, InvalidRule, "max_waiters must be an int of at least 0, not -1"),
        ({"limit": "1/s", "store": "mongodb://"}, InvalidRule, "route '\\*': store 'mongodb://' has an unknown scheme"),
        ({"exempt": "/healthz"}, TypeError, "exempt must be a list, not '/healthz'"),
        ({"exempt": ["healthz"]}, InvalidRule, "a route's path must begin with '/', unlike 'healthz'"),
        ({"routes": ["/a"]}, TypeError, "routes\\[0\\] must be a Route such as .*, not '/a'"),
    ],
)
def test_what_cannot_work_is_refused_at_once(gate, options, error, message):
    with pytest.raises(error, match=message):
        gate(**options)


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("a", {}, "a route's path must begin with '/', unlike 'a'"),
        (None, {}, "a route's path must begin with '/', unlike None"),
        ("/*/a", {}, "a route's path may have a '\\*' only at its end"),
        ("/a", {"methods": "POST"}, "a route's methods must be a list"),
        ("/a", {"methods": ["POST /"]}, "'POST /' is not a method"),
    ],
)
def test_a_malformed_route_is_refused_at_once(path, options, message):
    with pytest.raises((InvalidRule, TypeError), match=message):
        Route(path, "1/s", **options)


@pytest.mark.parametrize("path", ["/{", "/a}", "/{a/b}", "/{}"])
def test_a_malformed_parameter_is_refused_at_once(path):
    with pytest.raises(InvalidRule, match=r"write a parameter as '{name}'"):
        Gate(routes=[Route(path, "1/s")])


def test_a_gate_closes_the_store_that_it_made_and_no_other(gate):
    url = servers.shared(servers.newest()).url

    names = {f"{name}-{time.time_ns()}" for name in ("made", "given")}
    given_name, made_name = sorted(names)

    def connections():
        return {client["name"] for client in watcher.client_list()} & names

    watcher = redis.Redis.from_url(url)
    given = (RedisStore if gate.kind is Gate else AsyncRedisStore)(f"{url}?client_name={given_name}")
    made = [gate(MINUTE, store=f"{url}?client_name={made_name}", deadline=5), gate(MINUTE, store=given, deadline=5)]
    for each in made:
        assert not each.admit(a_request()).decision.degraded
    assert connections() == names
    for each in made:
        each.close()
    give_up = time.monotonic() + 10
    while connections() == names and time.monotonic() < give_up:
        time.sleep(0.01)  # the server hears of it a moment later
    assert connections() == {given_name}
    closed = given.close()
    if inspect.isawaitable(closed):
        loop.run_until_complete(closed)
    watcher.close()


def test_users_are_told_apart(gate):
    limited = gate("1/minute", key=by_user())
    assert verdicts(limited, a_request(user="a"), a_request(user="b"), a_request(user="a")) == [True, True, False]


def test_a_full_house_that_empties_meanwhile_admits(gate):
    clock = ManualClock(NOW)
    limited = gate(SHAPING, max_waiters=0, clock=clock)
    limited.admit(a_request())
    assert verdicts(limited, a_request()) == [False]
    clock.advance(1)
    assert verdicts(limited, a_request()) == [True]


def test_of_a_crowd_that_comes_to_a_full_house_at_once_nobody_is_held():
    async def scenario():
        url = servers.shared(servers.newest()).url
        limited = AsyncGate(SHAPING, max_waiters=0, store=url, prefix=f"crowd {time.time_ns()}", deadline=10)
        admissions = await asyncio.gather(*(limited.admit(a_request()) for _ in range(10)))
        await limited.close()
        return [admission.decision for admission in admissions]

    decisions = asyncio.run(scenario())
    assert sum(decision.allowed for decision in decisions) == 1
    assert {decision.delay for decision in decisions} == {0.0}
