"""Options of both gates: a budget for each method, answers to denials, functions without arguments, exemptions."""

import contextvars
import json
import logging

import pytest

from ratekeeper import FixedWindow
from ratekeeper.http import Gate, Reply, Route, by_address, by_header, by_path, by_user, combine, first_of
from tests.http import test_gate
from tests.http.requests import a_request
from tests.http.test_gate import Awaited, of_tomorrow, verdicts

ONE = FixedWindow(1, "400 days")
gate = test_gate.gate  # a fixture


# --- a budget for each method


def test_each_method_may_have_its_own_budget(gate):
    limited = gate(ONE, per_method=True)
    methods = ["GET", "POST", "PUT", "GET", "POST"]
    assert verdicts(limited, *(a_request(method=each) for each in methods)) == [True, True, True, False, False]


def test_a_method_written_another_way_has_no_budget_of_its_own(gate):
    limited = gate(ONE, per_method=True)
    methods = ["GET", "HEAD", "get", "Head", "POST", "post"]
    assert verdicts(limited, *(a_request(method=each) for each in methods)) == [True, False, False, False, True, False]


def test_methods_that_a_client_makes_up_share_one_budget(gate):
    limited = gate(ONE, per_method=True)
    methods = ["BREW", *(f"BREW{number}" for number in range(100)), "TRACE", "CONNECT", "GET POST"]
    assert verdicts(limited, *(a_request(method=each) for each in methods)).count(True) == 1


def test_a_route_may_say_whether_its_methods_count_together(gate):
    routes = [Route("/each", ONE, per_method=True), Route("/all", ONE, per_method=False)]
    for default, others in ((False, [True, False]), (True, [True, True])):
        limited = gate(ONE, routes=routes, per_method=default)
        for path, expected in (("/each", [True, True]), ("/all", [True, False]), ("/other", others)):
            requests = [a_request(path=path, method=method) for method in ("GET", "POST")]
            assert verdicts(limited, *requests) == expected


@pytest.mark.parametrize("key", [lambda _: "k", lambda _: ("k", "l"), lambda _: {"one": "k"}, lambda _: "k" * 1024])
def test_keys_of_all_kinds_are_counted_for_each_method(gate, key):
    limited = gate({"one": ONE}, key=key, per_method=True)
    assert verdicts(limited, a_request(), a_request(method="POST"), a_request()) == [True, True, False]


def test_a_key_that_is_awaited_is_counted_for_each_method():
    async def key(request):
        return None if request.method == "PUT" else "k"

    limited = Awaited(ONE, key=key, per_method=True)
    requests = [a_request(), a_request(method="POST"), a_request(), a_request(method="PUT"), a_request(method="PUT")]
    assert verdicts(limited, *requests) == [True, True, False, True, False]  # those without a key share one


def test_a_route_that_counts_each_method_is_not_taken_for_one_that_counts_all(gate):
    routes = [Route("/A", ONE, name="a", per_method=True), Route("/a", ONE, name="a")]
    limited = gate(routes=routes)
    assert verdicts(limited, a_request(path="/a"), a_request(path="/a", method="POST")) == [True, False]


@pytest.mark.parametrize("value", [1, "yes"])
def test_per_method_is_true_or_false(value):
    with pytest.raises(TypeError, match="route '/a': per_method must be True or False, not"):
        Route("/a", ONE, per_method=value)
    with pytest.raises(TypeError, match="per_method must be True or False, not"):
        Gate(ONE, per_method=value)


# --- rules for a key


def by_plan(key):
    return "fixed-window 2/400 days" if key == "header:x-client:ada" else ONE


def test_a_function_with_a_parameter_called_key_gets_the_key(gate):
    limited = gate(by_plan, key=by_header("x-client"))
    requests = [a_request(headers={"x-client": name}) for name in ("ada", "bob") for _ in range(3)]
    assert verdicts(limited, *requests) == [True, True, False, True, False, False]


