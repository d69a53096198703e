"""Whatever is sent, the answer is a problem that names what is wrong, never our failure, and nothing is consumed."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import inside
from tests.service.serving import InProcess

RULE = {"algorithm": "fixed-window", "limit": 5, "window": 86_400}
BUCKET = {"algorithm": "token-bucket", "capacity": 5, "refill_rate": 1}
OPERATIONS = ["hit", "peek", "charge", "refund", "reset", "inspect"]
BAD = {  # what is at fault, and a body with it
    "key": [{"key": key, **RULE} for key in ("", None, True, 1.5, "k" * 1025, [], [""], {"a": "k"})]
    + [RULE, {"key": "k", "keys": {"a": "k"}, "rules": {"a": "1/s"}}, {"rules": {"a": "1/s"}}],
    "cost": [{"key": "k", "cost": cost, **RULE} for cost in (0, -1, 1.5, "1", True, None, {}, {"k": 1}, [1])],
    "algorithm": [{"key": "k", "limit": 5}, {"key": "k"}]
    + [{"key": "k", **RULE, "algorithm": other} for other in ("hourglass", "", 1, ["fixed-window"])],
    "limit": [{"key": "k", **RULE, "limit": limit} for limit in (None, 0, -1, 1.5, "5", True, 10**13, 10**400)]
    + [{"key": "k", **BUCKET, "limit": 0}, {"key": "k", "algorithm": "token_bucket", "limit": 0}],
    "window": [{"key": "k", **RULE, "window": window} for window in (0, -1, "", "1 fortnight", 1e-9, 10**9, True)]
    + [{"key": "k", **RULE, "window": "1" * 300}, {"key": "k", **BUCKET, "window": 5}],
    "capacity": [{"key": "k", **BUCKET, "capacity": capacity} for capacity in (None, 0, 1.5, "5")]
    + [{"key": "k", **RULE, "capacity": 5}],
    "refill_rate": [{"key": "k", **BUCKET, "refill_rate": rate} for rate in (None, 0, -1, "often", [1])]
    + [{"key": "k", "algorithm": "leaky-bucket", "limit": 5, "refill_rate": 1}],
    "leak_rate": [{"key": "k", "algorithm": "leaky-bucket", "capacity": 5}, {"key": "k", **BUCKET, "leak_rate": 1}],
    "mode": [
        {"key": "k", "algorithm": "leaky-bucket", "capacity": 5, "leak_rate": 1, "mode": "polite"},
        {"key": "k", **BUCKET, "mode": "shaping"},
    ],
    "rule": [{"key": "k", "rule": "1/s", "rules": {"a": "1/s"}}]
    + [{"key": "k", "rule": text} for text in ("", "often", "1/s; 2/s", 5, "0/s", "1" * 5000 + "/s")],
    "rules": [{"key": "k", "rules": rules} for rules in ({}, [], "1/s", {"": "1/s"}, {"x" * 101: "1/s"})]
    + [{"key": "k", "rules": {str(number): "1/s" for number in range(33)}}],
    "rules.a": [{"key": "k", "rules": {"a": text}} for text in ("often", "1/s; 2/s")],
    "rules.a.limit": [{"key": "k", "rules": {"a": {**RULE, "limit": 0}}}],
    "rules.a.algorithm": [{"key": "k", "rules": {"a": {"limit": 0}}}],
    "keys": [{"keys": {"a": "k"}, **RULE}],
    "cost.b": [{"key": "k", "rules": {"a": "1/s"}, "cost": {"b": 1}}],
    "cost.a": [{"key": "k", "rules": {"a": "1/s"}, "cost": {"a": -1}}],
    "color": [{"key": "k", "color": "red", **RULE}],
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(("field", "body"), [(field, body) for field, bodies in BAD.items() for body in bodies])
def test_a_value_that_cannot_be_used_is_a_problem_that_names_its_field(app, operation, field, body):
    answer = app.ask("POST", f"/v1/{operation}", json=body)
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")
    assert answer.json()["field"].split("[")[0] == field


def test_an_unknown_field_is_told_with_those_that_there_are(service):
    answer = service.ask(
        "POST", "/v1/hit", json={"key": "k", "algorithm": "fixed_window", "limit": 5, "windowSeconds": 60}
    )
    assert answer.status_code == 400
    assert answer.json()["detail"] == (
        "windowSeconds: unknown field; the fields are algorithm, limit, window, capacity, refill_rate, leak_rate, "
        "mode, key, cost, rule, rules, keys, policy, attributes"
    )


@pytest.mark.parametrize(
    "content", [b"", b"{", b"null", b"[]", b'"k"', b"\xff\xfe", b'{"key": NaN}', b"[" * 60_000, b'{"key": "\\ud800"}']
)
def test_what_is_not_a_json_object_is_a_problem(service, content):
    answer = service.ask("POST", "/v1/hit", content=content, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["title"]) == (400, "Bad Request")


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ('{"key": "k", "rule": "fixed-window 5/day", "key": "other"}', "key"),
        ('{"key": "k", "rule": "fixed-window 5/day", "k\\u0065y": "k"}', "key"),
        (' {"cost": 1, "key": "k", "rule": "fixed-window 5/day", "cost": 5}', "cost"),
        ('{"key": "k", "rules": {"a": "fixed-window 5/day", "a": "1/s"}}', "a"),
        ('{"keys": {"a": "k", "a": "l"}, "rules": {"a": "fixed-window 5/day"}}', "a"),
        ('{"key": "k", "rules": {"a": {"algorithm": "fixed-window", "limit": 5, "window": 1, "limit": 6}}}', "limit"),
    ],
)
def test_a_field_that_is_given_twice_is_a_problem(content, field):
    app = InProcess(playground=False)
    answer = app.ask("POST", "/v1/hit", content=content.encode(), headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["field"]) == (400, field)
    assert answer.json()["detail"] == f"the field {field!r} is given more than once"
    assert app.app.service.store.size == 0


def test_a_query_of_very_many_parameters_is_a_problem(service, key):
    query = "?" + "&".join(f"a{number}=1" for number in range(101))
    answer = service.ask("POST", f"/v1/hit{query}", json={"key": key, **RULE})
    assert (answer.status_code, answer.json()["detail"]) == (400, "the query has more than 100 parameters")


@pytest.mark.parametrize("query", ["?always_200=yes", "?always_200=", "?always_200=2"])
def test_always_200_is_0_or_1(service, key, query):
    answer = service.ask("POST", f"/v1/hit{query}", json={"key": key, **RULE})
    assert (answer.status_code, answer.json()["field"]) == (400, "always_200")
    assert service.ask("POST", "/v1/peek", json={"key": key, **RULE}).json()["remaining"] == 5


def test_a_bad_cost_of_one_rule_takes_nothing_from_another(service, key):
    rules = {"a": "fixed-window 5/day", "b": "fixed-window 5/day"}
    bad = {"rules": rules, "keys": {"a": key}, "cost": 2}
    assert service.ask("POST", "/v1/hit", json=bad).status_code == 400
    layers = service.ask("POST", "/v1/peek", json={"rules": rules, "key": key}).json()["layers"]
    assert {name: layer["remaining"] for name, layer in layers.items()} == {"a": 5, "b": 5}


@pytest.fixture(scope="module")
def app():
    return InProcess(playground=False)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["k", "1m", "1/s", "fixed-window", "leaky-bucket", "shaping", 10**30, 1e300]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "limit"]), inner, max_size=3)
    ),
    max_leaves=6,
)
fields = st.sampled_from([field for field in BAD if "." not in field])
near_misses = st.builds(
    lambda base, changes: {"key": "k", **base, **changes},
    st.sampled_from([RULE, BUCKET, {"rule": "1/s"}, {"rules": {"a": "1/s", "b": "5/day"}}]),
    st.dictionaries(fields, values, max_size=3),
)


def all_that_is_stored(app):
    return {space: repr(table.states) for space, table in inside.tables(app.app.service.store).items() if table.states}


@given(operation=st.sampled_from(OPERATIONS), body=near_misses | values)
def test_no_body_is_a_failure_of_ours_and_a_problem_consumes_nothing(app, operation, body):
    before = all_that_is_stored(app)
    content = json.dumps(body).encode()  # NaN and Infinity, too, which are no JSON
    answer = app.ask("POST", f"/v1/{operation}", content=content, headers={"content-type": "application/json"})
    assert answer.status_code in (200, 400, 429)
    if answer.status_code == 400:
        assert answer.json()["detail"]
        assert all_that_is_stored(app) == before


@given(content=st.binary(max_size=200))
def test_no_bytes_are_a_failure_of_ours(app, content):
    answer = app.ask("POST", "/v1/hit", content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 400