def test_it_gets_the_key_without_the_method(gate):
    limited = gate(by_plan, key=by_header("x-client"), per_method=True)
    requests = [a_request(headers={"x-client": "ada"}, method=method) for method in ("GET", "POST") for _ in range(3)]
    assert verdicts(limited, *requests) == [True, True, False] * 2


def test_of_a_request_without_a_key_it_gets_none(gate):
    limited = gate(lambda key: "blocked" if key is None else ONE, key=by_header("x-client"))
    assert verdicts(limited, a_request(), a_request(headers={"x-client": "ada"})) == [False, True]


def test_both_functions_may_be_awaited():
    async def key(request):
        return request.header("x-client")[0]

    async def rules(key):
        return "fixed-window 2/400 days" if key == "ada" else ONE

    limited = Awaited(rules, key=key)
    requests = [a_request(headers={"x-client": name}) for name in ("ada", "bob") for _ in range(3)]
    assert verdicts(limited, *requests) == [True, True, False, True, False, False]


def test_if_it_fails_the_fallback_applies(gate):
    limited = gate(lambda key: key.nothing, key=by_header("x-client"), fallback=ONE)
    assert verdicts(limited, *[a_request(headers={"x-client": "ada"})] * 2) == [True, False]


# --- what a denied request gets


def denied(limited, path="/", accept="application/json"):
    request = a_request(path=path, headers={"accept": accept})
    limited.admit(request)
    return limited.denial(request, limited.admit(request))


def test_a_text_replaces_the_usual_one_in_every_format(gate):
    limited = gate(ONE, deny="1 < 2: chill!")
    reply = denied(limited)
    assert (reply.status, json.loads(reply.body)["detail"]) == (429, "1 < 2: chill!")
    assert dict(reply.headers)["Content-Length"] == str(len(reply.body))
    assert "Retry-After" in dict(reply.headers)
    assert denied(limited, accept="text/plain").body == b"Too many requests. 1 < 2: chill!\n"
    assert b"<p>1 &lt; 2: chill!</p>" in denied(limited, accept="text/html").body


def test_a_function_may_return_a_text_a_reply_or_nothing(gate):
    seen = []

    def deny(request, decision):
        seen.append((request.path, decision.limit))
        return {"/text": "chill!", "/reply": Reply(503, [], b"busy")}.get(request.path)

    limited = gate(routes=[Route(path, ONE) for path in ("/text", "/reply", "/none")], deny=deny)
    assert json.loads(denied(limited, "/text").body)["detail"] == "chill!"
    assert denied(limited, "/reply")[::2] == (503, b"busy")
    assert json.loads(denied(limited, "/none").body)["detail"].startswith("Try again in")
    assert seen == [("/text", 1), ("/reply", 1), ("/none", 1)]


def test_a_route_may_answer_in_its_own_way(gate):
    limited = gate(ONE, routes=[Route("/own", ONE, deny="own")], deny="usual")
    assert [json.loads(denied(limited, path).body)["detail"] for path in ("/own", "/")] == ["own", "usual"]


def fails(request, decision):
    raise LookupError("no template")


@pytest.mark.parametrize("deny", [fails, lambda request, decision: 429, lambda request, decision: b"busy"])
def test_a_function_that_fails_denies_all_the_same(gate, deny, caplog):
    limited = gate(ONE, deny=deny)
    for _ in range(2):
        reply = denied(limited)
        assert (reply.status, json.loads(reply.body)["status"]) == (429, 429)
    assert [record.getMessage() for record in caplog.records] == [
        "route '*': the deny function failed; the usual response is sent; this is logged once"
    ]


@pytest.mark.parametrize("deny", [lambda request: None, of_tomorrow, 429])
def test_what_cannot_answer_is_refused_at_once(deny):
    for options in ({"limit": ONE, "deny": deny}, {"routes": [Route("/a", ONE, deny=deny)]}):
        with pytest.raises(TypeError, match=r"route '.+': deny "):
            Gate(**options)


# --- functions without arguments


current = contextvars.ContextVar("current", default="ada")


def user():
    return current.get()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"limit": ONE, "key": user}, [True, False, True]),
        ({"limit": ONE, "key": combine(user, by_path())}, [True, False, True]),
        ({"limit": ONE, "key": first_of(lambda: None, user)}, [True, False, True]),
        ({"limit": lambda: ONE if current.get() == "ada" else None}, [True, False, None]),
        ({"limit": "3/minute", "cost": lambda: 2}, [True, False, False]),
        ({"limit": ONE, "exempt": [lambda: current.get() == "bob"]}, [True, False, None]),
    ],
)
def test_a_function_may_leave_the_request_out(gate, options, expected):
    limited = gate(**options)
    seen = []
    for name in ("ada", "ada", "bob"):
        current.set(name)
        seen += verdicts(limited, a_request())
    assert seen == expected


def test_a_function_that_takes_the_request_if_it_gets_it_gets_it(gate):
    limited = gate(ONE, key=lambda request=None: request.header("x-client")[0])
    requests = [a_request(headers={"x-client": client}) for client in "aab"]
    assert verdicts(limited, *requests) == [True, False, True]


@pytest.mark.parametrize("function", [by_address, by_user, by_header, by_path, combine, first_of])
def test_a_key_function_that_was_not_made_is_refused(function):
    name = function.__name__
    with pytest.raises(TypeError, match=rf"key must be what {name}\(\.\.\.\) returns, not {name} itself"):
        Gate(ONE, key=function)


@pytest.mark.parametrize("option", ["key", "cost", "limit"])
def test_a_sync_gate_refuses_coroutine_functions_without_arguments(option):
    async def later():
        return "x"

    with pytest.raises(TypeError, match=f"{option} is a coroutine function, which cannot be awaited here"):
        Gate(**{"limit": ONE, option: later})


# --- functions that exempt requests


def is_internal(request):
    return request.header("x-internal") == ["true"]


INTERNAL, OTHER = a_request(headers={"x-internal": "true"}), a_request()


def test_a_function_may_exempt_requests_from_all_limits(gate):
    limited = gate(ONE, routes=[Route("/a", ONE)], exempt=["/healthz", is_internal])
    assert verdicts(limited, OTHER, OTHER, INTERNAL, a_request(path="/healthz")) == [True, False, None, None]
    assert limited.notices.counts["unlimited"] == 1


def test_an_exemption_by_a_function_is_logged_once(gate, caplog):
    verdicts(gate(ONE, exempt=[is_internal]), INTERNAL, INTERNAL)
    assert [record.getMessage() for record in caplog.records] == [
        "unlimited: exempt[0] returned True for a request: such requests are not limited (logged once; see .notices)"
    ]


@pytest.mark.parametrize("returned", [1, "true", [0], LookupError("no session")])
def test_only_true_exempts(gate, returned, caplog):
    def exempt(request):
        if isinstance(returned, Exception):
            raise returned
        return returned

    limited = gate(ONE, exempt=[exempt])
    with caplog.at_level(logging.WARNING, "ratekeeper"):
        assert verdicts(limited, OTHER, OTHER) == [True, False]
    assert [record.getMessage() for record in caplog.records] == [
        "exempt[0] failed; its requests are limited; this is logged once"
    ]


def test_what_a_coroutine_function_returns_is_awaited():
    async def exempt(request):
        return is_internal(request)

    assert verdicts(Awaited(ONE, exempt=[exempt]), OTHER, OTHER, INTERNAL) == [True, False, None]


def test_a_sync_gate_does_not_take_a_coroutine_for_true():
    async def exempt(request):
        return True

    with pytest.raises(TypeError, match=r"exempt\[0\] is a coroutine function, which cannot be awaited here"):
        Gate(ONE, exempt=[exempt])
    looks_plain = lambda request: exempt(request)  # noqa: E731, PLW0108
    assert verdicts(Gate(ONE, exempt=[looks_plain]), OTHER, OTHER) == [True, False]


def test_switched_off_no_function_is_asked(gate):
    assert verdicts(gate(ONE, exempt=[lambda request: 1 / 0], enabled=False), OTHER) == [None]
